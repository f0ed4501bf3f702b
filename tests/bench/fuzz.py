"""Broken input by the million: nothing may crash, nothing may be accepted that should not be.

python tests/bench/fuzz.py [datagrams_c datagrams files netlink] [--seconds 60 | --count N] [--seed N]

datagrams_c  the engine in C with address and undefined-behaviour sanitizers, against a model (fuzz_engine.c)
datagrams    the parser in Python: rows of an open half, of others, of nobody, against a model
files        profiles, experiments, stored results, records, journals: read, or refused in our own words
netlink      answers of the kernel, damaged: read, or refused as one error
With --count each does so many; the issue's bar is 10,000,000 datagrams and 100,000 files."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

import numpy as np  # noqa: E402

from lossbench.contract import HEADER_BYTES, KINDS, Header  # noqa: E402
from lossbench.errors import LossbenchError  # noqa: E402
from lossbench.net import journal  # noqa: E402
from lossbench.net.tc import rtnl_messages  # noqa: E402
from lossbench.results import models, samples  # noqa: E402
from lossbench.runs.launch.member import Member  # noqa: E402
from lossbench.runs.launch.ranks import Ranks  # noqa: E402
from lossbench.spec import profile  # noqa: E402
from lossbench.spec.asking import points  # noqa: E402
from lossbench.workloads.transport.half import Half  # noqa: E402
from lossbench.workloads.transport.native import build  # noqa: E402
from lossbench.workloads.transport.packet import wire  # noqa: E402
from lossbench.workloads.transport.plain.flows import Open  # noqa: E402
from lossbench.workloads.transport.plain.ticking import Ticking  # noqa: E402
from lossbench.workloads.transport.plan import Flows, address, row  # noqa: E402
from lossbench.workloads.transport.policy import Membership, Policy  # noqa: E402

Budget = Callable[[int], bool]  # of so many done: go on?


def datagrams_c(go_on: Budget, seed: int) -> int:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print("datagrams_c: skipped, no C compiler")
        return 0
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "fuzz_engine"
        source = str(ROOT / "tests" / "bench" / "fuzz_engine.c")
        flags = [*build.DIALECT, *build.SANITIZE["sanitize"], "-fno-sanitize-recover=all"]
        subprocess.run([compiler, *flags, "-o", str(program), source, *build.LIBRARIES], check=True)
        while go_on(done):
            said = subprocess.run([str(program), "250000", str(seed + done)], capture_output=True, text=True)
            assert said.returncode == 0, f"seed {seed + done}: {said.stderr}"
            done += int(said.stdout)
    return done


# --- the parser in Python --------------------------------------------------------------------------------------------


class Nowhere:
    """A link whose packets go nowhere; answers are counted."""

    def __init__(self) -> None:
        self.sender = ("", 0)
        self.answers = 0

    def send(self, packet: bytes, peer: tuple[str, int]) -> bool:
        del packet, peer
        self.answers += 1
        return True

    def batch(self, segment: int) -> int:
        del segment
        return 1


WORLD, TOTAL, PAYLOAD, STEP, SIZE, BLOCK = 4, 500, 64, 3, 99, 7
SEGMENT = HEADER_BYTES + PAYLOAD


class Listener(Ticking):
    """Rank 0 of four, without a thread, listening to one half."""

    def __init__(self, *, whole: bool, sequence: int) -> None:
        self.nowhere = Nowhere()
        peers = {rank: (f"10.0.0.{rank}", 9) for rank in range(1, WORLD)}
        policy = Policy(tag="packet" if whole else "header")
        key = os.urandom(16)
        member = Membership(rank=0, peers=peers, key=key, policy=policy, datagram_bytes=1 << 16, window_bytes=1 << 16)
        super().__init__(member, link=self.nowhere)  # type: ignore[arg-type]
        flows = Flows(row(rank, block=BLOCK, at=0, size=TOTAL * PAYLOAD, segment=SEGMENT) for rank in peers)
        flows.template["data"] = np.arange(len(peers)) * TOTAL * PAYLOAD
        self.room = np.zeros(len(peers) * TOTAL * PAYLOAD, np.uint8)
        half = Half(half=0, signature=1, size=SIZE, sends=Flows([]), receives=flows, reliable=False)
        half.aim(source=0, target=address(self.room), holds=self.room)
        half.record.step = STEP
        self.next = self.opened = sequence
        self.one = self.halves[sequence] = Open(half)
        self.one.sequence, self.one.listening = sequence, True
        self.next = self.opened = sequence + 1
        for peer in self.peers.values():
            peer.passed = sequence

    def header(self, rank: int) -> bytes:
        head = Header(
            kind=wire.DATA,
            tag=0,
            source=rank,
            destination=0,
            sequence=self.one.sequence,
            step=STEP,
            dtype=1,
            size=SIZE,
            block=BLOCK,
        )
        return self.tags.stamped(head.pack()) if not self.tags.whole else head.pack()


def datagrams(go_on: Budget, seed: int) -> int:
    dice, done = np.random.default_rng(seed), 0
    while go_on(done):
        ears = Listener(whole=bool(dice.random() < 0.3), sequence=int(dice.integers(0, 2**32 - 10)))
        model: dict[int, set[int]] = {rank: set() for rank in ears.peers}
        for _ in range(200):
            rows, right = broken_rows(dice, ears)
            before = ears.nowhere.answers
            ears._sort(rows)
            done += len(rows)
            assert ears.nowhere.answers - before <= len(rows), "more answers than packets"
            if ears.failed is not None:  # a right tag over another call: ranks that disagree, and are told
                break
            for rank, number in right:
                model[rank].add(number)
        else:
            for rank, flow in ears.one.ins.items():
                assert set(np.flatnonzero(flow.arrived)) == model[rank], "what counted is not what should have"
                assert flow.count == len(model[rank]), "a packet counted twice"
    return done


def broken_rows(dice: np.random.Generator, ears: Listener) -> tuple[wire.Bytes, list[tuple[int, int]]]:
    """(rows of one size, which of them are right): most of them are nearly right."""
    count = int(dice.integers(1, 60))
    size = SEGMENT if dice.random() < 0.8 else int(dice.integers(1, SEGMENT))
    rank = int(dice.integers(1, WORLD))
    said = rank if dice.random() < 0.9 else int(dice.integers(0, 65536))
    ears.nowhere.sender = (f"10.0.0.{rank}", 9) if dice.random() < 0.9 else ("10.0.0.9", 9)
    rows = dice.integers(0, 256, (count, SEGMENT), dtype=np.uint8)
    rows[:, :HEADER_BYTES] = np.frombuffer(ears.header(said), np.uint8)
    numbers = dice.integers(0, TOTAL, count, dtype=np.uint32)
    odd = dice.random(count) < 0.05
    numbers[odd] = dice.integers(0, 2**32, int(odd.sum()), dtype=np.uint32)
    rows[:, wire.PREFIX_BYTES : HEADER_BYTES] = numbers.view(np.uint8).reshape(-1, 4)
    if ears.tags.whole:
        rows[:, 8:16] = ears.tags.of_rows(rows).view(np.uint8).reshape(-1, 8)
    changed = dice.random(count) < (0.3 if dice.random() < 0.5 else 0.0)
    for number in np.flatnonzero(changed):
        at = int(dice.integers(0, SEGMENT if ears.tags.whole else wire.PREFIX_BYTES))
        rows[number, at] ^= 1 << int(dice.integers(0, 8))
    good = said == rank and size == SEGMENT and ears.nowhere.sender[0] != "10.0.0.9"
    right = [(rank, int(n)) for n, bad in zip(numbers, changed, strict=True) if good and not bad and n < TOTAL]
    return rows[:, :size].copy(), right


# --- files -----------------------------------------------------------------------------------------------------------

LAB = b'{"experiment": {"name": "x"}, "backend": "ebpf", "seed": 1, "state": {}}'
NASTY = [
    None,
    True,
    -1,
    0,
    1e308,
    -1e-320,
    10**400,
    "",
    "\0",
    "x" * 5000,
    "../../etc/passwd",
    "h0",
    [],
    {},
    [[[]]],
    {"": {}},
    "nan",
    2**63,
    2**64,
    -(2**63),
    "1e999",
    [None] * 50,
    {"a": 1},
    "\ud800",
    float("nan"),
    float("inf"),
]


def mutated(value: Any, dice: random.Random) -> Any:
    """A value somewhere inside replaced, removed or doubled."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key, out = dice.choice(list(value)), dict(value)
        if dice.random() < 0.1:
            del out[key]
        elif dice.random() < 0.1:
            out[f"{key}x"] = out.pop(key)
        else:
            out[key] = mutated(out[key], dice)
        return out
    if isinstance(value, list) and value and dice.random() < 0.9:
        at, listed = dice.randrange(len(value)), list(value)
        listed[at] = mutated(listed[at], dice)
        return listed * (2 if dice.random() < 0.05 else 1)
    return dice.choice(NASTY)


