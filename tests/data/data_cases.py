"""Small sets in the formats of the published ones, and a server that misbehaves on request."""

import gzip
import hashlib
import http.server
import io
import json
import pickle
import tarfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dyart.data import obtain
from dyart.data.raw import Raw
from dyart.data.registry import REGISTRY, Remote

RANDOM = np.random.RandomState(0)


def numbered(count, channels=3, size=32, classes=10, seed=0):
    """Return random images [N, C, H, W] and labels that hold every class."""
    random = np.random.RandomState(seed)
    images = random.randint(0, 256, (count, channels, size, size), dtype=np.uint8)
    return images, (np.arange(count) % classes).astype(np.int64)


def raw_set(train=40, test=20, channels=1, size=4, classes=4):
    names = tuple("abcdefghij"[:classes])
    return Raw(*numbered(train, channels, size, classes), *numbered(test, channels, size, classes, 1), names)


def idx_bytes(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    return head + array.astype(np.uint8).tobytes()


def idx_files(train=60, test=20):
    """Return the four gzipped files of a small MNIST, by name."""
    files = {}
    for prefix, count, seed in (("train", train, 0), ("t10k", test, 1)):
        images, labels = numbered(count, 1, 28, 10, seed)
        files[f"{prefix}-images-idx3-ubyte.gz"] = gzip.compress(idx_bytes(images[:, 0]), mtime=0)
        files[f"{prefix}-labels-idx1-ubyte.gz"] = gzip.compress(idx_bytes(labels), mtime=0)
    return files


def write(folder, files):
    for name, data in files.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Path(folder)


def md5(data):
    return "md5:" + hashlib.md5(data).hexdigest()


def small_mnist(monkeypatch, files, base="http://127.0.0.1:9/", train=60, test=20, **changes):
    """Register a small MNIST that is published as ``files`` below the address ``base``."""
    remotes = tuple(Remote(name, (base + name,), md5(data), len(data)) for name, data in files.items())
    entry = replace(REGISTRY["mnist"], train=train, test=test, files=remotes, digests={}, **changes)
    monkeypatch.setitem(obtain.REGISTRY, "mnist", entry)
    return entry


def small_cifar(monkeypatch, name, files, train, test, **changes):
    entry = replace(REGISTRY[name], files=files, train=train, test=test, **({"digests": {}, "inner": {}} | changes))
    monkeypatch.setitem(obtain.REGISTRY, name, entry)
    return entry


def batch(images, labels, key="labels", names=()):
    """Return a CIFAR batch as Python 2 wrote it: protocol 2, byte strings as keys."""
    content = {"data": images.reshape(len(images), -1), key: [int(label) for label in labels]}
    if len(names):
        content["filenames"] = list(names)
    return pickle.dumps(content, protocol=2)


def tar(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def picture(pixels, kind="PNG", **options):
    """Return uint8 [H, W], [H, W, 3] or [H, W, 4] as the bytes of a picture file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def npm_files(images, labels, test_images, test_labels):
    """Return the files of the npm package: PNGs with one image per row, and labels as JSON."""

    def grid(part):
        return picture(part.transpose(0, 2, 3, 1).reshape(len(part), 1024, 3))

    files = {f"package/data_batch_{k + 1}.png": grid(part) for k, part in enumerate(np.split(images, 5))}
    files["package/test_batch.png"] = grid(test_images)
    files["package/train_lables.json"] = json.dumps(labels.tolist()).encode()
    files["package/test_lables.json"] = json.dumps(test_labels.tolist()).encode()
    return files


@dataclass
class Site:
    """What the server serves, how it misbehaves, and what it was asked."""

    files: dict = field(default_factory=dict)
    cuts: list = field(default_factory=list)  # bytes after which each next answer is cut
    ranges: bool = True
    tag: str | None = '"v1"'
    status: list = field(default_factory=list)  # errors for the next requests
    asked: list = field(default_factory=list)  # (name, Range header)
    base: str = ""


@contextmanager
def serve(site):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            name, wanted = self.path.lstrip("/"), self.headers.get("Range")
            site.asked.append((name, wanted))
            if site.status:
                return self.send_error(site.status.pop(0))
            if name not in site.files:
                return self.send_error(404)
            data, start = site.files[name], 0
            if wanted and site.ranges and self.headers.get("If-Range") in (None, site.tag):
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(data):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(data)}")
                    self.send_header("Content-Length", "0")
                    return self.end_headers()
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            if site.tag:
                self.send_header("ETag", site.tag)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            rest = data[start:]
            if site.cuts:
                self.wfile.write(rest[: site.cuts.pop(0)])
                self.close_connection = True
                return None
            self.wfile.write(rest)
            return None

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # a client that hangs up is part of the tests
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    site.base = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def pictures(folder, size=8, classes=("ant", "bee"), count=10, parts=("train/", "test/")):
    """Write pictures of every class into every part; return the folder, and the files by name."""
    random = np.random.RandomState(0)
    files = {}
    for part in parts:
        for name in classes:
            for k in range(count):
                files[f"{part}{name}/{k:02d}.png"] = picture(random.randint(0, 256, (size, size, 3), dtype=np.uint8))
    return write(folder, files), files
