"""An undo that can't forget: whatever fails, dies or races, the journal names it until it is gone; nothing foreign is
touched."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lossbench.net import journal, made
from lossbench.net.host import cgroups, namespaces
from lossbench.net.journal import Journal
from lossbench.net.made import Entry
from lossbench.processes import Started
from lossbench.runs import interrupt
from tests import nurseries
from tests.conftest import left_behind
from tests.forked import LOSSBENCH, begin, lossbench
from tests.forms import forms
from tests.shared import namespaces_of, wait_until_begun

pytestmark = pytest.mark.netns
ROOT = Path(__file__).resolve().parents[2]
CLAIM = """
import sys, time
from lossbench.net.journal import Journal
from lossbench.net.host import cgroups, namespaces
book = Journal.claim(kind="run")
book.before_making("namespace", f"lb-{book.id}-sw"); namespaces.create(f"lb-{book.id}-sw")
print(book.id, flush=True)
"""


def claimed(after: str, *, prefix: tuple[str, ...] = ()) -> tuple[subprocess.Popen[str], str]:
    """Another process that claims a network with one namespace and then does `after`."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", CLAIM + after], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


# --- the journal -----------------------------------------------------------------------------------------------------


def test_a_step_of_the_undo_that_fails_is_said_the_others_run_and_clean_finishes_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book = Journal.claim(kind="run")
    names = [f"lb-{book.id}-{place}" for place in ("sw", "h0", "h1")]
    for name in names:
        book.before_making("namespace", name)
        namespaces.create(name)
    stubborn, remove = names[1], namespaces.remove

    def fails(name: str) -> None:
        if name == stubborn:
            raise OSError(16, "Device or resource busy")
        remove(name)

    monkeypatch.setattr(namespaces, "remove", fails)
    removed = book.undo()
    assert any("busy" in text for text in removed.failed) and any("still there" in text for text in removed.failed)
    assert set(removed.names) == {names[0], names[2]}
    assert book.folder.exists() and namespaces.exists(stubborn)
    monkeypatch.undo()
    book._lock.release()  # type: ignore[union-attr]
    cleaned = lossbench("clean")
    assert cleaned.returncode == 0 and stubborn in cleaned.stdout
    assert not namespaces.exists(stubborn) and not book.folder.exists()


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


def test_a_namespace_with_a_process_that_can_not_be_ended_keeps_its_name_and_its_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book = Journal.claim(kind="run")
    name = f"lb-{book.id}-h0"
    book.before_making("namespace", name)
    namespaces.create(name)
    with namespaces.inside(name):
        process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    monkeypatch.setattr(namespaces, "_signal_inside", lambda *_: None)
    removed = book.undo()
    assert removed.failed[0] == f"process {process.pid} in {name} can't be ended"
    assert namespaces.exists(name) and book.folder.exists() and process.poll() is None
    monkeypatch.undo()
    assert book.undo().failed == () and process.wait(timeout=120) == -signal.SIGKILL
    process.stdout.close()


