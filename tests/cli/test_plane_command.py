"""``dyart plane``, end to end on a small training."""

from dyart.cli import main, plane
from dyart.methods.dyart import DyART

SMALL = {"NATURAL": 70, "ROBUST": 3, "WATCHED": 24, "DRAWN": 16, "GRID": 31, "FLOW_STEPS": 4, "SOFT_GRID": 41}
SMALL |= {"SOFT_STEPS": 40}


class Variant(DyART):
    """With settings as the guide on methods has them: new ones, another default, and all others passed on."""

    def __init__(self, temperature: float = 0.05, r0: float = 0.2, **settings: object) -> None:
        super().__init__(r0=r0, **settings)
        self.temperature = temperature


def test_the_plane_is_drawn(tmp_path, monkeypatch, capsys):
    for name, value in SMALL.items():
        monkeypatch.setattr(plane, name, value)
    assert main(["plane", "--out", str(tmp_path), "--frames", "3", "--method", "at"]) == 0
    names = {path.name for path in tmp_path.iterdir() if path.stat().st_size > 2000}
    figures = {f"{name}.{suffix}" for name in ("movement", "curve", "soft") for suffix in ("pdf", "svg", "png")}
    assert names == {"animation.gif", *figures}
    assert "animation.gif" in capsys.readouterr().out


def test_a_plane_needs_two_frames(capsys):
    assert main(["plane", "--frames", "1"]) == 2
    assert "--frames must be at least 2" in capsys.readouterr().err


def test_a_variant_has_the_planes_settings_that_it_passes_on(monkeypatch):
    monkeypatch.setattr(plane, "find", {"own": Variant, "dyart": DyART}.__getitem__)
    own, usual = plane._method("own"), plane._method("dyart")
    assert own.temperature == 0.05
    settings = [(method.norm, method.lam, method.r0) for method in (own, usual)]
    assert settings[0] == settings[1] == ("l2", 10.0, 2 * plane.RADIUS)


def test_the_figures_are_the_same_with_any_number_of_frames(tmp_path, monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(plane, name, value)
    animated = []
    monkeypatch.setattr(plane, "write_animation", lambda frames, path, *_, **__: animated.append(frames) or path)
    monkeypatch.setattr(plane, "_soft", lambda *_: [])
    for frames in (2, 4):
        assert main(["plane", "--out", str(tmp_path / str(frames)), "--frames", str(frames), "--method", "at"]) == 0
    assert [[frame.step for frame in frames] for frames in animated] == [[0, 72], [0, 25, 50, 72]]
    for name in ("movement.svg", "curve.svg"):
        assert (tmp_path / "2" / name).read_bytes() == (tmp_path / "4" / name).read_bytes(), name
