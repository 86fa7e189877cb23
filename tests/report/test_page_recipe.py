"""What the card of a run says of its recipe and of its beginning: nothing that the run contradicts."""

import json
import sys

import pytest
from page_cases import Outline

from dyart.recipes import dump, resolve
from dyart.report.page.recipe import of_recipe
from dyart.report.page.run import Run, read_runs
from dyart.report.page.tables import settings_table
from dyart.report.page.words import how

RECIPE = "fashion-mini-cnn-dyart"
DEFAULTS = "(its own defaults but for what is said)"
NOTE = "DyART on the embedded set, CNN, 4 + 12 epochs; our values."


@pytest.fixture
def run_of(tmp_path):
    """Return a run with the configuration of a command line."""

    def made(*words: str, recipe: str = RECIPE) -> Run:
        (tmp_path / "config.yaml").write_text(dump(resolve(recipe, words)), encoding="utf-8")
        return read_runs([tmp_path])[0]

    return made


def test_a_recipe_as_it_is_has_its_note(run_of):
    assert of_recipe(run_of()) == f"Recipe {RECIPE}: {NOTE}"
    places = ("--out", "runs/x", "--seed", "3", "--train.device", "cpu", "--data.root", "/data")
    assert of_recipe(run_of(*places)) == f"Recipe {RECIPE}: {NOTE}"


def test_other_epochs_are_said_instead_of_the_note(run_of):
    run = run_of("--train.epochs", "3", "--train.burn_in", "2")
    assert of_recipe(run) == f"Built on the recipe {RECIPE}, with train.epochs 3 and train.burn_in 2."


def test_every_changed_setting_is_said(run_of):
    changed = {"data.name": "my.npz", "model.name": "resnet18", "train.epochs": "2", "train.burn_in": "1"}
    changed |= {"method.alpha": "5.0", "method.r0": "8/255", "method.lam": "2.5", "method.norm": "l2"}
    changed |= {"data.crop": "0", "data.flip": "true", "optim.lr": "0.05", "optim.clip": "null"}
    changed |= {"eval.norm": "l2", "eval.radius": "1.0", "eval.radii": "0.5,1.0"}
    said = of_recipe(run_of(*(word for key, value in changed.items() for word in (f"--{key}", value))))
    said = said.removeprefix(f"Built on the recipe {RECIPE}, with ").removesuffix(".")
    parts = dict(part.split(" ", 1) for part in said.replace(" and ", ", ").split(", "))
    assert parts == changed
    assert list(parts)[:4] == ["data.name", "model.name", "train.epochs", "train.burn_in"]


def test_another_method_comes_with_its_settings(run_of):
    run = run_of("--method.name", "at", "--method.radius", "0.2", "--train.burn_in", "0")
    words = f"method.name at {DEFAULTS}, train.burn_in 0 and method.radius 0.2"
    assert of_recipe(run) == f"Built on the recipe {RECIPE}, with {words}."
    run = run_of("--method.name", "natural", "--train.burn_in", "0")
    assert of_recipe(run) == f"Built on the recipe {RECIPE}, with method.name natural {DEFAULTS} and train.burn_in 0."


def test_settings_of_a_method_of_ones_own_are_said_where_they_are_no_defaults(run_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "from dyart import DyART\n\nclass Mine(DyART):\n"
    source += "    def __init__(self, temperature: float = 0.05, r0: float = 1 / 5, **settings):\n"
    source += "        super().__init__(r0=r0, **settings)\n"
    (tmp_path / "page_mine.py").write_text(source)
    name = ("--method.name", "page_mine:Mine")
    begun = f"Built on the recipe {RECIPE}, with method.name page_mine:Mine"
    assert of_recipe(run_of(*name)) == f"{begun} {DEFAULTS}."
    run = run_of(*name, "--method.temperature", "0.1", "--method.lam", "40", "--method.r0", "0.2")
    assert of_recipe(run) == f"{begun} {DEFAULTS}, method.temperature 0.1 and method.lam 40.0."
    (tmp_path / "page_mine.py").unlink()
    monkeypatch.delitem(sys.modules, "page_mine")
    assert of_recipe(run) == f"{begun} (and its own settings)."


def test_a_note_of_ones_own_stays(run_of):
    assert of_recipe(run_of("--note", "mine")) == f"Recipe {RECIPE}. The note in its config.yaml: mine"
    said = of_recipe(run_of("--note", "mine", "--optim.lr", "0.2"))
    assert said == f"Built on the recipe {RECIPE}, with optim.lr 0.2. The note in its config.yaml: mine"


def test_a_recipe_of_ones_own_is_not_said_to_be_the_run(run_of, tmp_path):
    (tmp_path / "own.yaml").write_text(f"base: {RECIPE}\nnote: long training\n")
    said = of_recipe(run_of("--train.epochs", "1", recipe=str(tmp_path / "own.yaml")))
    assert said == ("Recipe own, which is not dyart's own and was not compared with this run. Its note: long training")


def test_what_a_resume_changed_is_said(run_of, tmp_path):
    before, now = "a" * 40, "b" * 40
    changes = [
        {"step": 32, "method.temperature": ["0.05", "0.1"]},
        {"step": 64, "optim.lr": ["0.2", "0.1"], "commit": [before, f"{now}-dirty"]},
        {"step": 70},
        "damaged",
    ]
    (tmp_path / "environment.json").write_text(json.dumps({"seed": 0, "changes": changes}))
    run = run_of()
    said = ["From step 32 on: method.temperature 0.1 (was 0.05).",
            "From step 64 on: commit bbbbbbb-dirty (was aaaaaaa), optim.lr 0.1 (was 0.2)."]  # fmt: skip
    assert [sentence for sentence in how(run) if "From step" in sentence] == said
    table = Outline(settings_table([run])).text
    assert "change 1 From step 32 on: method.temperature 0.1 (was 0.05). change 2 From step 64 on: commit" in table
    for damaged in ({"changes": "damaged"}, {"changes": 3}):
        (tmp_path / "environment.json").write_text(json.dumps(damaged))
        assert not [sentence for sentence in how(run_of()) if "From step" in sentence]


@pytest.mark.parametrize(("method", "words"), [("natural", "natural training"), ("at", "adversarial training")])
def test_the_burn_in_is_called_what_it_is(run_of, method, words):
    run = run_of("--train.burn_in", "2", "--train.burn_in_method", method)
    assert f"12 epochs after 2 of {words}, batches" in " ".join(how(run))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("some/digits.safetensors", "12 epochs from the weights in the file digits.safetensors, batches"),
        ("some/net.pt", "12 epochs from the weights in the file net.pt, batches"),
        ("runs/natural-0.1", "12 epochs from the weights of runs/natural-0.1, batches"),
        ("runs/n/checkpoints/epoch-0002", "12 epochs from the weights of epoch-0002 of the run runs/n, batches"),
    ],
)
def test_the_weights_that_it_began_with_are_called_what_they_are(run_of, place, words):
    assert words in " ".join(how(run_of("--train.burn_in", "0", "--train.burn_in_from", place)))