def test_whoever_is_forked_while_a_namespace_is_emptied_is_ended_too() -> None:
    """Every process ignores SIGTERM and has forked its successor before it is found, many times over."""
    book = Journal.claim(kind="run")
    name = f"lb-{book.id}-h0"
    book.before_making("namespace", name)
    namespaces.create(name)
    comet = STUBBORN.replace("time.sleep(600)", "for _ in range(400):\n  time.sleep(.05)\n  if os.fork(): os._exit(0)")
    with namespaces.inside(name):
        process = subprocess.Popen([sys.executable, "-c", comet], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    removed = book.undo()
    if removed.failed:  # on a busy machine it may be faster; then it is said, and found again
        assert namespaces.exists(name) and book.folder.exists()
        while removed.failed:
            removed = book.undo()
    process.wait(timeout=120)
    process.stdout.close()
    assert not namespaces.exists(name) and namespaces.pids_inside([name]) == {}


def test_a_damaged_line_in_the_middle_keeps_the_journal_and_a_torn_last_one_does_not() -> None:
    process, name = claimed("open(book.folder / 'journal.jsonl', 'a').write('{\"kind\": \"namespace\", \"na')")
    process.wait()
    assert lossbench("clean").returncode == 0 and not (journal.ROOT / name).exists()
    process, name = claimed("open(book.folder / 'journal.jsonl', 'a').write('{\"kxnd\": 1}\\n')")
    process.wait()
    try:
        cleaned = lossbench("clean")
        assert cleaned.returncode == 1 and "a damaged line" in cleaned.stderr and (journal.ROOT / name).exists()
    finally:
        Journal(name).close()


def test_an_entry_of_a_kind_that_this_version_does_not_know_keeps_the_journal() -> None:
    process, name = claimed('open(book.folder / \'journal.jsonl\', \'a\').write(\'{"kind": "qdisc", "name": "x"}\\n\')')
    process.wait()
    try:
        cleaned = lossbench("clean")
        assert cleaned.returncode == 1 and "does not know how to undo qdisc x" in cleaned.stderr
        assert not namespaces.exists(f"lb-{name}-sw") and (journal.ROOT / name).exists()
    finally:
        Journal(name).close()


def test_what_can_not_be_looked_at_is_taken_to_be_there_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """So its journal stays, and the next `clean` finds it."""

    def exists(_: Entry) -> bool:
        raise OSError("no file handle is left")

    monkeypatch.setattr(made.KINDS["link"], "exists", exists)
    assert made.exists(Entry(kind="link", name="x"))


def test_every_kind_gets_its_turn_in_reverse_with_the_state_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sysctl:
        values = {"a": "new", "b": "new"}
        order: list[str] = []

        def exists(self, entry: Entry) -> bool:
            return self.values[entry.name] != entry.before

        def undo(self, entries: list[Entry]) -> tuple[list[int], list[str]]:
            for entry in entries:
                self.order.append(entry.name)
                self.values[entry.name] = entry.before
            return [], []

    monkeypatch.setitem(made.KINDS, "sysctl", Sysctl())
    book = Journal.claim(kind="run")
    for name in ("a", "b"):
        Sysctl.values[name] = "old"
        book.before_making("sysctl", name, before="old")
        Sysctl.values[name] = "new"
    book.before_making("namespace", f"lb-{book.id}-sw")
    namespaces.create(f"lb-{book.id}-sw")
    assert book.undo().failed == ()
    assert Sysctl.values == {"a": "old", "b": "old"} and Sysctl.order == ["b", "a"]
    assert not book.folder.exists()


def test_an_id_that_another_run_folder_knows_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of a container beside us, or of one that was killed with its /run. As it was: "already, and not ours"."""
    theirs = cgroups.folder("feed")
    if theirs is None:
        pytest.skip("no cgroup v2 of our own")
    ids = iter(["feed", "beef"])
    cgroups.make(theirs)
    try:
        monkeypatch.setattr(journal, "secrets", SimpleNamespace(token_hex=lambda _: next(ids)))
        book = Journal.claim(kind="run")
        assert book.undo().failed == () and book.id == "beef"
    finally:
        cgroups.remove(theirs)


def test_a_namespace_of_somebody_else_with_our_name_is_neither_taken_nor_removed() -> None:
    book = Journal.claim(kind="run")
    name = f"lb-{book.id}-h0"
    namespaces.create(name)
    try:
        with pytest.raises(Exception, match="not ours"):
            book.before_making("namespace", name)
        assert book.undo().names == () and namespaces.exists(name)
    finally:
        namespaces.remove(name)


# --- whose it is -----------------------------------------------------------------------------------------------------


def test_a_zombie_is_no_owner() -> None:
    process, name = claimed("")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has reaped it
    assert Path(f"/proc/{process.pid}").exists()
    assert not Journal(name).owner_alive()
    assert f"lb-{name}-sw" in lossbench("clean").stdout
    process.wait()


def test_an_owner_in_another_pid_namespace_is_alive() -> None:
    process, name = claimed("time.sleep(60)", prefix=("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
    try:
        assert f"{name}: in use by a running lossbench" in lossbench("clean").stdout
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 120
    while Journal(name).owner_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert f"lb-{name}-sw" in lossbench("clean").stdout


def test_clean_never_takes_a_network_that_is_just_being_claimed() -> None:
    """Claims as fast as they come, against cleaning as fast as it comes."""
    stop, errors = threading.Event(), []

    def sweep() -> None:
        while not stop.is_set():
            for one in journal.networks():
                with journal.abandoned(one) as free:
                    if free and not one.is_lab() and one.owner().get("pid") == os.getpid():
                        one.undo()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for _ in range(300):
            book = Journal.claim(kind="run")
            if not (book.folder / "owner.json").exists():
                errors.append(book.id)
            book.close()
    finally:
        stop.set()
        sweeper.join()
    assert errors == []


def test_state_is_for_its_owner_alone_and_results_follow_the_umask(tmp_path: Path) -> None:
    process = begin("run", "proof", "--out", str(tmp_path), "--set", "probe.packets=4000", "--json", umask=0o027)
    seen = False
    while process.poll() is None:
        for name in namespaces_of(process.pid):
            folder = journal.ROOT / name.split("-")[1]
            for path in (journal.ROOT, folder):
                assert path.stat().st_mode & 0o777 == 0o700, path
            seen = seen or (folder / "options.json").exists()
        time.sleep(0.05)
    assert seen and process.returncode == 0
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    assert modes == {0o640}


# --- standing labs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def lab() -> Iterator[str]:
    done = lossbench("net", "up", "--hosts", "3", "--profile", "loss_5")
    assert done.returncode == 0, done.stderr
    name = done.stdout.split(":")[0]
    yield name
    lossbench("net", "down", "--net", name)


def test_a_lab_whose_owner_can_not_be_read_is_still_a_lab(lab: str) -> None:
    (journal.ROOT / lab / "owner.json").write_text("")
    assert f"{lab}: a standing network, left alone" in lossbench("clean").stdout
    assert lab in lossbench("net", "list").stdout


def test_a_lab_can_be_brought_up_and_taken_down_by_one_process() -> None:
    from lossbench.runs import standing

    made_here = standing.up({"name": "net", "topology": {"hosts": 2}}, seed=1)
    (removed,) = standing.down(made_here.id, every=False)
    assert removed.failed == () and sum(name.startswith("lb-") for name in removed.names) == 3


@pytest.mark.wallclock
def test_a_change_that_is_interrupted_is_finished_first(lab: str) -> None:
    process = begin("net", "set", "--net", lab, "--profile", "bursty_5")
    state = journal.ROOT / lab / "net.json"
    while '"in_doubt": true' not in state.read_text() and process.poll() is None:
        time.sleep(0.0005)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode in (0, 130) and "undone" not in errors
    assert '"in_doubt": false' in state.read_text()
    assert lossbench("net", "verify", "--net", lab, "--packets", "9000").returncode == 0


def test_a_lab_of_before_a_reboot_does_not_stand(lab: str) -> None:
    owner = journal.ROOT / lab / "owner.json"
    owner.write_text(json.dumps({**json.loads(owner.read_text()), "boot": "another"}))
    assert lab not in lossbench("net", "list").stdout
    assert f"lb-{lab}-sw" in lossbench("clean").stdout


def test_a_damaged_state_is_one_line_names_the_way_out_and_hides_no_other_lab(lab: str) -> None:
    other = lossbench("net", "up", "--hosts", "2").stdout.split(":")[0]
    (journal.ROOT / lab / "net.json").write_text('{"experiment": {"name"')
    try:
        shown = lossbench("net", "show", "--net", lab)
        assert shown.returncode == 1 and shown.stderr.count("\n") == 1
        assert f"state of network {lab} is damaged" in shown.stderr and f"net down --net {lab}" in shown.stderr
        assert lossbench("net", "show", "--net", other).returncode == 0
        listed = lossbench("net", "list").stdout
        assert f"{lab}: ?, damaged" in listed and other in listed and listed == lossbench("net", "show").stdout
        assert lossbench("net", "down", "--net", lab).returncode == 0
    finally:
        lossbench("net", "down", "--net", other)


def test_two_changes_at_once_take_turns_and_the_last_one_is_in_force(lab: str) -> None:
    profiles = ("loss_10", "bursty_5", "loss_1", "clean")
    changes = [begin("net", "set", "--net", lab, "--profile", profile) for profile in profiles]
    assert [(change.communicate(timeout=120)[1], change.returncode) for change in changes] == [("", 0)] * 4
    assert lossbench("net", "verify", "--net", lab, "--packets", "9000").returncode == 0


def test_a_lab_that_is_being_changed_is_left_alone_and_who_changes_it_is_said(
    lab: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "WAIT_S", 0.1)
    with (
        Journal(lab).taken(),
        pytest.raises(Exception, match=f"{lab} is being worked on by .*pid {os.getpid()}"),
        Journal(lab).taken(wait_s=0.1),
    ):
        pass
    with Journal(lab).taken():
        assert f"{lab}: in use by a running lossbench; not touched" in lossbench("clean").stdout


def test_somebody_elses_lab_is_taken_down_by_its_name_only(lab: str) -> None:
    refused = lossbench("net", "down", environment={**os.environ, "SUDO_USER": "somebody"})
    assert refused.returncode == 2 and "was brought up by" in refused.stderr and f"--net {lab}" in refused.stderr
    assert lossbench("net", "show", "--net", lab).returncode == 0


@forms("delay_s", [0.012, 0.0, 0.004, 0.03, 0.06])
def test_a_change_that_is_killed_leaves_a_lab_that_says_so_and_can_be_put_right(lab: str, delay_s: float) -> None:
    """Killed so many seconds after it began to change."""
    process = begin("net", "set", "--net", lab, "--profile", "bursty_5", "--direction", "both")
    state = journal.ROOT / lab / "net.json"
    while '"in_doubt": true' not in state.read_text() and process.poll() is None:
        time.sleep(0.0005)
    time.sleep(delay_s)
    process.kill()
    process.wait()
    shown = lossbench("net", "show", "--net", lab)
    assert "Traceback" not in shown.stderr
    if shown.returncode:
        assert "a change was killed half-way" in shown.stderr and f"net set --net {lab}" in shown.stderr
    assert lossbench("net", "set", "--net", lab, "--profile", "loss_10").returncode == 0
    verified = lossbench("net", "verify", "--net", lab, "--packets", "9000")
    assert verified.returncode == 0 and "10 %" in verified.stdout, verified.stdout + verified.stderr


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.wallclock
@forms("moment_s", [0.2, 0.9, 1.8, 0.05, 0.5, 1.2, 1.5, 2.2], keep=3)
def test_two_signals_half_a_millisecond_apart_undo_once_and_the_message_is_true(
    tmp_path: Path, moment_s: float
) -> None:
    process = subprocess.Popen(
        [*LOSSBENCH, "run", "proof", "--out", str(tmp_path), "--set", "workload.options.seconds=20"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(moment_s)
    process.send_signal(signal.SIGINT)
    time.sleep(0.0005)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    # Before main() begins, signals are the interpreter's: it says so in its own way, and nothing was made yet.
    loading = "Fatal Python error" in errors or (errors.startswith("Traceback") and ", in main\n" not in errors)
    assert process.returncode in (130, -signal.SIGINT, -signal.SIGTERM) or loading, errors
    assert "Traceback" not in errors or loading, errors
    assert process.returncode != 130 or "lossbench: interrupted" in errors
    assert left_behind() == []
    assert process.pid not in [one.owner().get("pid") for one in journal.networks()]


def test_a_signal_during_the_undo_waits_for_it_and_interrupts_afterwards() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt.undoing() as undo:
        undo.later("last", lambda: done.append("last"))
        undo.later("first", lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(0.01), done.append("first")))
    assert done == ["first", "last"]
    interrupt.check()  # what came was heard, and is over


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_that_a_finaliser_swallows_comes_again_to_a_program_that_never_checks() -> None:
    """Python's own Ctrl-C would be lost: a notebook's network stood on as long as its cell slept."""

    class Last:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), interrupt.undoing():
        last = Last()
        del last
        time.sleep(60)
        pytest.fail("nothing came")


INTERRUPTED = """
import signal, sys
from lossbench.cli import app, main
def interrupted(**_):
    {happens}
app.app = interrupted
main.main()
"""


@pytest.mark.parametrize(
    "happens",
    [
        "try: signal.raise_signal(signal.SIGINT)\n    except KeyboardInterrupt: error = ValueError()\n    raise error",
        "sys.modules['lossbench.cli.console'] = None; signal.raise_signal(signal.SIGINT)",
        "import asyncio\n    asyncio.SelectorEventLoop._add_reader = lambda *_: signal.raise_signal(signal.SIGINT)\n"
        "    asyncio.BaseEventLoop.close = lambda _: 1 / 0\n    asyncio.new_event_loop()",
    ],
    ids=["a library that makes another error of it", "in the midst of an import", "before a loop is whole"],
)
def test_an_interruption_is_said_in_one_line_whatever_it_comes_out_as(happens: str) -> None:
    """As it was: pydantic's error, or that a module had been imported by half, with a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(happens=happens)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (130, "lossbench: interrupted\n")


def test_an_interruption_in_the_midst_of_an_event_loop_waits_until_that_is_over() -> None:
    """As it was: a call of pyroute2 was torn, and what it left printed a traceback at the end of the program."""
    done = []

    async def call() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0)
        done.append("whole")

    with pytest.raises(KeyboardInterrupt), interrupt.undoing():
        asyncio.run(call())
        time.sleep(60)
        pytest.fail("nothing came")
    assert done == ["whole"]


