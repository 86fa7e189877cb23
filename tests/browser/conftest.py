"""One browser for all tests of the page, and pages made of run folders written here."""

from pathlib import Path

import pytest
from chromium import Chromium, browser
from page_cases import HOSTILE, write_run

from dyart.report.page import write_page


def pytest_collection_modifyitems(items):
    """Mark everything here; without a browser nothing is set up."""
    absent = pytest.mark.skip(reason="no chromium or chrome on this machine (Debian: apt-get install chromium)")
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)
            if browser() is None:
                item.add_marker(absent)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    tab = Chromium(tmp_path_factory.mktemp("profile"))
    yield tab
    tab.close()


@pytest.fixture
def tab(chromium):
    """The browser with a desktop's window, in the light."""
    chromium.window(1280, 900)
    chromium.media(prefers_color_scheme="light")
    return chromium


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory):
    """A page about two runs with everything in their folders."""
    folder = tmp_path_factory.mktemp("runs")
    places = [write_run(folder / name, name, seed) for seed, name in enumerate(("at", "dyart"))]
    return write_page(places)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """A page whose every text tries to be more than text."""
    folder = tmp_path_factory.mktemp("hostile")
    places = [write_run(folder / name, "at", seed, HOSTILE) for seed, name in enumerate(HOSTILE[:2])]
    return write_page(places, title=HOSTILE[0])


@pytest.fixture(scope="session")
def without_pictures(tmp_path_factory):
    """A page about a run whose examples are vectors."""
    folder = write_run(tmp_path_factory.mktemp("vectors") / "run")
    (folder / "dynamics.npz").unlink()
    return write_page([folder])


@pytest.fixture(scope="session")
def second_alone(tmp_path_factory):
    """A page about two runs, of which only the second was measured."""
    folder = tmp_path_factory.mktemp("second")
    return write_page([write_run(folder / "first", whole=False), write_run(folder / "second", "dyart")])


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """A page about a run that has nothing but its configuration."""
    folder = tmp_path_factory.mktemp("bare")
    return write_page([write_run(folder / "bare", "dyart", 0, whole=False)])
