"""What stands on an interface without us: who watches it, when they take it away, and where nobody could."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from lossbench.errors import NotAbleError, RunError
from lossbench.files import Lock
from lossbench.net import journal
from lossbench.net.host import namespaces
from lossbench.net.lab.half import Half
from lossbench.net.nic import alone, impaired, left, standing, state, takedown, watchdog
from lossbench.net.nic import facts as nic_facts
from lossbench.net.nic.request import Request
from lossbench.net.nic.state import State
from lossbench.net.nic.way.clock import Clock
from lossbench.spec import profile as profiles
from tests.forms import forms
from tests.nic.wire import COMMAND, Wire, until


def a_state(book: journal.Journal, **changed: Any) -> State:
    about = {"interface": "eth1", "netns": "1 1", "phase": state.STANDING, "profile": "p", "backend": "ebpf"}
    times = {"until": 1e12, "expires": 1e12}
    return State(**{"id": book.id, "index": 2, "seed": 1, "sides": ("egress",), **about, **times, **changed})


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> journal.Journal:
    monkeypatch.setattr(journal, "ROOT", tmp_path)
    return journal.Journal.claim(kind="nic")


# --- a way that somebody broke ---------------------------------------------------------------------------------------


@pytest.mark.netns
@forms("deed", ["deleted", "down"])
def test_a_device_of_ours_that_somebody_breaks_is_the_end_and_not_the_loss_of_everything(wire: Wire, deed: str) -> None:
    """As it was: all packets that were asked for were lost until the deadline, whatever the profile."""
    before = wire.snapshot()
    wire.lossbench("nic", "apply", "nic0", "--profile", "loss_1")
    name = next(one for one in wire.links() if one.startswith("lb") and one.endswith("ea"))
    with namespaces.open_inside(wire.here) as ip:
        index = ip.link_lookup(ifname=name)[0]
        if deed == "deleted":
            ip.link("del", index=index)
        else:
            ip.link("set", index=index, state="down")
    assert until(lambda: wire.snapshot() == before and wire.links() == ["lo", "nic0"])
    assert len(wire.arrived(20)) == 20


@pytest.mark.netns
def test_the_way_back_ends_the_kernels_own_clock_first_and_no_lease_begins_it_again(
    book: journal.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: while a gate could not be removed, it went on leading packets into what was being taken away."""
    monkeypatch.setattr(state, "LEASE_S", 0.06)
    clock = Clock.made()
    found = a_state(book, phase=state.ATTACHED, maps=clock.ids())
    found.save(book)
    with impaired.lease(found):
        assert until(lambda: clock.deadline_s() > 0)
        takedown.take_away(book, holder_lives=True)
        time.sleep(0.1)
        clock.set(0.0)  # what a renewal that was under way has written
        time.sleep(0.1)
        assert clock.deadline_s() == 0.0
    takedown.take_away(book)
    clock.close()