def spoiled(text: bytes, dice: random.Random) -> bytes:
    """Bytes turned, cut, doubled."""
    out = bytearray(text)
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(out) or 1)
        what = dice.random()
        if what < 0.4 and out:
            out[at] = dice.randrange(256)
        elif what < 0.6:
            del out[at:]
        elif what < 0.8:
            out[at:at] = dice.choice([b"[[", b"{", b'"', b"\xff", b"\0", b"=", b"[" * 3000, b"9" * 5000, b"nan", b"#"])
        else:
            out[at : at + 20] = b""
    return bytes(out)


def seeds_of(folder: Path) -> list[tuple[Path, bytes, Callable[[Path], object]]]:
    """(where it lies, what it holds when it is right, who reads it)."""
    run, book = folder / "suite" / "000", journal.ROOT / "f0f0"
    for place in (run / "records", book):
        place.mkdir(parents=True, exist_ok=True)
    plan, one = stored()
    entry = json.dumps({"kind": "namespace", "name": "lb-f0f0-sw", "before": None}) + "\n"
    records = "\n".join(
        json.dumps(line)
        for line in (
            {"kind": "ready"},
            {"kind": "step", "step": 3, "loss": 1.5},
            {"kind": "summary", "units": {}},
            {"kind": "row", "shown": ["a"], "a": 2},
            {"kind": "traffic", "sent": [0, 1], "received": [1, 0]},
        )
    )
    profiles = [
        (folder / "p.toml", path.read_bytes(), lambda p: profile.load(str(p)))
        for path in sorted((ROOT / "netem_profiles").glob("*.toml"))[:12]
    ]
    suites = [
        (folder / "e.toml", path.read_bytes(), lambda p: points.points(p, settings=[]))
        for path in sorted((ROOT / "workloads" / "suites").glob("*.toml"))
    ]
    return [
        *profiles,
        *suites,
        (folder / "suite" / "suite.json", json.dumps(plan).encode(), lambda p: models.read(p, models.SuitePlan)),
        (run / "summary.json", json.dumps(one).encode(), lambda p: models.read(p, models.RunSummary)),
        (run / "records" / "rank-0.jsonl", records.encode() + b"\n", read_records),
        (book / "journal.jsonl", entry.encode() * 3, lambda _: journal.Journal("f0f0").made()),
        (book / "owner.json", json.dumps({"pid": 1, "boot": journal.boot_id()}).encode(), lambda _: read_book()),
        (book / "net.json", LAB, lambda _: read_book()),
    ]


