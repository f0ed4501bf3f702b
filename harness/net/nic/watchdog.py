"""Takes away what stands on a NIC when its time is over: `python -m lossbench.net.nic.watchdog ID NUMBER...`.

Two of them, armed before the first change. Each holds a lock that the kernel lets go of when it dies; the other notices
and starts a new one. What both do is written in the journal: whoever comes first undoes it, half an undo is finished by
the other. When both are killed at once the kernel's own deadline still ends the loss, and `lossbench clean` removes
what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from lossbench.errors import NotAbleError
from lossbench.files import Lock
from lossbench.net.host import namespaces
from lossbench.net.host.place import Here
from lossbench.net.journal import Journal
from lossbench.net.nic import state, takedown
from lossbench.net.nic.state import State
from lossbench.net.nic.way.clock import Clock
from lossbench.net.tc.rtnl import Reader
from lossbench.processes import inherited, module_command, module_environment, which

MODULE = "lossbench.net.nic.watchdog"
NUMBERS = (0, 1)
LOOK_S, TRY_AGAIN_S = 0.2, 1.0
UNREADABLE = 10  # looks in a row: then its state is damaged
BROKEN, BROKEN_LOOKS = "a device that packets are led over is gone or down", 2
WORKER = "its watchdog"
BOOT_S = 10.0  # for a new watchdog to come up, before another is started
UNIT_S = 5.0  # for systemd to answer
ARMED_S = 90.0  # two starts of Python on a full machine, or an emulated one


def arm(book: Journal) -> None:
    """Both are alive when this returns; nothing was changed yet."""
    for number in NUMBERS:
        _lock(book, number).touch(mode=0o600)
    if (missing := _missing(book)) and start(book, missing) and not _up(book, BOOT_S):
        start(book, _missing(book), units=False)  # a unit that was started and did not come up
    if not _up(book, ARMED_S):
        raise NotAbleError("the watchdogs did not come up: nothing was changed", next_step="try again")


def _missing(book: Journal) -> list[int]:
    return [number for number in NUMBERS if not alive(book, number)]


def _up(book: Journal, wait_s: float) -> bool:
    """Whether they hold their locks. That a unit was started says only that its program could be."""
    limit = time.monotonic() + wait_s
    while _missing(book):
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def alive(book: Journal, number: int) -> bool:
    path = _lock(book, number)
    lock = Lock.take(path, make=False)
    if lock is not None:
        lock.release()
    return lock is None and path.exists()


def _lock(book: Journal, number: int) -> Path:
    return book.folder / f"watchdog{number}"


def start(book: Journal, numbers: Sequence[int], *, units: bool = True) -> bool:
    """Nobody's children: units of systemd, which no end of a session takes along; else orphans in a session of their
    own, the second made by the first, which has everything loaded by then. Whether they are units."""
    environment = module_environment({"PATH": os.environ.get("PATH", os.defpath), "PYTHONSAFEPATH": "1"})
    if units and all(by_systemd(book.id, n, module_command(MODULE, book.id, str(n)), environment) for n in numbers):
        return True
    command = module_command(MODULE, book.id, *(str(number) for number in numbers))

    def begin() -> None:
        null = subprocess.DEVNULL
        subprocess.Popen(command, env=environment, stdin=null, stdout=null, stderr=null, close_fds=True, cwd="/")

    _orphaned(begin)
    return False


def _orphaned(what: Callable[[], object]) -> None:
    """Done by a process that is nobody's child and of no session of others."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            what()
    finally:
        os._exit(0)


def by_systemd(network_id: str, number: int, command: list[str], environment: dict[str, str]) -> bool:
    if which("systemd-run") is None or not _managed():
        return False
    line = systemd_command(network_id, number, command, environment)
    try:
        done = subprocess.run(line, capture_output=True, check=False, timeout=UNIT_S, env=inherited())
    except (OSError, subprocess.TimeoutExpired):  # a manager that does not answer
        return False
    return done.returncode == 0


def systemd_command(network_id: str, number: int, command: list[str], environment: dict[str, str]) -> list[str]:
    unit = f"lossbench-nic-{network_id}-{number}-{os.getpid()}"
    settings = [f"--setenv={name}={value}" for name, value in environment.items()]
    # exec: it returns once the program runs, not once there is a process that is to become it.
    how = ["--collect", f"--unit={unit}", "--property=Type=exec", "--property=KillMode=process"]
    return ["systemd-run", "--quiet", *how, *settings, *command]


