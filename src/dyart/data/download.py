"""Downloads that survive a bad connection: resumed, retried, checked, and in place only when whole."""

import hashlib
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dyart.data.errors import DataError, check_room, explain_full_disk

Progress = Callable[[str, int, int], None]

CHUNK = 1 << 18
ATTEMPTS = 6
TIMEOUT = 30.0


class OfflineError(DataError):
    """No address gave the file."""


class AlteredError(DataError):
    """What was given is whole, and another file."""


class _CutError(Exception):
    """The connection ended before the file did."""


# Not every OSError: a folder that cannot be written is no matter of the network.
_NETWORK = (_CutError, urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)


def digest_of(path: Path, checksum: str) -> str:
    """Return the digest of a file in the form of ``checksum``: ``md5:...`` or ``sha256:...``."""
    kind = checksum.split(":", 1)[0]
    with path.open("rb") as file:
        # MD5 is what most of these sets publish; it guards against damage here, not against an attacker.
        digest = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{digest.hexdigest()}"


def download(
    urls: Sequence[str], target: Path, checksum: str, size: int, progress: Progress | None = None, wait: float = 1.0
) -> Path:
    """Return ``target`` with the checked content of one of ``urls``, tried in turn until one gives the right file.

    A cut connection is taken up where it ended, also by a later call: the part that arrived lies beside ``target`` as
    ``.part``, and is continued only if the server says that the file is still the same. ``target`` appears when the
    checksum is right.

    Args:
        urls: addresses of the same file.
        target: where it goes. If it is there with the right checksum, nothing is loaded.
        checksum: ``md5:`` or ``sha256:`` and the digits.
        size: bytes, for the room on the disk; 0 if unknown.
        progress: called with (file name, bytes so far, bytes in all or 0).
        wait: seconds before the second attempt, doubled with each further one.

    Raises:
        AlteredError: all of them gave another file.
        OfflineError: none gave the right file, and some gave none at all.
    """
    if target.exists() and digest_of(target, checksum) == checksum:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    check_room(target.parent, max(size - (part.stat().st_size if part.exists() else 0), 0))
    reasons, altered = [], 0
    for url in urls:
        try:
            _from_url(url, target, part, checksum, size, progress, wait)
        except (OfflineError, AlteredError) as error:
            reasons.append(str(error))
            altered += isinstance(error, AlteredError)
        else:
            return target
    raise (AlteredError if altered == len(urls) else OfflineError)("; ".join(reasons))


def _from_url(
    url: str, target: Path, part: Path, checksum: str, size: int, progress: Progress | None, wait: float
) -> None:
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(min(wait * 2 ** (attempt - 1), 30.0))
        had = part.stat().st_size if part.exists() else 0
        try:
            with explain_full_disk(target.parent, size):
                _fetch(url, part, target.name, progress)
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (408, 429):
                raise OfflineError(f"{url} answered {error.code} {error.reason}") from error
            reason = f"{error.code} {error.reason}"
        except _NETWORK as error:
            got = part.stat().st_size if part.exists() else 0
            reason = str(getattr(error, "reason", None) or error or type(error).__name__)
            if got == had and attempt >= 1:  # twice nothing at all: no network, rather than a bad one
                raise OfflineError(f"{url} cannot be reached ({reason})") from error
        except DataError:  # the disk is full
            _forget(part)
            raise
        else:
            found = digest_of(part, checksum)
            if found == checksum:
                os.replace(part, target)
                _forget(part)
                return
            _forget(part)
            if had == 0:  # one whole answer, and it is another file
                raise AlteredError(
                    f"{url} gave a truncated or altered file: its checksum is {found}, and {checksum} was expected"
                )
            reason = "the continued file has a wrong checksum"
    raise OfflineError(f"{url}: given up after {ATTEMPTS} attempts ({reason})")


def _fetch(url: str, part: Path, name: str, progress: Progress | None) -> None:
    """Load the file, or what is missing of it, into ``part``."""
    state = part.with_name(part.name + ".json")
    known = _state(state)
    have = part.stat().st_size if part.exists() and known.get("url") == url and known.get("tag") else 0
    headers = {"User-Agent": "dyart", "Accept-Encoding": "identity"}
    if have:
        # If the file changed since, the server sends it whole instead of the rest.
        headers |= {"Range": f"bytes={have}-", "If-Range": known["tag"]}
    request = urllib.request.Request(url, headers=headers)
    try:
        # The addresses are the registry's own, and the content is compared with its checksum before it is used.
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)  # nosec B310
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is left to send, or the rest is not what we think: the checksum tells
            if error.headers.get("Content-Range", "").endswith(f"/{have}"):
                return
            _forget(part)
            raise _CutError("the server refused to continue") from error
        raise
    with answer:
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            if answer.status == 206:
                _forget(part)
                raise _CutError("the server continued at a wrong place")
            have = 0
        left = answer.headers.get("Content-Length")
        total = have + int(left) if left is not None else 0
        tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        if tag.startswith("W/"):  # a weak tag does not promise the same bytes
            tag = answer.headers.get("Last-Modified") or ""
        with part.open("ab" if have else "wb") as file:
            state.write_text(json.dumps({"url": url, "tag": tag}), encoding="utf-8")
            while block := answer.read(CHUNK):
                file.write(block)
                have += len(block)
                if progress is not None:
                    progress(name, have, total)
    if total and have < total:
        raise _CutError(f"the connection was cut after {have:,} of {total:,} bytes")


def _state(path: Path) -> dict[str, str]:
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    part.with_name(part.name + ".json").unlink(missing_ok=True)
