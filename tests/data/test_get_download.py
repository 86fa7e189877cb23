"""Downloads from a local server that cuts, changes, refuses and lies."""

import errno
import re
from pathlib import Path

import numpy as np
import pytest
from data_cases import Site, md5, serve

from dyart.data import DataError, download
from dyart.data.download import AlteredError, OfflineError

DATA = np.random.RandomState(0).bytes(1_000_000)


@pytest.fixture
def site():
    with serve(Site(files={"set.bin": DATA})) as served:
        yield served


def fetch(site, folder, data=DATA, name="set.bin", progress=None):
    return download.download([site.base + name], folder / name, md5(data), len(data), progress, wait=0.01)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_with_progress(site, tmp_path):
    seen = []
    path = fetch(site, tmp_path, progress=lambda *values: seen.append(values))
    assert path.read_bytes() == DATA
    assert names(tmp_path) == ["set.bin"]
    assert seen[-1] == ("set.bin", len(DATA), len(DATA))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_file_that_is_there_is_not_loaded_again(site, tmp_path):
    fetch(site, tmp_path)
    fetch(site, tmp_path)
    assert len(site.asked) == 1


def test_a_cut_connection_is_continued_where_it_ended(site, tmp_path):
    site.cuts = [300_000, 400_000]
    assert fetch(site, tmp_path).read_bytes() == DATA
    assert site.asked == [("set.bin", None), ("set.bin", "bytes=300000-"), ("set.bin", "bytes=700000-")]


def test_a_connection_that_always_cuts_leaves_no_file_and_a_later_call_continues(site, tmp_path):
    site.cuts = [1000] * 100
    with pytest.raises(OfflineError, match=r"given up after 6 attempts \(.* cut after 6,000 of 1,000,000"):
        fetch(site, tmp_path)
    assert not (tmp_path / "set.bin").exists()
    site.cuts = []
    assert fetch(site, tmp_path).read_bytes() == DATA
    assert site.asked[-1] == ("set.bin", "bytes=6000-")
    assert names(tmp_path) == ["set.bin"]


def test_a_file_that_changed_on_the_server_is_loaded_from_the_start(site, tmp_path):
    other = DATA[::-1]
    site.cuts = [500_000]

    def change(_, done, __):
        if done >= 500_000:
            site.files["set.bin"], site.tag = other, '"v2"'

    assert fetch(site, tmp_path, other, progress=change).read_bytes() == other
    assert site.asked == [("set.bin", None), ("set.bin", "bytes=500000-")], "the server sends it whole at once"


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_without_a_strong_tag_nothing_is_continued(site, tmp_path, tag):
    site.tag, site.cuts = tag, [500_000]
    assert fetch(site, tmp_path).read_bytes() == DATA
    assert [wanted for _, wanted in site.asked] == [None, None]


def test_a_server_without_ranges_sends_all_again(site, tmp_path):
    site.ranges, site.cuts = False, [500_000]
    assert fetch(site, tmp_path).read_bytes() == DATA
    assert len(site.asked) == 2


def test_a_part_that_is_already_whole_is_taken(site, tmp_path):
    site.cuts = [1000] * 6
    with pytest.raises(OfflineError):
        fetch(site, tmp_path)
    (tmp_path / "set.bin.part").write_bytes(DATA)
    assert fetch(site, tmp_path).read_bytes() == DATA


def test_a_part_with_foreign_bytes_is_found_out_and_loaded_anew(site, tmp_path):
    site.cuts = [1000] * 6
    with pytest.raises(OfflineError):
        fetch(site, tmp_path)
    (tmp_path / "set.bin.part").write_bytes(b"x" * 7000)
    site.cuts = []
    assert fetch(site, tmp_path).read_bytes() == DATA


def test_an_altered_file_is_named_with_both_checksums_and_not_kept(site, tmp_path):
    site.files["set.bin"] = DATA[:-1] + b"x"
    with pytest.raises(DataError, match=rf"{site.base}set.bin gave a truncated or altered file.*{md5(DATA)}"):
        fetch(site, tmp_path)
    assert names(tmp_path) == []


def test_a_passing_error_of_the_server_is_tried_again(site, tmp_path):
    site.status = [503, 500]
    assert fetch(site, tmp_path).read_bytes() == DATA
    assert len(site.asked) == 3


def test_a_missing_file_is_not_asked_for_twice(site, tmp_path):
    with pytest.raises(OfflineError, match="answered 404"):
        fetch(site, tmp_path, name="other.bin")
    assert len(site.asked) == 1


def test_the_second_address_is_tried_when_the_first_fails(site, tmp_path):
    urls = ["http://127.0.0.1:9/set.bin", site.base + "gone.bin", site.base + "set.bin"]
    path = download.download(urls, tmp_path / "set.bin", md5(DATA), len(DATA), wait=0.01)
    assert path.read_bytes() == DATA


def test_an_address_that_gives_another_file_does_not_stop_the_next(site, tmp_path):
    site.files["page.html"] = b"<html>please log in</html>"
    urls = [site.base + "page.html", site.base + "set.bin"]
    path = download.download(urls, tmp_path / "set.bin", md5(DATA), len(DATA), wait=0.01)
    assert path.read_bytes() == DATA
    assert [name for name, _ in site.asked] == ["page.html", "set.bin"]
    assert names(tmp_path) == ["set.bin"]


def test_when_all_addresses_give_other_files_each_is_named(site, tmp_path):
    site.files |= {"one.bin": b"one", "two.bin": b"two"}
    urls = [site.base + "one.bin", site.base + "two.bin"]
    with pytest.raises(AlteredError, match=r"one.bin gave a truncated or altered file.*two.bin gave a truncated"):
        download.download(urls, tmp_path / "set.bin", md5(DATA), len(DATA), wait=0.01)
    with pytest.raises(OfflineError, match=r"one.bin gave a truncated or altered file.*gone.bin answered 404"):
        download.download([urls[0], site.base + "gone.bin"], tmp_path / "set.bin", md5(DATA), len(DATA), wait=0.01)
    assert names(tmp_path) == []


def test_without_a_network_the_reason_is_given(tmp_path):
    with pytest.raises(OfflineError, match=r"http://127.0.0.1:9/set.bin cannot be reached \(.*refused"):
        download.download(["http://127.0.0.1:9/set.bin"], tmp_path / "set.bin", md5(DATA), 0, wait=0.01)


def test_a_disk_that_fills_up_leaves_nothing(site, tmp_path, monkeypatch):
    opened = Path.open

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, block):
            self.file.write(block[:100])
            raise OSError(errno.ENOSPC, "No space left on device")

    def fill(path, *rest, **options):
        file = opened(path, *rest, **options)
        return Full(file) if path.name.endswith(".part") and "w" in "".join(rest[:1]) else file

    monkeypatch.setattr(Path, "open", fill)
    with pytest.raises(DataError, match=rf"{re.escape(str(tmp_path))} is full: 1.0 MB are needed"):
        fetch(site, tmp_path)
    assert names(tmp_path) == []
    assert len(site.asked) == 1


def test_a_folder_that_cannot_be_written_is_no_matter_of_the_network(site, tmp_path, monkeypatch):
    opened = Path.open

    def refuse(path, *rest, **options):
        if path.name.endswith(".part"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError):
        fetch(site, tmp_path)
    assert len(site.asked) == 1
