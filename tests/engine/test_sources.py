"""Which files a method or a network of one's own comes from."""

import hashlib
import sys
from pathlib import Path

import pytest

from dyart.engine.sources import own_sources

FILES = {
    "sourced/__init__.py": "from sourced import tools\n",
    "sourced/tools.py": "import math, torch\nSCALE = 2.0\n",
    "sourced/losses/__init__.py": "",
    "sourced/losses/kinds.py": "def kind():\n    from ..late import FACTOR\n    return FACTOR\n",
    "sourced/losses/mine.py": "import sourced_beside, dyart\nfrom .kinds import kind\ndef make():\n    return kind()\n",
    "sourced/late.py": "FACTOR = 1\n",
    "sourced/other.py": "import sourced.losses.mine\n",
    "sourced_alone.py": "import sourced_beside\ndef make():\n    return 1\n",
    "sourced_beside.py": "import sourced_installed\n",
    "site-packages/sourced_installed.py": "",
}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("sourced")]:
        del sys.modules[name]


def test_a_package_counts_as_far_as_it_is_imported(here):
    assert set(own_sources("sourced.losses.mine:make")) == {
        "sourced", "sourced.tools", "sourced.losses", "sourced.losses.kinds", "sourced.losses.mine",
    }  # fmt: skip
    sys.modules["sourced.losses.mine"].make()  # what a function imports counts once it is loaded
    import sourced.other  # noqa: F401  # loaded, and imported by none of them

    found = own_sources("sourced.losses.mine:make")
    assert "sourced.late" in found
    assert "sourced.other" not in found
    assert found["sourced.late"] == hashlib.sha256(b"FACTOR = 1\n").hexdigest()


def test_a_single_file_brings_those_beside_it_and_no_installed_ones(here):
    assert set(own_sources("sourced_alone:make")) == {"sourced_alone", "sourced_beside"}


def test_a_file_that_was_broken_since_is_another_file(here):
    before = own_sources("sourced_alone:make")
    (here / "sourced_alone.py").write_text("def make(:\n")
    assert own_sources("sourced_alone:make")["sourced_alone"] != before["sourced_alone"]


def test_this_package_is_none_of_ones_own(here):
    assert set(own_sources("dyart.methods.at:AT")) == {"dyart.methods.at"}