def stored() -> tuple[dict[str, Any], dict[str, Any]]:
    plan = {
        "format": models.FORMAT,
        "run_id": "ab12",
        "suite": "x",
        "sessions": [{"started": "2026-01-01T00:00:00+0000"}],
        "plan": [{"number": 0, "point": {"a": 1}, "seed": 0, "experiment": {"name": "x"}}],
    }
    one = {
        "point": {"a": 1},
        "seed": 0,
        "dir": "x",
        "backend": "ebpf",
        "hosts": 4,
        "profiles": ["loss_5"],
        "verdict": "valid",
        "columns": {"fault": "valid", "timing": "valid", "outcome": "valid"},
        "reasons": {"fault": ["exact"]},
        "workload": {"loss": 1.5},
        "rows": [{"shown": ["a"], "a": 1.5}],
        "duration_s": 3.0,
        "units": {"a": "ms"},
    }
    return plan, one


def read_records(path: Path) -> None:
    from lossbench.files import as_json, finite

    ranks = Ranks(folder=path.parent, experiment=None, store=None, place_of=None, identity=None)  # type: ignore
    ranks.members = [Member(number=0, process=None, records=path, log=path)]  # type: ignore[arg-type]
    for record in ranks.read():
        json.loads(as_json(finite(record)), parse_constant=_no_such_number)