def _managed() -> bool:
    """By systemd, and in the initial network namespace: a unit would not be in another one."""
    try:
        return Path("/run/systemd/system").is_dir() and (
            Path("/proc/1/ns/net").stat().st_ino == Path("/proc/self/ns/net").stat().st_ino
        )
    except OSError:
        return False


def watch(book: Journal, number: int) -> None:
    """Nothing that goes wrong in one look keeps it from the next."""
    # Whoever asks whether we live holds it for a moment; the maker has made the file.
    mine = Lock.take(_lock(book, number), wait_s=1.0, make=False)
    unread, broken, units = 0, 0, True
    again_at = time.monotonic() + BOOT_S  # the other one may still be coming up
    while mine is not None and is_nic(book):
        try:
            found = state.read(book)
            unread = unread + 1 if found is None else 0
            why = due(book, found) if found is not None else ""
            broken = broken + 1 if why == BROKEN else 0
            over = unread > UNREADABLE or broken > BROKEN_LOOKS or why not in ("", BROKEN)
            if over and not _undone(book):
                time.sleep(TRY_AGAIN_S)
            if time.monotonic() > again_at and is_nic(book) and not alive(book, 1 - number):
                start(book, [1 - number], units=units)
                again_at, units = time.monotonic() + BOOT_S, not units  # it needs its time to come up
        except Exception:  # noqa: BLE001 - a dead watchdog is worse than any of them
            time.sleep(TRY_AGAIN_S)
        time.sleep(LOOK_S)


def is_nic(book: Journal) -> bool:
    return (book.folder / state.FILE).exists()


def due(book: Journal, found: State, *, holder_alive: bool | None = None) -> str:
    """Why its time is over; empty while it is not."""
    if takedown.revoked(book):
        return "it was taken back already"
    clock = Clock.opened(found.maps) if any(found.maps) else None
    try:
        lease = clock.deadline_s() if clock is not None else None
    finally:
        if clock is not None:
            clock.close()
    lives = book.owner_alive() if holder_alive is None else holder_alive
    return found.over(holder_alive=lives, lease=lease) or (BROKEN if _broken(book, found) else "")


def surely_due(book: Journal, found: State, *, holder_alive: bool | None = None) -> str:
    """As a watchdog decides it: a device that seems to be gone may be a dump that others' changes have torn, so it is
    looked at as often as a watchdog does."""
    why = due(book, found, holder_alive=holder_alive)
    for _ in range(BROKEN_LOOKS):
        if why != BROKEN:
            break
        time.sleep(LOOK_S)
        why = due(book, found, holder_alive=holder_alive)
    return why


def at_it(book: Journal) -> bool:
    """Whether one holds it, or was the last to hold it: it takes it away."""
    try:
        return (book.folder / "lock").read_text(encoding="utf-8", errors="replace").startswith(WORKER)
    except OSError:
        return False


def _broken(book: Journal, found: State) -> bool:
    """Somebody deleted a device of ours, or set it down: all that the gate leads there is lost, whatever the profile.
    Of a pair the journal names one end, and both carry our id. Told in the interface's own namespace alone."""
    if found.phase == state.APPLYING or found.netns != namespaces.current():
        return False
    pairs = [entry for entry in book.made() if entry.kind == "link"]
    reader = Reader(Here())
    try:
        ours = [link for link in reader.links().values() if link.name.startswith(f"lb{found.id}")]
    finally:
        reader.close()
    return len(ours) < 2 * len(pairs) or not all(link.switched_on for link in ours)


def _undone(book: Journal) -> bool:
    """Whether it is. What was due is asked again once nobody else can change it, since its maker may just have let go.
    One who holds it and hangs, or outlives its time, does not keep it: the kernel's own clock has ended the loss."""
    lock = Lock.take(book.folder / "lock", make=False)
    try:
        if lock is not None:
            with suppress(OSError):  # a full disk keeps nobody from ending it
                lock.say(f"{WORKER} (pid {os.getpid()})")
        found = state.read(book)
        lives = lock is None
        if found is None and lives:
            return False  # it can't be read, and somebody may be writing it
        if found is not None and not due(book, found, holder_alive=lives):
            return True
        return not takedown.take_away(book, holder_lives=lives).failed
    finally:
        if lock is not None:
            lock.release()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    name, first, *more = sys.argv[1:]
    for number in more:
        _orphaned(partial(watch, Journal(name), int(number)))
    watch(Journal(name), int(first))


if __name__ == "__main__":
    main()
