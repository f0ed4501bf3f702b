"""The engine in C, compiled on first use and cached; where there is no compiler numpy does the same, slower.

LOSSBENCH_NATIVE=0 switches it off; LOSSBENCH_NATIVE=/path/to.so takes one that was built elsewhere;
LOSSBENCH_NATIVE=sanitize builds one that watches its memory (run Python with LD_PRELOAD=libasan.so),
LOSSBENCH_NATIVE=sanitize-threads one that watches its threads (libtsan.so, setarch -R)."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from lossbench.workloads.transport import structures

FOLDER = Path(__file__).parent
SOURCES = sorted(FOLDER.glob("*.c"))
DIALECT = ["-fno-strict-aliasing", "-std=gnu11", "-D_GNU_SOURCE", "-pthread"]
FLAGS = ["-O3", *DIALECT, "-shared", "-fPIC"]
LIBRARIES = ["-lm"]
SWITCHED_OFF = "switched off"
SANITIZE = {
    "sanitize": ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "sanitize-threads": ["-g", "-O1", "-fsanitize=thread"],
}


class NoNativeError(Exception):
    """Why there is no compiled engine."""


@cache
def load() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    wanted = os.environ.get("LOSSBENCH_NATIVE", "")
    if wanted == "0":
        return f"{SWITCHED_OFF} by LOSSBENCH_NATIVE=0"
    try:
        path = Path(wanted) if wanted.startswith("/") else built(SANITIZE.get(wanted, []))
        return structures.typed(ctypes.CDLL(str(path)))
    except (NoNativeError, OSError) as error:
        return str(error)


def built(watched: list[str] | None = None) -> Path:
    """One library per source and machine; ranks that start together build it once."""
    folder = Path(os.environ.get("LOSSBENCH_CACHE") or Path.home() / ".cache" / "lossbench") / "native"
    flags = [*FLAGS, *(watched or [])]
    text = b"".join(path.read_bytes() for path in [*SOURCES, *FOLDER.glob("*.h")]) + " ".join(flags).encode()
    path = folder / f"engine-{hashlib.sha256(text).hexdigest()[:12]}-{platform.machine()}.so"
    if path.exists():
        return _trusted(path)
    named = (os.environ.get("CC", "cc"), "gcc", "clang")
    compiler = next((found for one in named if (found := shutil.which(one, path=_folders()))), None)
    if compiler is None:
        raise NoNativeError("no C compiler (apt-get install gcc)")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder / "engine.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _compile([compiler, *flags], path)
    return _trusted(path)


def _folders() -> str:
    """Of PATH those that it names in full: root compiles with nothing from the current folder."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if entry.startswith(os.sep)) or os.defpath


def _trusted(path: Path) -> Path:
    """Code that root runs was written by root: a cache that others can write to is not loaded from."""
    for place in (path, path.parent):
        found = place.stat()
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            raise NoNativeError(f"{place} can be written by others (chmod go-w, or set LOSSBENCH_CACHE)")
    return path


def _compile(command: list[str], path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / "engine.so"
        command = [*command, "-o", str(made), *map(str, SOURCES), *LIBRARIES]
        environment = {**os.environ, "PATH": _folders()}
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if result.returncode:
            said = result.stderr.strip().splitlines() or [f"it ended with {result.returncode} and said nothing"]
            raise NoNativeError(f"the C compiler failed: {said[-1]}")
        made.chmod(0o700)  # whatever the umask says: see _trusted
        os.replace(made, path)
