"""Files of a data set: from --data-dir / LOSSBENCH_DATA, from the cache, or downloaded once, resumed, and checked."""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lossbench.workloads.errors import DataError

BROWSER = {"User-Agent": "Mozilla/5.0 (lossbench)"}  # one of the mirrors refuses Python's own name
CHUNK = 1 << 18
PATIENCE_S = 30


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where one or several files come from. `member`: pattern of the name inside an archive."""

    url: str
    archive: str = ""  # "", "zip" or "tar"


@dataclass(frozen=True, kw_only=True)
class File:
    """`name` is its path below the data folder; `sha256` of its content, whatever it was packed in."""

    name: str
    sha256: str
    sources: tuple[Source, ...]
    member: str = ""


def data_folder(given: str = "") -> Path | None:
    chosen = given or os.environ.get("LOSSBENCH_DATA", "")
    return Path(chosen) if chosen else None


def cache_folder() -> Path:
    base = (
        os.environ.get("LOSSBENCH_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lossbench"
    )
    return Path(base) / "data"


def read(file: File, folder: Path | None) -> bytes:
    """The file's content, checked: from the user's own folder, the cache, or downloaded into the cache."""
    for place in (folder, cache_folder()) if folder is not None else (cache_folder(),):
        content = _from_disk(place / file.name)
        if content is None:
            continue
        if hashlib.sha256(content).hexdigest() == file.sha256:
            return content
        if place == folder:
            raise DataError(
                f"{place / file.name} is damaged or another version: replace it, or drop --data-dir to download"
            )
    with _one_at_a_time(file):
        content = _from_disk(cache_folder() / file.name)  # another rank may have been faster
        if content is not None and hashlib.sha256(content).hexdigest() == file.sha256:
            return content
        return _download(file)


def _download_allowed() -> bool:
    return os.environ.get("LOSSBENCH_OFFLINE", "") in ("", "0")


def _from_disk(path: Path) -> bytes | None:
    """Plain, or packed with xz beside where it would be."""
    packed = path.with_name(path.name + ".xz")
    try:
        if path.exists():
            return path.read_bytes()
        return lzma.decompress(packed.read_bytes()) if packed.exists() else None
    except (OSError, lzma.LZMAError) as error:
        raise DataError(f"{path} can't be read ({error}): replace it") from None


@contextmanager
def _one_at_a_time(file: File) -> Iterator[None]:
    """Ranks start together: one downloads, the others wait for it."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / (file.name.replace("/", "_") + ".lock"), "w")  # noqa: SIM115
    except OSError as error:
        raise DataError(f"the cache {folder} can't be written ({error.strerror}): set LOSSBENCH_CACHE") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(file: File) -> bytes:
    if not _download_allowed():
        raise DataError(
            f"{file.name} is not here and LOSSBENCH_OFFLINE is set: give --data-dir, or use an embedded data set"
        )
    reasons = []
    for source in file.sources:
        try:
            name = f"{hashlib.sha256(source.url.encode()).hexdigest()[:12]}-{source.url.rsplit('/', 1)[-1]}"
            packed = fetch(source.url, cache_folder() / "downloads" / name)
            content = _unpack(packed, source, file)
        except (OSError, DataError, urllib.error.URLError, tarfile.TarError, zipfile.BadZipFile) as error:
            reasons.append(f"{source.url}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() == file.sha256:
            _keep(cache_folder() / file.name, content)
            if not source.archive:  # an archive may hold the next file, too
                packed.unlink(missing_ok=True)
            return content
        packed.unlink(missing_ok=True)
        reasons.append(f"{source.url}: the checksum differs")
    raise DataError(
        f"{file.name} could not be downloaded ({'; '.join(reasons)}): look at the network, or give --data-dir"
    )


def _unpack(packed: Path, source: Source, file: File) -> bytes:
    wanted = file.member or file.name
    if source.archive == "zip":
        with zipfile.ZipFile(packed) as archive:
            return archive.read(next(n for n in archive.namelist() if n.endswith(wanted)))
    if source.archive == "tar":
        with tarfile.open(packed) as archive:
            member = archive.extractfile(next(m for m in archive.getmembers() if m.name.endswith(wanted)))
            if member is None:
                raise DataError(f"{wanted} is not a file in {packed.name}")
            return member.read()
    return packed.read_bytes()


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)


def fetch(url: str, to: Path) -> Path:
    """Into `to`; what is there already as `to`.part is continued, not fetched again."""
    if to.exists():
        return to
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(to.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={**BROWSER, **({"Range": f"bytes={have}-"} if have else {})})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            resumed = answer.status == 206
            total = have * resumed + int(answer.headers.get("Content-Length") or 0)
            with open(part, "ab" if resumed else "wb") as file, _bar(to.name, total, have * resumed) as advance:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    advance(len(chunk))
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is missing, or the file changed: its checksum will tell
            part.replace(to)
            return to
        raise
    if total and part.stat().st_size < total:
        raise DataError(
            f"the connection ended after {part.stat().st_size} of {total} bytes; the next try goes on from there"
        )
    part.replace(to)
    return to


@contextmanager
def _bar(name: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, a line every ten seconds elsewhere."""
    if sys.stderr.isatty():
        from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

        with Progress(*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn()) as bar:
            task = bar.add_task(name, total=total or None, completed=done)
            yield lambda count: bar.advance(task, count)
        return
    state = {"done": done, "said": time.monotonic()}

    def advance(count: int) -> None:
        state["done"] += count
        if time.monotonic() - state["said"] > 10:
            state["said"] = time.monotonic()
            with suppress(OSError):
                print(f"{name}: {state['done'] / 1e6:.0f} of {total / 1e6:.0f} MB", file=sys.stderr, flush=True)

    yield advance