def _no_such_number(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def read_book() -> None:
    from lossbench.runs import standing

    book = journal.Journal("f0f0")
    book.owner(), book.is_lab(), book.standing()
    with suppress(LossbenchError):
        standing._read(book)
    standing.listed()


def files(go_on: Budget, seed: int) -> int:
    from lossbench.results import index

    dice, done, accepted = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as name, own_state(Path(name) / "state"):
        folder = Path(name)
        everything = seeds_of(folder)
        for path, right, read in everything:
            path.write_bytes(right)
            read(path)  # or the seed itself is wrong
        while go_on(done):
            path, right, read = dice.choice(everything)
            path.write_bytes(broken(path, right, dice))
            try:
                read(path)
                accepted += 1
            except LossbenchError:
                pass
            if path.is_relative_to(folder / "suite"):
                with suppress(LossbenchError):
                    index.read_suite(folder / "suite")
                samples.read(folder / "suite" / "000")
            path.write_bytes(right)
            done += 1
    print(f"files: {accepted} of {done} were still right")
    return done


def broken(path: Path, right: bytes, dice: random.Random) -> bytes:
    if path.suffix == ".json" and dice.random() < 0.6:
        return json.dumps(mutated(json.loads(right), dice)).encode("utf-8", "replace")
    return spoiled(right, dice)


class own_state:
    """Journals of the fuzz, not the machine's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.before = folder, journal.ROOT

    def __enter__(self) -> None:
        self.folder.mkdir()
        journal.ROOT = self.folder

    def __exit__(self, *_: Any) -> None:
        journal.ROOT = self.before


# --- netlink ---------------------------------------------------------------------------------------------------------


def answers() -> Iterator[bytes]:
    """What this kernel says of its own loopback; asked, changed nowhere."""
    import socket

    asks = [
        (rtnl_messages.RTM_GETLINK, rtnl_messages.LINKMSG.pack(0, 0, 0, 0, 0, 0)),
        (rtnl_messages.RTM_GETQDISC, rtnl_messages.tcmsg(0)),
    ]
    for kind, body in asks:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as one:
            one.bind((0, 0))
            one.send(rtnl_messages.HEADER.pack(16 + len(body), kind, 0x301, 1, 0) + body)
            yield one.recv(1 << 16)
    nested = struct.pack("<HH", 8, 1) + b"htb\0" + struct.pack("<HH", 52, 2) + struct.pack("<HH", 48, 1) + bytes(44)
    yield (
        rtnl_messages.HEADER.pack(36 + len(nested), rtnl_messages.RTM_NEWTCLASS, 0, 1, 0)
        + rtnl_messages.tcmsg(1)
        + nested
    )
    action = (
        struct.pack("<HH", 8, 1) + b"bpf\0" + struct.pack("<HH", 20, 2) + struct.pack("<HHHH", 16, 1, 12, 1) + bytes(8)
    )
    yield (
        rtnl_messages.HEADER.pack(36 + len(action), rtnl_messages.RTM_NEWTFILTER, 0, 1, 0)
        + rtnl_messages.tcmsg(1)
        + action
    )


def netlink(go_on: Budget, seed: int) -> int:
    dice, done, right = random.Random(seed), 0, list(answers())
    readers = [rtnl_messages.link_of, rtnl_messages.qdisc_of, rtnl_messages.class_of, rtnl_messages.filter_of]
    while go_on(done):
        data = bytearray(dice.choice(right))
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(len(data))] = dice.choice([0, 1, 4, 255, dice.randrange(256)])
        data = data[: dice.randrange(len(data)) if dice.random() < 0.3 else len(data)]
        for message in rtnl_messages.messages(bytes(data)):
            for read in readers:
                with suppress(OSError):
                    read(message[3])
            with suppress(OSError):
                rtnl_messages.change_of(*message)
        done += 1
    return done


PARTS = {"datagrams_c": datagrams_c, "datagrams": datagrams, "files": files, "netlink": netlink}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them if none is named")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    asked = parser.parse_args()
    assert KINDS and Header  # the wire format that the seeds speak
    os.environ.pop("LOSSBENCH_DATA", None)
    for name in asked.parts or PARTS:
        began = time.monotonic()
        limit = began + asked.seconds

        def go_on(done: int, limit: float = limit) -> bool:
            return done < asked.count if asked.count else time.monotonic() < limit

        print(f"{name}: seed {asked.seed}", flush=True)
        done = PARTS[name](go_on, asked.seed)
        print(
            f"{name}: {done} in {time.monotonic() - began:.0f} s, nothing crashed, nothing wrong accepted", flush=True
        )


if __name__ == "__main__":
    main()
