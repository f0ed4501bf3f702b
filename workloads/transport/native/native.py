"""pump.c, compiled on first use and cached; None where there is no compiler: the same is then done in Python, slower.

LOSSBENCH_NATIVE=0 switches it off; LOSSBENCH_NATIVE=/path/to.so takes one that was built elsewhere."""

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

SOURCE = Path(__file__).with_name("pump.c")
OTHERS, BLOCKED, NO_GSO, FAILED, COMPLETE = 1, 2, 4, 8, 16
ADD_F32, ADD_BF16, PUT = 1, 2, 3
ENDPOINT_BYTES = 20


class In(ctypes.Structure):
    """`incoming` of pump.c."""

    _fields_ = [
        ("prefix", ctypes.c_uint8 * 24),
        ("target", ctypes.c_void_p),
        ("target_bytes", ctypes.c_uint64),
        ("arrived", ctypes.c_void_p),
        ("total", ctypes.c_uint32),
        ("segment", ctypes.c_uint32),
        ("mode", ctypes.c_uint32),
        ("used", ctypes.c_uint32),
        ("peer", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("highest", ctypes.c_uint32),
        ("duplicates", ctypes.c_uint32),
        ("received", ctypes.c_uint32),
    ]


class Out(ctypes.Structure):
    """`outgoing` of pump.c."""

    _fields_ = [
        ("prefix", ctypes.c_uint8 * 24),
        ("data", ctypes.c_void_p),
        ("data_bytes", ctypes.c_uint64),
        ("total", ctypes.c_uint32),
        ("segment", ctypes.c_uint32),
        ("batch", ctypes.c_uint32),
        ("block", ctypes.c_uint32),
        ("used", ctypes.c_uint32),
        ("cursor", ctypes.c_uint32),
        ("limit", ctypes.c_uint32),
        ("address", ctypes.c_uint8 * 28),
        ("address_bytes", ctypes.c_uint32),
    ]


class State(ctypes.Structure):
    """`pump` of pump.c."""

    _fields_ = [
        ("fd", ctypes.c_int32),
        ("wake", ctypes.c_int32),
        ("incomings", ctypes.c_uint32),
        ("outgoings", ctypes.c_uint32),
        ("in_", ctypes.POINTER(In)),
        ("out", ctypes.POINTER(Out)),
        ("room", ctypes.c_void_p),
        ("others", ctypes.c_void_p),
        ("others_bytes", ctypes.c_uint32),
        ("others_used", ctypes.c_uint32),
        ("error", ctypes.c_int32),
        ("peers", ctypes.c_uint32),
        ("endpoints", ctypes.c_void_p),
        ("strangers", ctypes.c_uint64),
    ]


class NoNativeError(Exception):
    """Why there is no compiled pump."""


@cache
def load() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    wanted = os.environ.get("LOSSBENCH_NATIVE", "")
    if wanted == "0":
        return "switched off by LOSSBENCH_NATIVE=0"
    try:
        return _typed(ctypes.CDLL(wanted if wanted.startswith("/") else str(_built())))
    except (NoNativeError, OSError) as error:
        return str(error)


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    state, flags = ctypes.POINTER(State), ctypes.POINTER(ctypes.c_int)
    library.pump_run.restype = None
    library.pump_run.argtypes = [state, ctypes.c_int, ctypes.c_int, ctypes.c_int, flags]
    library.pump_send.argtypes = [state, ctypes.c_int, flags]
    library.pump_receive.argtypes = [state, ctypes.c_int, flags]
    return library


def _built() -> Path:
    """One library per source and machine; ranks that start together build it once."""
    folder = Path(os.environ.get("LOSSBENCH_CACHE") or Path.home() / ".cache" / "lossbench") / "native"
    mark = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    path = folder / f"pump-{mark}-{platform.machine()}.so"
    if path.exists():
        return _trusted(path)
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoNativeError("no C compiler (apt-get install gcc)")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder / "pump.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _compile(compiler, path)
    return _trusted(path)


def _trusted(path: Path) -> Path:
    """Code that root runs was written by root: a cache that others can write to is not loaded from."""
    for place in (path, path.parent):
        found = place.stat()
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            raise NoNativeError(f"{place} can be written by others (chmod go-w, or set LOSSBENCH_CACHE)")
    return path


def _compile(compiler: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / "pump.so"
        command = [
            compiler,
            "-O3",
            "-fno-strict-aliasing",
            "-std=gnu11",
            "-shared",
            "-fPIC",
            "-o",
            str(made),
            str(SOURCE),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise NoNativeError(f"the C compiler failed: {result.stderr.strip().splitlines()[-1:]}")
        made.chmod(0o700)  # whatever the umask says: see _trusted
        os.replace(made, path)
