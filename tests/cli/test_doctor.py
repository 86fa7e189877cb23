"""``dyart doctor``: a healthy installation, and each thing that can be broken."""

import os
import tempfile
import time

import pytest

from dyart.cli import doctor_checks, doctor_compile, main
from dyart.cli.doctor import BROKEN, NOTE, OK, Finding, report
from dyart.cli.doctor_compile import Trial

CHECKS = ("dyart", "train", "eval", "report", "integrations", "gpu", "search", "data", "here", "temporary", "compile")


def lines(out):
    """Return verdict and words by what was checked."""
    rows = [line for line in out.splitlines() if line[13:19].strip() in (OK, NOTE, BROKEN)]
    return {row[:12].strip(): (row[13:19].strip(), row[21:]) for row in rows}


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """No compiler, which takes long; and data of its own."""
    monkeypatch.setattr(doctor_compile, "PROGRAM", "pass")
    monkeypatch.setenv("DYART_DATA", str(tmp_path / "data"))
    return tmp_path


def test_all_is_well(capsys, quick):
    assert main(["doctor", "--seconds", "60"]) == 0
    out = capsys.readouterr().out
    found = lines(out)
    assert set(CHECKS) <= set(found)
    assert BROKEN not in {verdict for verdict, _ in found.values()}
    assert found["search"][0] == found["data"][0] == found["compile"][0] == OK
    assert "fashion-mini" in found["data sets"][1]
    assert out.splitlines()[-1] == "all is well"
    assert "\x1b" not in out


def test_altered_images_are_broken(capsys, monkeypatch, quick):
    other = quick / "fashion_mini.npz"
    other.write_bytes(doctor_checks.MINI_FILE.read_bytes()[:-1] + b"x")
    monkeypatch.setattr(doctor_checks, "MINI_FILE", other)
    assert main(["doctor", "--seconds", "60"]) == 1
    out = capsys.readouterr().out
    verdict, words = lines(out)["data"]
    assert verdict == BROKEN
    assert "install dyart again" in words
    assert out.splitlines()[-1] == "1 to be repaired"
    other.unlink()
    assert doctor_checks._embedded().verdict == BROKEN


def test_a_damaged_data_set_is_broken(capsys, quick):
    folder = quick / "data" / "mine"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{")
    finding = doctor_checks._stored()
    assert finding.verdict == BROKEN
    assert "mine" in finding.words


def test_a_missing_package_is_a_note_that_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(doctor_checks, "version_of", lambda name: None if name == "plotly" else "1.0")
    assert doctor_checks._extra("train") == Finding("train", OK, "all packages are here")
    finding = doctor_checks._extra("report")
    assert finding.verdict == NOTE
    assert "plotly" in finding.words
    assert "pip install plotly" in finding.words


def test_an_old_torch_is_broken(monkeypatch):
    monkeypatch.setattr(doctor_checks.torch, "__version__", "2.4.1+cpu")
    finding = doctor_checks._versions()
    assert finding.verdict == BROKEN
    assert "2.6 or newer" in finding.words


def test_where_nothing_can_be_written(monkeypatch, tmp_path):
    def refused(dir):
        raise PermissionError(13, "Permission denied")

    assert doctor_checks._writable("here", tmp_path / "not" / "yet").verdict == OK
    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    finding = doctor_checks._writable("data folder", tmp_path / "not" / "yet")
    assert finding.verdict == BROKEN
    assert str(tmp_path) in finding.words
    assert "DYART_DATA" in finding.words


@pytest.mark.parametrize(
    ("device", "program", "verdict", "words"),
    [
        ("cpu", "pass", OK, "works for the cpu"),
        ("cpu", "raise RuntimeError('InvalidCxxCompiler: No working C++ compiler found')", NOTE, "C++ compiler"),
        ("cuda", "raise ImportError('no triton here')", BROKEN, "--train.compile off"),
        ("cpu", "import os; os._exit(3)", NOTE, "without a word"),
    ],
)
def test_the_compilers_trial(monkeypatch, device, program, verdict, words):
    monkeypatch.setattr(doctor_compile, "PROGRAM", program)
    trial = Trial(device, 60.0)
    finding = trial.finding()
    trial.end()
    assert finding.verdict == verdict
    assert words in finding.words
    assert not os.path.exists(trial.folder)


def test_the_trial_has_a_limit_and_leaves_nothing(monkeypatch):
    monkeypatch.setattr(doctor_compile, "PROGRAM", "import time; time.sleep(60)")
    trial, started = Trial("cpu", 0.3), time.monotonic()
    finding = trial.finding()
    trial.end()
    assert time.monotonic() - started < 30
    assert finding.verdict == NOTE
    assert "--seconds 60" in finding.words
    assert trial.process.returncode is not None


def test_a_check_that_fails_itself_is_broken(capsys, monkeypatch, quick):
    def fails():
        raise RuntimeError("driver\nmismatch")

    monkeypatch.setattr(doctor_checks, "_gpu", fails)
    assert report(doctor_checks.findings(60.0)) == 1
    assert "gpu          BROKEN  RuntimeError: driver mismatch" in capsys.readouterr().out