def test_an_event_loop_that_never_ends_is_interrupted_all_the_same() -> None:
    """A notebook has one."""

    async def cell() -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)  # noqa: ASYNC251 - as a cell does that waits for a run
        pytest.fail("nothing came")

    with pytest.raises(KeyboardInterrupt), interrupt.undoing():
        asyncio.run(cell())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_that_python_swallows_comes_at_the_next_check() -> None:
    """A signal whose exception is raised inside a finaliser is "ignored": the run went on to its end."""

    class Swallows:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt), interrupt.undoing():
        one = Swallows()
        del one
        interrupt.check()
        pytest.fail("nothing came")


def test_a_step_that_fails_is_said_beside_the_error_that_ended_the_run() -> None:
    done = []
    with pytest.raises(ValueError, match="mine") as caught, interrupt.undoing() as undo:
        undo.later("second", lambda: done.append(1))
        undo.later("first", lambda: 1 / 0)
        raise ValueError("mine")
    assert done == [1] and "first: division by zero" in caught.value.__notes__[0]
    assert "division by zero" in interrupt.finish()[0]
    interrupt._State.held = 0


# --- processes -------------------------------------------------------------------------------------------------------


def test_a_rank_that_ended_is_not_reaped_before_the_last_signal_so_its_number_is_nobody_elses() -> None:
    one = Started(subprocess.Popen(["true"], start_new_session=True))
    while one.poll() is None:
        time.sleep(0.01)
    assert one.poll() == 0 and Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    one.signal(signal.SIGKILL)
    one.reap()
    assert not Path(f"/proc/{one.pid}").exists()
    one.signal(signal.SIGKILL)  # to nobody: whoever has this number now is not ours


