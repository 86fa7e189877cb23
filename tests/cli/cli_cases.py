"""A command line in this process, and a training of seconds."""

from dyart.cli import main

TINY = ["--data.name", "three-blobs", "--model.name", "mlp", "--train.epochs", "2", "--train.batch_size", "256",
        "--data.crop", "0", "--eval.steps", "2", "--train.loggers", "csv", "--train.device", "cpu"]  # fmt: skip


def run(capsys, *words):
    """Return status, stdout and stderr of a command; leaving by SystemExit is a status, too."""
    try:
        status = main([str(word) for word in words])
    except SystemExit as leave:
        status = leave.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err
