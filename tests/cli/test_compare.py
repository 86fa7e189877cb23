"""``dyart compare``: several recipes, one table."""

import json
import sys
from datetime import date

import numpy as np
import pytest

from dyart.cli import main
from dyart.evaluation.paired import paired_difference

TINY = ["--data.name", "three-blobs", "--model.name", "mlp", "--train.epochs", "1", "--train.batch_size", "256",
        "--data.crop", "0", "--eval.steps", "1", "--train.device", "cpu", "--train.burn_in", "0"]  # fmt: skip
RECIPES = ["fashion-mini-cnn-natural", "fashion-mini-cnn-at"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    assert main(["compare", *RECIPES, "--seeds", "0,1", "--out", str(folder), *TINY]) == 0
    return folder


def test_one_table_with_every_recipe_and_paired_differences(compared):
    text = (compared / "compare.md").read_text()
    assert all(recipe in text for recipe in RECIPES)
    assert "in %, 2 seeds: mean ± half the range. " in text
    assert "±" in text
    assert f"Points more than {RECIPES[0]}, with 95 % intervals over the examples; ± half the range" in text
    shares = np.array(
        [[run["clean"] for run in row["runs"]] for row in json.loads((compared / "compare.json").read_text())]
    )
    gains = 100 * (shares[1] - shares[0])
    assert f"] ± {(gains.max() - gains.min()) / 2:.1f} " in text
    rows = json.loads((compared / "compare.json").read_text())
    assert [row["recipe"] for row in rows] == RECIPES
    assert [run["seed"] for run in rows[0]["runs"]] == [0, 1]
    shares = [100 * run["clean"] for run in rows[0]["runs"]]
    assert f"| {RECIPES[0]} " in text
    assert "| epochs | s/epoch |" in text
    assert f"{np.mean(shares):.1f} ± {(max(shares) - min(shares)) / 2:.1f}" in text


def test_finished_runs_are_not_repeated_and_lost_ones_are(compared, capsys):
    seed0, seed1 = (compared / f"{RECIPES[1]}-seed{seed}" for seed in (0, 1))
    before = (seed0 / "environment.json").stat().st_mtime_ns
    (seed1 / "evaluation.json").unlink()
    assert main(["compare", *RECIPES, "--seeds", "0,1", "--out", str(compared), *TINY]) == 0
    assert (seed0 / "environment.json").stat().st_mtime_ns == before
    assert (seed1 / "evaluation.json").is_file()
    out, err = capsys.readouterr()
    assert "best by validation" in err
    assert "best by validation" not in out, "into a file goes the one table"
    assert RECIPES[1] in out
    finished = [line for line in err.splitlines() if "finished earlier" in line]
    assert [line.partition(":")[0] for line in finished] == [
        str(compared / f"{recipe}-seed{seed}")
        for recipe in RECIPES
        for seed in (0, 1)
        if (recipe, seed) != (RECIPES[1], 1)
    ]
    assert all(line.endswith(f", {date.today()}), not trained again") for line in finished)


def test_a_run_by_other_code_is_used_and_said_to_be(compared, capsys):
    path = compared / f"{RECIPES[0]}-seed0" / "environment.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {"commit": "0123456789abcdef-dirty"}))
    try:
        assert main(["compare", *RECIPES, "--seeds", "0,1", "--out", str(compared), *TINY]) == 0
    finally:
        path.write_text(before)
    err = capsys.readouterr().err
    assert f"{path.parent}: finished earlier (commit 0123456-dirty, {date.today()}), not trained again" in err
    now = json.loads(before)["commit"]
    assert ("; the code is of commit " in err) == (now is not None)


def test_a_comparison_of_other_runs_stays(compared, capsys):
    names = ("compare.md", "compare.json", "compare-2.md", "compare-2.json")
    first = {name: (compared / name).read_bytes() for name in names[:2]}
    for _ in range(2):
        assert main(["compare", RECIPES[1], "--out", str(compared), *TINY]) == 0
        out, err = capsys.readouterr()
        assert f"{compared / 'compare.md'} is not of these runs alone, and stays as it is\n" in err
        assert f"{compared / 'compare-2.md'}, {compared / 'compare-2.json'}" in out
        assert {name: (compared / name).read_bytes() for name in names[:2]} == first
        assert (compared / "compare-2.md").read_text().startswith("Test accuracy in %, 1 seed. ")
    assert not (compared / "compare-3.md").exists(), "the same comparison is made anew"
    assert main(["compare", *RECIPES, "--seeds", "0,1", "--out", str(compared), *TINY]) == 0
    assert "stays as it is" not in capsys.readouterr().err
    (compared / "compare-2.md").write_text("my notes\n")
    assert main(["compare", RECIPES[1], "--out", str(compared), *TINY]) == 0
    assert (compared / "compare-2.md").read_text() == "my notes\n"
    assert (compared / "compare-3.md").is_file()


def test_an_interrupted_comparison_goes_on_by_the_same_command(compared, capsys, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    words = ["compare", *RECIPES, "--seeds", "0,1", "--out", str(compared), *TINY]
    lost = compared / f"{RECIPES[1]}-seed1"
    (lost / "evaluation.json").unlink()
    trained = (lost / "environment.json").stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr("dyart.cli.compare.measure_run", interrupted)
        assert main(words) == 130
    assert "interrupted; the same command again goes on with what is not finished\n" in capsys.readouterr().err
    assert main(words) == 0
    assert (lost / "evaluation.json").is_file()
    assert (lost / "environment.json").stat().st_mtime_ns == trained, "it was measured, not trained"


def test_other_settings_in_the_same_folder_are_refused(compared, capsys):
    assert main(["compare", *RECIPES, "--out", str(compared), *TINY, "--optim.lr", "0.01"]) == 2
    error = capsys.readouterr().err
    assert "other settings" in error
    assert "lr" in error


def test_recipes_of_one_name_are_refused_before_the_first_training(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.yaml").write_text("base: fashion-mini-cnn-at\n")
    assert main(["compare", "a/mine.yaml", "b/mine.yaml", "--out", "c", *TINY]) == 2
    assert "two recipes are called mine, by which their runs are named" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


PLUGIN = """
import torch.nn.functional as F
from dyart.methods.base import Method
class Mine(Method):
    def craft(self, model, batch):
        return batch.inputs
    def loss(self, model, batch, crafted):
        return FACTOR * F.cross_entropy(model(crafted), batch.labels), {}
"""


def test_a_method_whose_code_has_changed_is_another(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "compared_method.py"
    source.write_text("from compared_helper import FACTOR\n" + PLUGIN)
    helper = tmp_path / "compared_helper.py"
    helper.write_text("FACTOR = 1.0\n")
    (tmp_path / "mine.yaml").write_text("base: fashion-mini-cnn-at\nmethod: {name: 'compared_method:Mine'}\n")
    words = ["mine.yaml", *TINY, "--out"]
    assert main(["compare", *words, "c"]) == 0
    assert main(["train", *words, "run", "--quiet"]) == 0
    assert main(["compare", *words, "c"]) == 0, "nothing has changed"
    helper.write_text("FACTOR = 2.0\n")
    capsys.readouterr()
    assert main(["compare", *words, "c"]) == 2
    assert "compared_helper.py has changed" in capsys.readouterr().err, "what it imports is its code, too"
    source.write_text(PLUGIN.replace("FACTOR", "2.0"))
    assert main(["compare", *words, "c"]) == 2
    assert "compared_method.py has changed" in capsys.readouterr().err
    assert main(["train", "run", "--resume", "--train.epochs", "2", "--optim.lr", "0.01", "--quiet"]) == 0
    out = "".join(capsys.readouterr())
    assert "compared_method.py " in out
    assert "optim.lr 0.01 (was " in out
    assert "compared_method.py" in (tmp_path / "run" / "environment.json").read_text()
    # Whoever measures a network needs no code of its training; who goes on with that does.
    source.unlink()
    monkeypatch.delitem(sys.modules, "compared_method")
    monkeypatch.delitem(sys.modules, "compared_helper")
    for command in (["margins", "run", "--count", "5"], ["evaluate", "run", "--attack", "clean"], ["curves", "run"]):
        assert main(command) == 0, capsys.readouterr().err
    assert main(["train", "run", "--resume", "--train.epochs", "3"]) == 2
    assert "compared_method" in capsys.readouterr().err


def test_a_page_and_curves_of_all_runs_of_a_comparison(compared, tmp_path, capsys):
    assert main(["curves", str(compared)]) == 0
    assert (compared / "curves.png").is_file()
    assert main(["report", str(compared), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert all(f"{recipe}-seed{seed}" in page for recipe in RECIPES for seed in (0, 1))


def test_a_misspelt_recipe_shows_before_the_first_training(tmp_path, capsys):
    assert main(["compare", RECIPES[0], "fashion-mini-cnn-ta", "--out", str(tmp_path / "c"), *TINY]) == 2
    assert "fashion-mini-cnn-ta" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_seeds_must_be_numbers(capsys):
    with pytest.raises(SystemExit):
        main(["compare", *RECIPES, "--seeds", "a,b"])
    assert "0,1,2" in capsys.readouterr().err


def test_paired_differences_by_hand():
    first, second = np.array([1, 0, 1, 0], bool), np.array([1, 1, 1, 0], bool)
    found = paired_difference([first], [second])
    gain = np.array([0, 1, 0, 0])
    assert found.mean == 0.25
    # As if there were two examples more, half of one in each of the four cases.
    more, weights = np.array([*gain, 0, 0, 1, -1]), np.array([1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5])
    middle = np.average(more, weights=weights)
    reach = 1.96 * np.sqrt(np.average((more - middle) ** 2, weights=weights) / 6)
    assert (found.low, found.high) == pytest.approx((middle - reach, middle + reach), rel=1e-4)
    both = paired_difference([first, second], [second, second])
    assert both.mean == 0.125
    assert str(found).startswith("+25.0 [")


def test_runs_that_agree_on_few_examples_may_still_differ():
    found = paired_difference([np.ones(20, bool)], [np.ones(20, bool)])
    assert found.mean == 0
    assert found.low == -found.high
    assert 0.05 < found.high < 0.2


def test_runs_measured_by_different_attacks_are_not_compared(compared, capsys):
    path = compared / f"{RECIPES[1]}-seed0" / "evaluation.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {"attack": "AutoAttack"}))
    try:
        assert main(["compare", *RECIPES, "--seeds", "0,1", "--out", str(compared), *TINY]) == 2
    finally:
        path.write_text(before)
    error = capsys.readouterr().err
    assert "the runs were not measured alike, attack: AutoAttack, " in error
    assert "dyart evaluate RUN --attack" in error


def test_paired_differences_need_the_same_examples():
    with pytest.raises(ValueError, match="same examples"):
        paired_difference([np.ones(3, bool)], [np.ones(4, bool)])
    with pytest.raises(ValueError, match="same examples"):
        paired_difference([], [np.ones(4, bool)])