def test_a_process_that_took_a_number_over_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of who is inside is old when it is acted upon."""
    name = f"lb-test-{os.getpid()}"
    namespaces.create(name)
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        listed = iter([{bystander.pid: name}, {bystander.pid: name}, {}])
        monkeypatch.setattr(namespaces, "pids_inside", lambda _: next(listed, {}))
        namespaces.kill_inside([name])
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        namespaces.remove(name)


@pytest.mark.wallclock
def test_a_wire_that_is_killed_before_a_change_of_the_schedule_ends_the_run_with_a_word_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    file = tmp_path / "wire.toml"
    file.write_text(
        'name = "wire"\nwhy = "t"\nbackend = "relay"\n[topology]\nhosts = 2\nrate_mbit = 20\n'
        '[workload]\nname = "chatter"\noptions = {steps = 250}\n[probe]\npackets = 0\n'
        "[[impair]]\nprofile = {why = 't', delay = {mean_ms = 5}}\nto_s = 2\n"
        "[[impair]]\nprofile = {why = 't', delay = {mean_ms = 9}}\nfrom_s = 2\n"
    )
    process = begin("run", str(file), "--out", str(tmp_path / "o"), together=True)
    wire = None
    while wire is None and process.poll() is None:
        switch = [name for name in namespaces_of(process.pid) if name.endswith("-sw")]
        inside = namespaces.pids_inside(switch) if list(tmp_path.rglob("timeline.jsonl")) else {}
        wire = next(iter(inside), None)
        time.sleep(0.05)
    assert wire is not None
    os.kill(wire, signal.SIGKILL)
    errors, _ = process.communicate(timeout=120)
    assert process.returncode in (1, 3), errors
    assert "wire that holds packets back has ended" in " ".join(errors.split()) and "Traceback" not in errors
    assert left_behind() == []


@pytest.mark.training
@pytest.mark.wallclock
def test_a_nursery_that_is_killed_ends_the_run_with_a_word_and_leaves_nothing(tmp_path: Path) -> None:
    short = ["--set", "topology.hosts=2", "--set", "probe.packets=2000", "--set", "workload.options.strategy=rps"]
    steps = ["--set", "workload.options.steps=2000", "--set", "impair.0.profile=loss_1"]
    process = begin("run", "quickstart", "--out", str(tmp_path), *steps, *short, together=True)
    wait_until_begun(process, tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (nursery,) = [int(pid) for pid in children if nurseries.is_one(int(pid))]
    os.kill(nursery, signal.SIGKILL)
    process.send_signal(signal.SIGHUP)  # and the terminal goes away, too
    errors, _ = process.communicate(timeout=250)
    assert process.returncode in (1, 130), errors
    assert "Traceback" not in errors and ("killed by SIGKILL" in errors or "interrupted" in errors)
    assert left_behind() == []
