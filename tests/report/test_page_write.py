"""The page as a file: whole, self-contained, small enough, and honest about what is missing."""

import json
import re
import shlex
import shutil
import sys

import numpy as np
import pytest
from page_cases import HOSTILE, Outline, evaluation, write_run

from dyart.cli import main
from dyart.engine.stored import RunError
from dyart.report.curves import read_watched
from dyart.report.page import write, write_page
from dyart.report.page.run import class_names, read_runs, short_names

# Lines that no monitor writes.
MONITORED = (
    "damaged\n",
    "[1]\n",
    '{"a": 1}\n',
    '{"step": "ten"}\n',
    '{"step": null, "margin_quantiles": {"0.5": 1}}\n',
    '{"step": 15, "margin_quantiles": [0.5]}\n',
    '{"step": 15, "margin_quantiles": {"0.5": "far"}}\n',
    '{"step": 15, "negative_share": {}, "margin_quantiles": {"0.5": 1}}\n',
)


def content(page: str) -> dict:
    """Return the data inside a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [write_run(folder / name, name, seed) for seed, name in enumerate(("at", "dyart"))]


def test_one_file_without_anything_from_outside(two):
    path = write_page(two)
    assert path == two[0].parent / "report.html"
    page = path.read_text(encoding="utf-8")
    assert len(page.encode()) < 8_000_000
    outline = Outline(page)
    links = [attributes[key] for _, attributes in outline.elements for key in ("src", "href") if key in attributes]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    assert [tag for tag, _ in outline.elements].count("script") == 3


def test_a_single_run_has_its_page_in_its_folder_and_no_switch(two):
    path = write_page(two[:1])
    assert path == two[0] / "report.html"
    assert 'id="switch"' not in path.read_text(encoding="utf-8")


def test_it_says_what_was_trained_and_what_came_out(two):
    text = Outline(write_page(two).read_text(encoding="utf-8")).text
    assert "AT learns from images moved by up to 0.1 (L∞, 10 steps of PGD) so that the loss rises." in text
    assert "pushes the boundary away where the margin is below 0.2" in text
    assert "Network cnn, BatchNorm on fashion-mini: 4 epochs, batches of 128" in text
    assert "It took 14 s on cpu, validation included." in text
    assert "Epoch 3 was best by validation: 72.0 % clean, 52.0 % robust at 0.1." in text
    assert "59.0 %" in text, "robust at 0.1 of the second run"
    assert "DyART against AT on the same examples: -10.0 points" in text


def test_what_differs_between_runs_is_marked(two):
    page = write_page(two).read_text(encoding="utf-8")
    marked = re.findall(r'<tr class="differs"><th scope="row"><code>(.*?)</code>', page)
    assert marked == ["method.name", "method.steps", "seed"]
    assert "differs" not in re.findall(r"<tr[^>]*>", write_page(two[:1]).read_text(encoding="utf-8"))


def test_a_bare_run_is_told_which_commands_add_what(tmp_path):
    folder = write_run(tmp_path / "my run", whole=False)
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    for command in ("dyart evaluate", "dyart margins", "dyart dynamics"):
        assert f"{command} '{folder}'" in text
    assert "--monitor.every 50" in text
    assert "nan" not in text.split()
    short = write_run(tmp_path / "short")
    (short / "monitor.jsonl").unlink()
    assert "--monitor.every 2 " in Outline(write_page([short]).read_text(encoding="utf-8")).text, "of forty steps"


def test_a_second_opinion_does_not_pass_for_the_margins(tmp_path):
    folder = write_run(tmp_path / "mine")
    (folder / "margins.json").write_text(json.dumps({"settings": {"norm": "l2", "boundary": "exact"}}))
    (folder / "margins.csv").rename(folder / "margins-apgd.csv")
    shutil.copy(folder / "margins-apgd.csv", folder / "margins.csv")
    assert read_runs([folder])[0].margins is None


def test_margins_alone_bring_their_own_norm_and_radius(tmp_path):
    folder = measured(tmp_path / "mine")
    (folder / "evaluation.json").unlink()
    record = {"settings": {"norm": "l2", "boundary": "exact", "model": "cnn"}, "data": "fashion-mini"}
    (folder / "margins.json").write_text(json.dumps(record))
    (run,) = read_runs([folder])
    assert (run.norm, run.has_radius) == ("l2", False)
    assert "--norm l2 --radii RADII" in run.command("evaluate"), "there are no usual ones"
    (folder / "margins.json").write_text(json.dumps(record | {"summary": {"robust": {"0.5": 0.4, "1": 0.2}}}))
    assert "--norm l2 --radii 0.5,1" in read_runs([folder])[0].command("evaluate")
    (folder / "margins.json").write_text(json.dumps(record))
    page = write_page([folder]).read_text(encoding="utf-8")
    assert "8/255" not in Outline(page).text
    shown = content(page)["figures"]
    assert not shown["histogram"]["layout"].get("shapes")
    line = shown["accuracy"]["data"][0]
    assert max(line["x"]) > 0.2, "as far as the margins go"
    assert line["y"][0] > 0.7 > 0.1 > line["y"][-1]
    (folder / "margins.json").write_text(json.dumps(record | {"summary": {"robust": {"0.1": 0.5, "0.2": 0.3}}}))
    assert str(read_runs([folder])[0].radius) == "0.2"


def test_margins_alone_bring_their_clean_accuracy(tmp_path):
    folder = measured(tmp_path / "mine")
    assert "clean accuracy 80.0 % 74.0" in Outline(write_page([folder]).read_text(encoding="utf-8")).text
    (folder / "evaluation.json").unlink()
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    # 48 of 60; the ends are those of Wilson's formula, by hand.
    assert re.search(r"clean accuracy 80\.0 % 68\.2 . 88\.2 %, 60 examples median margin", text)
    lines = (folder / "margins.csv").read_text().splitlines()
    (folder / "margins.csv").write_text(lines[0] + "\n")
    assert "clean accuracy" not in Outline(write_page([folder]).read_text(encoding="utf-8")).text


def test_a_run_of_other_data_is_not_described_by_the_recipe(tmp_path):
    folder = write_run(tmp_path / "mine")
    config = (
        (folder / "config.yaml").read_text().replace("name: cnn", "name: my_net:make").replace("fashion-mini}", "x}")
    )
    (folder / "config.yaml").write_text(config)
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert "Built on the recipe fashion-mini-cnn-at, with model.name my_net:make" in text
    assert "BatchNorm" not in text


@pytest.mark.parametrize(
    ("file", "garbage"),
    [
        ("environment.json", "[]"),
        ("evaluation.json", '{"images": 3}'),
        ("evaluation.json", '{"images": 3, "clean": 0.5, "robust": {"wide": 0.1}}'),
        ("margins.csv", "a,b\n1,2\n"),
        ("dynamics.csv", "index,label,margin\n1,2\n"),
        ("dynamics.json", '{"radius": 0.1}'),
        ("dynamics.npz", "no archive"),
        ("margins.csv", "index,label,margin\n1,2,far\n"),
        ("dynamics.csv", "index,label,margin,speed_at\n1,,0.1,1\n"),
        ("dynamics.csv", "index,label,margin,speed_at\n1,2,0.1,fast\n"),
        ("metrics.jsonl", "[1]\n"),
        ("metrics.jsonl", '{"kind": "epoch", "epoch": 0, "step": 3}\n'),
        ("evaluation-9/evaluation.json", "{}"),
        ("monitor.jsonl", '{"epoch": 1, "margin_quantiles": {"0.5": 1}}\n'),
        *(("monitor.jsonl", line) for line in MONITORED),
    ],
)
def test_a_damaged_file_is_named_and_the_page_written_all_the_same(tmp_path, file, garbage):
    folder = write_run(tmp_path / "run")
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(garbage, encoding="utf-8")
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert f"{file} cannot be read" in text
    assert "Not measured yet: margins through the training" not in text, "it was, whatever became of it"


def test_a_damaged_line_of_a_monitor_is_named_and_drops_no_other_without_a_word(tmp_path):
    path = write_run(tmp_path / "run") / "monitor.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    for line in MONITORED:
        path.write_text("".join([first, line, *others]))
        (run,) = read_runs([path.parent])
        (words,) = run.damaged
        assert re.match(r"monitor\.jsonl cannot be read: ValueError: line 2\b", words), words
        with pytest.raises(ValueError, match=r"monitor\.jsonl: line 2\b.*; mend that line or take it out$"):
            read_watched(path)


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("how", ["cut", "changed"])
def test_a_damaged_archive_is_named(tmp_path, place, how):
    path = write_run(tmp_path / "run") / "dynamics.npz"
    content = bytearray(path.read_bytes())
    middle = int(place * len(content))
    path.write_bytes(content[:middle] if how == "cut" else content[: middle - 9] + bytes(18) + content[middle + 9 :])
    (run,) = read_runs([path.parent])
    assert run.pictures is None
    assert "dynamics.npz cannot be read" in run.damaged[0]


def test_a_run_in_which_no_example_counts_says_so(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "dynamics.csv").write_text("index,label,rival,margin,alignment,optimal,speed_at\n")
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert "Nothing to show of run: no example is classified correctly" in text
    assert "Margin and speed of every example" not in text


def test_a_file_cut_short_by_a_crash_is_read_so_far(tmp_path):
    folder = write_run(tmp_path / "run")
    for file in ("metrics.jsonl", "monitor.jsonl"):
        path = folder / file
        path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    found = content(write_page([folder]).read_text(encoding="utf-8"))
    assert len(found["figures"]["validation"]["data"][0]["x"]) == 3
    assert len(found["ofRun"]["fan"][0]["data"][0]["x"]) == 3


def test_hostile_texts_are_escaped_everywhere(tmp_path):
    places = [write_run(tmp_path / name, "at", seed, HOSTILE) for seed, name in enumerate(HOSTILE[:2])]
    page = write_page(places, title=HOSTILE[2]).read_text(encoding="utf-8")
    outline = Outline(page)
    tags = [tag for tag, _ in outline.elements]
    assert tags.count("script") == 3
    assert not {"img", "svg", "b"} & set(tags)
    assert not any(key.startswith("on") for _, attributes in outline.elements for key in attributes)
    assert "\u2028" not in re.search(r'id="data">(.*?)</script>', page, re.S)[1]
    found = content(page)
    assert [run["name"] for run in found["runs"]] == list(HOSTILE[:2]), "and whole, once decoded"
    assert set(found["runs"][0]["points"]["classes"].values()) == set(HOSTILE[2:4])
    for text in HOSTILE[:2]:
        assert " ".join(text.split()) in outline.text


def test_the_policy_names_the_scripts_of_the_page(two):
    import base64
    import hashlib

    page = write_page(two).read_text(encoding="utf-8")
    policy = next(a["content"] for tag, a in Outline(page).elements if tag == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    for script in re.findall(r"<script>(.*?)</script>", page, re.S):
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy


def test_pictures_shrink_until_the_page_fits(two, monkeypatch):
    def pictures() -> list[int]:
        runs = content(write_page(two).read_text(encoding="utf-8"))["runs"]
        return [sum(place >= 0 for place in run["points"]["place"]) for run in runs]

    assert pictures() == [59, 59]
    whole = write_page(two).stat().st_size
    monkeypatch.setattr(write, "LARGEST", whole + write.RESERVE - 8000)
    assert write_page(two).stat().st_size < whole - 4000
    assert all(24 <= count < 59 for count in pictures())
    monkeypatch.setattr(write, "LARGEST", 1000)
    assert "sheet" not in content(write_page(two).read_text())["runs"][0]["points"]


def test_names_are_as_long_as_it_takes_to_tell_runs_apart(tmp_path):
    assert short_names([tmp_path / "a" / "x", tmp_path / "a" / "y"]) == ["x", "y"]
    assert short_names([tmp_path / "a" / "x", tmp_path / "b" / "x"]) == ["a/x", "b/x"]


def test_a_checkpoint_names_its_run_and_no_run_is_an_error(two, tmp_path):
    checkpoint = two[0] / "checkpoints" / "epoch-0003"
    checkpoint.mkdir(parents=True, exist_ok=True)
    assert read_runs([checkpoint])[0].folder == two[0]
    for name in ("config.yaml", "checkpoint.json"):
        (checkpoint / name).write_text("")
    assert read_runs([checkpoint])[0].folder == two[0]
    with pytest.raises(RunError, match=r"has no config\.yaml, evaluation\.json, margins\.csv, monitor\.jsonl"):
        read_runs([tmp_path])
    with pytest.raises(RunError, match="named twice"):
        read_runs([two[0], checkpoint])


def measured(folder):
    """Write what `dyart evaluate --model ... --out FOLDER` and `dyart margins ... --out FOLDER/margins.csv` leave."""
    write_run(folder)
    (folder / "dynamics.npz").rename(folder / "margins.pictures.npz")
    for path in folder.iterdir():
        if path.name not in ("evaluation.json", "margins.csv", "margins.pictures.npz"):
            path.unlink()
    record = evaluation() | {"model": "my.package:net", "weights": "my weights.pt", "drawn_from": 2000}
    (folder / "evaluation.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def test_a_network_trained_elsewhere_has_a_page_of_what_was_measured(tmp_path):
    folder = measured(tmp_path / "mine")
    text = write_page([folder]).read_text(encoding="utf-8")
    assert "Network my.package:net with the weights my weights.pt on fashion-mini: measured here" in text
    assert "evaluated on 200 of 2,000 test images only." in text
    assert "robust at 0.1" in text
    assert 'data-figure="accuracy"' in text
    assert 'data-figure="histogram"' in text
    for name in ("training", "dynamics"):
        assert f'id="{name}"' not in text
        assert f'href="#{name}"' not in text
    assert "Not measured yet" not in text
    (shown,) = content(text)["runs"]
    margins = read_runs([folder])[0].margins
    right = np.flatnonzero(np.isfinite(margins["margin"]))
    closest = right[np.argsort(margins["margin"][right])]
    assert shown["points"]["index"] == margins["index"][closest].tolist()
    assert shown["points"]["methods"] == []
    assert len(shown["points"]["place"]) == len(closest), "a picture of each"


def test_it_may_lie_inside_of_a_run(tmp_path):
    run = write_run(tmp_path / "run")
    assert read_runs([measured(run / "others" / "mine")])[0].folder == run / "others" / "mine"


def test_margins_without_pictures_say_so(tmp_path):
    folder = measured(tmp_path / "mine")
    (folder / "margins.pictures.npz").unlink()
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert "No pictures of mine: the examples are no images, or nothing in the folder keeps them." in text


def test_a_loop_of_ones_own_is_shown_by_what_its_monitor_saw(tmp_path):
    folder = write_run(tmp_path / "loop")
    for path in folder.iterdir():
        if path.name != "monitor.jsonl":
            path.unlink()
    page = write_page([folder]).read_text(encoding="utf-8")
    assert 'data-figure-of-run="fan"' in page
    assert content(page)["ofRun"]["fan"][0]["data"]
    assert f"dyart evaluate --model NAME --data DATA --out {folder}" in Outline(page).text
    assert "8/255" not in Outline(page).text


def test_what_is_missing_of_it_is_measured_by_a_command_that_names_it(tmp_path):
    folder = measured(tmp_path / "my net")
    (folder / "margins.csv").unlink()
    (run,) = read_runs([folder])
    command = run.command("margins")
    assert command in Outline(write_page([folder]).read_text(encoding="utf-8")).text
    words = shlex.split(command)
    assert words[:2] == ["dyart", "margins"]
    assert dict(zip(words[2::2], words[3::2], strict=True)) == {
        "--model": "my.package:net",
        "--weights": "my weights.pt",
        "--data": "fashion-mini",
        "--out": str(folder / "margins.csv"),
    }


def test_margins_in_another_norm_stay_where_they_are(tmp_path):
    folder = measured(tmp_path / "mine")
    (folder / "margins.json").write_text(json.dumps({"settings": {"norm": "l2", "boundary": "exact"}}))
    (run,) = read_runs([folder])
    assert run.margins is None
    assert run.command("margins").endswith(f"--out {folder / 'margins-linf.csv'}")
    record = {"settings": {"norm": "linf", "boundary": "exact"}}
    (folder / "margins-linf.json").write_text(json.dumps(record))
    shutil.copy(folder / "margins.csv", folder / "margins-linf.csv")
    assert read_runs([folder])[0].margins is not None, "what the command writes is found"


def test_it_stands_beside_a_run_and_is_found_in_a_folder_of_both(tmp_path, capsys):
    write_run(tmp_path / "all" / "run")
    measured(tmp_path / "all" / "other")
    assert main(["report", str(tmp_path / "all")]) == 0
    text = (tmp_path / "all" / "report.html").read_text(encoding="utf-8")
    assert "2 networks on fashion-mini" in text
    assert "What was measured" in text
    assert 'id="training"' in text


def test_class_names_need_no_data_on_the_disk(tmp_path):
    assert class_names("cifar10", str(tmp_path))[3] == "cat"
    assert class_names(str(tmp_path / "gone.npz")) == ()


def test_the_command(two, tmp_path, capsys):
    out = tmp_path / "deep" / "page.html"
    assert main(["report", *map(str, two), "--out", str(out), "--title", "Two & two"]) == 0
    assert str(out) in capsys.readouterr().out
    assert "<h1>Two &amp; two</h1>" in out.read_text(encoding="utf-8")
    assert main(["report", str(tmp_path)]) == 2
    assert "is no run" in capsys.readouterr().err
    mine = "<!DOCTYPE html>\n<title>My thesis</title>\n<p>about the dyart report</p>\n"
    (alone := write_run(tmp_path / "alone")).joinpath("report.html").write_text(mine)
    assert main(["report", str(alone)]) == 2
    assert "report.html is no page of dyart's" in capsys.readouterr().err
    assert (alone / "report.html").read_text() == mine
    with pytest.raises(SystemExit, match="2"):
        main(["report", *map(str, two), "--out", f"{tmp_path}/new/"])
    assert "new/ is a folder: name the file" in capsys.readouterr().err
    (beside := tmp_path / "earlier.html").write_text("a page")
    assert main(["report", str(two[0]), str(beside), "--out", str(out)]) == 0
    assert f"left out, since there is no run in it: {beside}" in capsys.readouterr().err
    assert main(["report", *map(str, two), "--out", str(tmp_path)]) == 2
    assert f"is a folder: name the HTML file, e.g. {tmp_path / 'report.html'}" in capsys.readouterr().err


def test_without_plotly_it_says_what_to_install(two, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert main(["report", str(two[0])]) == 2
    assert "pip install plotly" in capsys.readouterr().err
