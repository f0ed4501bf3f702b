"""Files that others may look at, link to or fight over: written whole, made private, locked by who lives."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import secrets
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lossbench.errors import NotAbleError

TRY_AGAIN_S = 0.02
LARGEST = 10**300
ROOM = "free some space"


def write_durably(path: Path, text: str) -> None:
    """All or nothing, even if the machine stops. The name in between can't be guessed, so nobody can put a link there;
    who may read it is up to the umask."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with open(made, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def private_folder(path: Path) -> None:
    """Ours alone, or an error: somebody else's folder in its place could be read, or emptied, by them."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise NotAbleError(f"{path} is not a folder of this user", next_step="look who made it, and remove it")
    if found.st_mode & 0o077:
        path.chmod(0o700)


class Held:
    """A folder by its handle: what is written goes into it, whatever else is given its name meanwhile. `way` leads
    there, for other processes of ours too, as long as this one lives."""

    def __init__(self, path: Path, *, within: int | None = None) -> None:
        self.handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
        self._end = weakref.finalize(self, os.close, self.handle)
        self.way = Path(f"/proc/{os.getpid()}/fd/{self.handle}")
        if not self._leads_here():  # another pid namespace's /proc
            self.way = Path(os.path.abspath(path))

    def _leads_here(self) -> bool:
        with suppress(OSError):
            return os.path.samestat(self.way.stat(), os.fstat(self.handle))
        return False

    @classmethod
    def ours(cls, path: Path) -> Held:
        """Made now, or before by us: in somebody else's folder links may lead anywhere."""
        new = not os.path.lexists(path)
        path.mkdir(exist_ok=True)
        one = cls(path)
        if new:
            one._to_us_alone()
        if not one._is_ours():
            raise NotAbleError(f"{known_as(path)} belongs to another user", next_step="give another folder with --out")
        return one

    def again(self) -> Held:
        """By a handle of its own, for a lock that goes with it."""
        return Held(Path(), within=self.handle)

    def _to_us_alone(self) -> None:
        """Whoever owns the folder above may have said who else writes into new ones (a default ACL)."""
        with suppress(OSError):
            os.removexattr(self.handle, "system.posix_acl_default")
            os.removexattr(self.handle, "system.posix_acl_access")
            os.fchmod(self.handle, 0o755)

    def _is_ours(self) -> bool:
        """By what a new file in it belongs to: file systems of other machines map owners."""
        owner = os.fstat(self.handle).st_uid
        if owner == os.geteuid():
            return True
        name = f".{secrets.token_hex(8)}"
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self.handle)
        try:
            return os.fstat(made).st_uid == owner
        finally:
            os.close(made)
            os.unlink(name, dir_fd=self.handle)

    def close(self) -> None:
        self._end()


def known_as(path: Path) -> Path:
    """By the name that people know, where the way leads through a handle."""
    handle = Path(*path.parts[:5])
    if path.parts[1:2] != ("proc",) or path.parts[3:4] != ("fd",):
        return path
    try:
        return Path(handle.readlink(), *path.parts[5:])
    except OSError:
        return path


def why(error: OSError, *, full: str = ROOM) -> str:
    """The next step after a file could not be written: rights are not space."""
    if isinstance(error, PermissionError):
        return "check its permissions, or use sudo"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "check the path"
    if isinstance(error, FileExistsError | IsADirectoryError):
        return "give another name: this one is taken"
    if error.errno == errno.EROFS:
        return full.removeprefix(f"{ROOM} or ").replace(ROOM, "nothing can be written there")
    return full


@contextmanager
def disk_errors(place: Path, *, full: str = f"{ROOM} or give --out") -> Iterator[None]:
    """A full or read-only disk ends the run with one clear line."""
    try:
        yield
    except OSError as error:
        raise NotAbleError(f"{place} can't be written ({error.strerror})", next_step=why(error, full=full)) from None


def no_room(folder: Path) -> str:
    """What to say where a disk is full, since a program on it could not; empty where it is not."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return ""
    full = disk.f_bavail * disk.f_frsize < 4096 or (disk.f_files and not disk.f_favail)
    return f"no room is left on the disk of {known_as(folder)}: what a program said there is not whole" if full else ""


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that everybody reads: it has no word for infinity, or for what is not a number."""
    return json.dumps(finite(value), indent=indent, default=str, allow_nan=False)


def finite(value: Any, refused: Callable[[str], object] = lambda _: None, name: str = "") -> Any:
    """The same with None for every number that is none, or beyond what arithmetic can take; `refused` hears of it."""
    if isinstance(value, dict):
        return {finite(str(key)): finite(one, refused, str(key)) for key, one in value.items()}
    if isinstance(value, str):  # half a character, as JSON allows it, is none
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list | tuple):
        return [finite(one, refused, name) for one in value]
    if isinstance(value, float) and not math.isfinite(value) or isinstance(value, int) and abs(value) > LARGEST:
        refused(name)
        return None
    return value


class Lock:
    """flock on a file: the kernel lets go of it with the last descriptor, however a process ends, and knows no pids."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, *, shared: bool = False, wait_s: float = 0.0, make: bool = True) -> Lock | None:
        """None if others keep it for longer than `wait_s`, or if there is no such file and none may be made."""
        limit = time.monotonic() + wait_s
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0)
        how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        while True:
            try:
                descriptor = os.open(path, flags, 0o600)
            except FileNotFoundError:
                return None
            try:
                fcntl.flock(descriptor, how)
            except BlockingIOError:
                os.close(descriptor)
            else:
                if _same(descriptor, path):
                    return cls(descriptor)
                os.close(descriptor)  # the one before us has removed it
                continue
            if time.monotonic() >= limit:
                return None
            time.sleep(TRY_AGAIN_S)

    def say(self, text: str) -> None:
        """In the file, for whoever finds it locked."""
        os.truncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _same(descriptor: int, path: Path) -> bool:
    mine = os.fstat(descriptor)
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


@contextmanager
def locked(path: Path, *, wait_s: float, busy: str) -> Iterator[None]:
    lock = Lock.take(path, wait_s=wait_s)
    if lock is None:
        raise NotAbleError(busy, next_step="wait for it, or end it")
    try:
        yield
    finally:
        lock.release()
