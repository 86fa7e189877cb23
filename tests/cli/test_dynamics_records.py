"""Files and folders of ``dyart dynamics``: what is replaced, what stays, how files of one name are told apart."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from dynamics_cases import BIAS, MOONS, WEIGHT, dynamics, go_there, record

from dyart.cli.dynamics_networks import name_apart
from dyart.models import build, described


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A working directory with networks, and weights of a linear one."""
    return go_there(tmp_path, monkeypatch)


def test_a_record_of_other_settings_stays_and_the_same_is_made_anew(capsys, here):
    words = [*MOONS, "--count", "32", "--batch-size", "32", "--methods", "natural"]
    for more in ([], [], ["--norm", "l2", "--radius", "0.1"], ["--seed", "1"], ["--seed", "2"]):
        status, out, err = dynamics(capsys, *words, *more)
        assert status == 0, err
        assert ("dynamics-w is of other settings, and stays as it is" in out) == bool(more)
    found = {path.name: (record(path)["norm"], record(path)["seed"]) for path in here.glob("dynamics-*")}
    assert found == {
        "dynamics-w": ("linf", 0),
        "dynamics-w-l2-train": ("l2", 0),
        "dynamics-w-linf-train": ("linf", 1),
        "dynamics-w-linf-train-2": ("linf", 2),
    }
    status, out, _ = dynamics(capsys, *words, "--seed", "4", "--out", "dynamics-w")
    assert "dynamics-w/dynamics.json was measured with another seed, and will be replaced" in out
    assert record("dynamics-w")["seed"] == 4


def test_other_weights_in_a_file_of_the_same_name_have_a_record_of_their_own(capsys, here):
    words = [*MOONS, "--count", "32", "--batch-size", "32", "--methods", "natural"]
    assert dynamics(capsys, *words)[0] == 0
    first = Path("dynamics-w/dynamics.csv").read_bytes()
    torch.save({"weight": 2 * WEIGHT, "bias": BIAS}, "w.pt")
    status, out, _ = dynamics(capsys, *words)
    assert status == 0
    assert "dynamics-w is of other settings, and stays as it is" in out
    assert Path("dynamics-w/dynamics.csv").read_bytes() == first
    assert record("dynamics-w")["digest"] != record("dynamics-w-linf-train")["digest"]


def test_files_are_told_apart_by_as_much_of_their_paths_as_it_takes(here):
    words = {"trained": False, "folder": Path("dynamics-w")}
    sources = [SimpleNamespace(checkpoint=Path(one, "k", "w.safetensors"), **words) for one in ("e1", "e2")]
    names = list(name_apart(sources))
    assert [name.endswith(f"{one}-k-w, w.safetensors") for name, one in zip(names, ("e1", "e2"), strict=True)] == [
        True
    ] * 2
    with pytest.raises(ValueError, match="the same network is named twice"):
        name_apart([sources[0], sources[0]])


def test_no_figures_of_an_earlier_measurement_stay_beside_a_record_without_any(capsys, here):
    words = [*MOONS, "--count", "32", "--batch-size", "32", "--methods", "natural", "--out", "there"]
    assert dynamics(capsys, *words)[0] == 0
    assert Path("there/dynamics-bars.svg").is_file()
    torch.save({"weight": WEIGHT, "bias": 9.0 * torch.tensor([1.0, -1.0])}, "w.pt")  # without a boundary in the box
    status, out, err = dynamics(capsys, *words)
    assert status == 0, err
    assert "no example counts: no figures\n" in out, "steps would change nothing"
    assert "every example is predicted as class 0, which is the label of" in err
    assert not list(Path("there").glob("dynamics-*.*g")), "of the networks before"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dynamics.csv", "time,position\n0,1\n"),
        ("dynamics.json", '{"radius": 1.0, "mass": 2.0}'),
        ("dynamics.npz", "no archive"),
        ("dynamics.npz", 46 * "x" + "PK\x05\x06\0\0\0\0\1\0\1\0\x2e" + 9 * "\0"),  # an archive's end alone
        ("dynamics-scatter.png", "a picture"),
    ],
)
def test_what_it_did_not_write_is_not_replaced(capsys, here, monkeypatch, name, content):
    words = [*MOONS, "--count", "32", "--batch-size", "32", "--methods", "natural", "--out", "there"]
    Path("there").mkdir()
    Path("there", name).write_text(content)
    with monkeypatch.context() as patch:
        patch.setattr("dyart.cli.dynamics.measure", lambda *_, **__: pytest.fail("measured"))
        status, _, err = dynamics(capsys, *words)
    assert (status, Path("there", name).read_text()) == (2, content)
    assert f"there/{name} is not of dyart dynamics, and would be replaced: choose another folder with --out" in err
    assert [path.name for path in Path("there").iterdir()] == [name]
    Path("there", name).unlink()
    assert dynamics(capsys, *words)[0] == 0
    assert dynamics(capsys, *words)[0] == 0, "its own are made anew"


def test_files_of_one_name_are_told_apart(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, folder in enumerate(("a", "b")):
        Path(folder).mkdir()
        network = build("mlp", 2, (2,), seed=number)
        described.save(
            network.state_dict(), Path(folder, "w.safetensors"), described.Description("mlp", 2, (2,), "moons")
        )
    words = ["--count", "32", "--batch-size", "32", "--methods", "natural"]
    status, _, err = dynamics(capsys, "a/w.safetensors", "b/w.safetensors", *words)
    assert status == 0, err
    found = {path.name: record(path)["named"]["weights"] for path in Path("runs/dynamics").iterdir() if path.is_dir()}
    assert found == {"a-w, w.safetensors": "a/w.safetensors", "b-w, w.safetensors": "b/w.safetensors"}
    status, _, err = dynamics(capsys, "a/w.safetensors", "a/w.safetensors", *words)
    assert (status, "named twice" in err) == (2, True)