def test_loss_has_ended_before_anything_is_taken_away(book: journal.Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seen = Clock.made(), []

    def undo(_: object) -> tuple[list[int], list[str]]:
        seen.append(clock.deadline_s())
        return [], []

    a_state(book, maps=clock.ids()).save(book)
    clock.set(state.now() + 60)
    monkeypatch.setattr(takedown.made, "undo", undo)
    takedown.take_away(book)
    clock.close()
    assert seen[0] == 0.0, "gates, first of all"


def test_what_was_revoked_is_due_whatever_its_state_says(book: journal.Journal) -> None:
    """As it was: a confirmation that came in that moment kept its journal until the time was over."""
    found = a_state(book)
    assert watchdog.due(book, found) == ""
    (book.folder / takedown.REVOKED).touch()
    assert watchdog.due(book, found)
    book.release()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_what_was_taken_back_is_not_said_to_stand_by_a_confirmation_that_came_too_late(
    book: journal.Journal, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """As it was: "standing", of what a watchdog had taken away while it was being confirmed."""
    found = a_state(book, phase=state.UNCONFIRMED)
    found.save(book)
    book.release()
    revoked = book.folder / takedown.REVOKED

    class Revoking:
        def set(self, _: float) -> None:
            revoked.touch()

        def close(self) -> None: ...

    monkeypatch.setattr(standing, "find", lambda _: (book, found))
    monkeypatch.setattr(standing.watchdog, "arm", lambda _: None)
    monkeypatch.setattr(standing.Clock, "opened", lambda _: Revoking())
    if when == "before":
        revoked.touch()
    with pytest.raises(RunError, match="too late"):
        standing.confirm("eth1", None, at_console=True)
    assert book.folder.exists() == (when == "before"), "who comes last removes the journal"


# --- who watches -----------------------------------------------------------------------------------------------------


def test_a_unit_is_there_once_its_program_runs() -> None:
    """As it was: without a type, systemd-run was content with a process that had yet to become the program."""
    command = watchdog.systemd_command("0a1b", 1, ["python", "-m", "x"], {})
    assert "--property=Type=exec" in command[: command.index("python")]


def test_a_unit_that_does_not_come_up_is_replaced_by_a_process(
    book: journal.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: systemd had said yes, and for a minute and a half nobody tried anything else."""
    held: list[Lock | None] = []

    def orphaned(_: Callable[[], object]) -> None:
        held.extend(Lock.take(watchdog._lock(book, number)) for number in watchdog.NUMBERS)

    monkeypatch.setattr(watchdog, "by_systemd", lambda *_: True)
    monkeypatch.setattr(watchdog, "_orphaned", orphaned)
    monkeypatch.setattr(watchdog, "BOOT_S", 0.05)
    watchdog.arm(book)
    assert len(held) == 2 and None not in held
    book.release()


def test_a_manager_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "systemd-run"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(watchdog, "_managed", lambda: True)
    monkeypatch.setattr(watchdog, "UNIT_S", 0.1)
    assert not watchdog.by_systemd("0a1b", 0, ["true"], {})


# --- what an earlier one left ----------------------------------------------------------------------------------------


def here(book: journal.Journal, **changed: Any) -> State:
    """On an interface of this namespace that is none."""
    found = a_state(book, netns=namespaces.current(), index=NONE.index, **changed)
    found.save(book)
    return found


NONE = nic_facts.Facts(name="eth1", index=99_999, mtu=1500)


def test_a_device_that_seems_gone_in_one_look_is_no_reason_to_take_away_what_stands(
    book: journal.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: a watchdog needs three looks in a row; `nic apply` and `clean` were content with one."""
    monkeypatch.setattr(watchdog, "LOOK_S", 0.001)
    found = here(book)
    book.release()
    torn = iter([True, True, False, True, True, False])
    monkeypatch.setattr(watchdog, "_broken", lambda *_: next(torn))
    with pytest.raises(NotAbleError, match="impaired already"):
        left.on(NONE)
    assert not watchdog.surely_due(book, found)
    monkeypatch.setattr(watchdog, "_broken", lambda *_: True)
    assert left.on(NONE) == (book.id,) and book.folder.exists(), "noted, and nothing else"


@pytest.mark.parametrize("phase", [state.STANDING, state.ATTACHED])
def test_what_a_watchdog_is_just_taking_away_is_waited_for(
    book: journal.Journal, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """As it was: "impaired already", for the two seconds in which packets that wait still leave."""
    here(book, phase=phase, until=state.now() - 1)
    book.release()
    at_it, waits, take_away = threading.Event(), threading.Event(), takedown.take_away

    def slow(*arguments: Any, **more: Any) -> Any:
        at_it.set()
        assert waits.wait(20)
        return take_away(*arguments, **more)

    monkeypatch.setattr(watchdog.takedown, "take_away", slow)
    sleep = time.sleep
    monkeypatch.setattr(journal.time, "sleep", lambda s: (waits.set(), sleep(s)))  # whoever waits for the lock
    thread = threading.Thread(target=watchdog._undone, args=[book])
    thread.start()
    assert at_it.wait(20)
    assert left.on(NONE) == (book.id,)
    thread.join()
    assert not watchdog.is_nic(book) and left.on(NONE) == ()


def test_what_two_take_away_at_once_is_waited_for_until_all_of_it_is_gone(
    book: journal.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: what the other watchdog had marked as taken was no more looked at, and its clsact was counted on in
    the moment before it went. A journal that a hanging holder keeps is in nobody's way."""
    here(book, phase=state.ATTACHED)
    book.before_making(kind="link", name="lbnone", before={"netns": namespaces.current()})
    (book.folder / takedown.REVOKED).touch()
    there = iter([True, True, False])
    monkeypatch.setattr(left.made, "exists", lambda _: next(there, False))
    assert left.on(NONE) == (book.id,) and next(there, None) is None
    assert left.on(NONE) == ()
    monkeypatch.setattr(nic_facts, "of", lambda name: NONE)
    assert left.cleared(replace(NONE, left=(book.id,))) is NONE and book.folder.exists()
    book.release()


def test_what_somebody_holds_is_refused_at_once(book: journal.Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    here(book, phase=state.ATTACHED)
    monkeypatch.setattr(journal.time, "sleep", None)  # not to be called
    with pytest.raises(NotAbleError, match="impaired already"):
        left.on(NONE)
    book.release()


def test_an_agent_takes_away_what_was_left_before_it_puts_anything_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine's interface may be one that a killed command has left."""

    class ClearedError(Exception): ...

    def cleared(_: nic_facts.Facts) -> nic_facts.Facts:
        raise ClearedError

    monkeypatch.setattr(left, "cleared", cleared)
    monkeypatch.setattr(impaired, "examined", lambda _: (NONE, "ebpf"))
    monkeypatch.setattr(journal.Journal, "claim", None)  # nothing is made before
    with pytest.raises(ClearedError):
        impaired.apply(Request.of(profiles.load("loss_1"), interface="eth1", for_s=1))
    asked = {"interface": "eth1", "for_s": 1.0, "counted": (), "spared": ()}
    with pytest.raises(ClearedError):
        Half().build(rules={}, later={}, traffic={"peers": (), "own": ()}, **asked)


# --- where nobody could ----------------------------------------------------------------------------------------------

OURS = 4026532000


@pytest.mark.parametrize(
    ("pid", "parent", "namespace", "first", "ends"),
    [
        (1, 0, OURS, "lossbench", True),  # docker run
        (7, 1, OURS, "tini", True),  # docker run --init
        (7, 1, OURS, "sh", True),
        (7, 1, OURS, "systemd", False),  # a container with a system of its own
        (9, 7, OURS, "sleep", False),
        (9, 0, OURS, "sleep", False),  # docker exec
        (700, 1, alone.MACHINES_OWN, "tini", False),
        (1, 0, 0, "", False),  # no /proc to look at
    ],
)
def test_when_a_container_ends_with_us(pid: int, parent: int, namespace: int, first: str, ends: bool) -> None:
    assert alone.ends_with_us(pid=pid, parent=parent, namespace=namespace, first=first) == ends


@pytest.mark.netns
def test_in_a_container_that_ends_with_the_command_nothing_is_left_to_itself(wire: Wire) -> None:
    """As it was: the machine's interface stayed impaired, and watchdogs and journal were gone with the container."""
    asked = [*COMMAND, "nic", "apply", "nic0", "--profile", "loss_1"]
    for first in ([], ["sh", "-c", '"$@"; exit $?', "sh"]):  # as process 1, and as its child
        done = wire.run_here(["unshare", "--pid", "--fork", "--mount-proc", *first, *asked])
        _, err = done.communicate(timeout=60)
        assert done.returncode == NotAbleError.exit_code and "`-- COMMAND`" in err and wire.links() == ["lo", "nic0"]
    done = wire.run_here(["unshare", "--pid", "--fork", "--mount-proc", *asked, "--dry-run", "--", "true"])
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0 and "loss_1" in out, err


# --- whose session runs over it --------------------------------------------------------------------------------------


@pytest.mark.netns
def test_a_session_runs_over_the_interface_of_its_servers_address_or_of_its_scope(wire: Wire) -> None:
    """As it was: the way to the client was asked for, without a scope and without a source: of a link-local session, or
    of one that policy routing leads elsewhere, nobody was warned."""
    with namespaces.inside(wire.here), IPRoute() as ip:
        ip.link("add", ifname="other0", kind="veth", peer={"ifname": "other1"})

        def here(words: str) -> bool:
            return nic_facts.of("nic0", {"SSH_CONNECTION": words}).ssh_here

        assert here("fe80::99%nic0 50000 fe80::1%nic0 22") and not here("fe80::99%other0 50000 fe80::1%other0 22")
        assert here(f"fe80::99%{wire.index()} 50000 fe80::1%{wire.index()} 22")
        assert here("192.0.2.7 50000 10.77.0.1 22"), "no route leads to that client"
        assert here("10.77.0.2 50000 10.99.0.1 22"), "answers leave by it"
        assert not here("192.0.2.7 50000 10.99.0.1 22")


def test_a_watchdog_loads_nothing_of_what_experiments_are() -> None:
    """Two are started on every machine before every change, and half of their time was for these."""
    text = "import sys, lossbench.net.nic.watchdog as w; print(*(n for n in ('numpy', 'pydantic') if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
