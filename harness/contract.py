"""The door between harness and workload: environment variables in, JSON lines out, one datagram header.

Standard library only, because every workload imports it, on laptops and in labs. The harness starts a workload as a
process in a host and hands it the torchrun names (RANK, WORLD_SIZE, ...) plus LOSSBENCH_*; the workload appends JSON
lines to its records file. A script that knows nothing of this file still runs: only the barrier and records are lost.

    from lossbench import Door
    door = Door.from_environment()
    door.ready()                      # tells the harness, then waits until every rank is ready
    door.record("step", step=0, loss=2.3)
    door.record("summary", accuracy=0.93)
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import struct
import sys
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, TextIO

# --- the datagram header -------------------------------------------------------------------------------------------
# Little-endian, 40 bytes, at the start of every UDP payload of ours. The ebpf backend reads it in the kernel, so that
# loss can be asked for by step, half or block. Fields: (name, offset, size in bytes).
MAGIC = 0x424C  # "LB" on the wire
VERSION = 2
HEADER = struct.Struct("<HBBHHQIIBBBBIII")
HEADER_BYTES = HEADER.size
HEADER_FIELDS: dict[str, tuple[int, int]] = {
    "magic": (0, 2),
    "version": (2, 1),
    "kind": (3, 1),
    "source": (4, 2),
    "destination": (6, 2),
    "tag": (8, 8),
    "sequence": (16, 4),
    "step": (20, 4),
    "half": (24, 1),
    "dtype": (25, 1),
    "traffic": (26, 1),
    "behind": (27, 1),
    "size": (28, 4),
    "block": (32, 4),
    "chunk": (36, 4),
}
KINDS: dict[str, int] = {"data": 1, "marker": 2, "ack": 3, "reliable": 4, "probe": 5, "parity": 6}
HALVES: dict[str, int] = {"reduce_scatter": 0, "all_gather": 1}
CLONE_NEWNET = 0x40000000
DATA_PORT = 29400  # UDP port of our datagrams unless LOSSBENCH_PORT says otherwise
MASTER_PORT = 29500  # where ranks meet (torch's store); programs beside the workload at the next ones


@dataclass(frozen=True, kw_only=True)
class Header:
    """One datagram's header; `pack` and `unpack` are the wire format. `tag`: keyed, of the group; in a probe the run's
    token."""

    kind: int
    tag: int
    source: int
    destination: int
    step: int = 0
    half: int = 0
    dtype: int = 0
    traffic: int = 0
    behind: int = 0
    sequence: int = 0
    size: int = 0
    block: int = 0
    chunk: int = 0

    def pack(self) -> bytes:
        fields = {"magic": MAGIC, "version": VERSION, **vars(self)}
        return HEADER.pack(*(fields[name] for name in HEADER_FIELDS))

    @classmethod
    def unpack(cls, payload: bytes) -> Header | None:
        """The header, or None if these bytes are not one of ours."""
        if len(payload) < HEADER_BYTES:
            return None
        fields = dict(zip(HEADER_FIELDS, HEADER.unpack_from(payload), strict=True))
        if fields.pop("magic") != MAGIC or fields.pop("version") != VERSION:
            return None
        return cls(**fields)


# --- seeds ---------------------------------------------------------------------------------------------------------
# Version 1 added the first part of the path to the seed before mixing, so that host r of seed s drew the pattern of
# host r+1 of seed s-1, and numpy took [seed, 1] and [seed, 1, 0] for the same. Results say which version made them.
SEEDS_VERSION = 2


def derive_seed(seed: int, *path: int | str) -> int:
    """64 bits of their own for every use of randomness: a hash, so that paths that resemble each other share nothing.
    Parts are told apart by type and place: 1 is not "1", (1, 23) is not (12, 3)."""
    digest = hashlib.blake2b(json.dumps([seed, *path]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


# --- what users add ------------------------------------------------------------------------------------------------


def by_path(path: str) -> Any:
    """`module:name`, for a strategy, a backend, a table of one's own. Modules are found as Python finds them, and last
    of all in the current folder, so that no file there can stand in for another module. ValueError: what is wrong."""
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"{path}: not module:name")
    here = str(Path.cwd())
    added = here not in sys.path
    sys.path += [here] if added else []
    try:
        found = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the user's file
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from None
    finally:
        if added:
            sys.path.remove(here)
    if not hasattr(found, name):
        raise ValueError(f"{path}: {module} has no '{name}'")
    return getattr(found, name)


# --- environment variables in --------------------------------------------------------------------------------------
# torchrun's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (on the control link), and:
#   LOSSBENCH_RUN               short id of the run
#   LOSSBENCH_TOKEN             random 64-bit number in hex: packets of other runs are told apart by it
#   LOSSBENCH_RANKS_HERE        ranks that share this machine's cores
#   LOSSBENCH_SEED
#   LOSSBENCH_INTERFACE         the impaired data link
#   LOSSBENCH_CONTROL_INTERFACE the unimpaired link, for rendezvous and health
#   LOSSBENCH_CONTROL           this host's address on it
#   LOSSBENCH_ADDRESSES         data addresses of all ranks, comma-separated, in rank order
#   LOSSBENCH_PORT
#   LOSSBENCH_BESIDE            roles of the programs beside the workload, where there are any
#   LOSSBENCH_STACK             own: sysctls of this host's network stack may be set; else it is a machine's
#   LOSSBENCH_ROLE              of a program beside the workload; RANK, WORLD_SIZE and ADDRESSES are among its own then
#   LOSSBENCH_DSCP              what its packets are to be marked with, where they belong to a traffic class
#   LOSSBENCH_SPEC              JSON file: the workload's options
#   LOSSBENCH_RECORDS           file this rank appends its JSON lines to (LOSSBENCH_RECORDS_NAME: the same by name)
#   LOSSBENCH_GO                FIFO: one byte of it for each rank, once every rank is ready
#   LOSSBENCH_SEATS             JSON file, where this process hosts several ranks: [{"rank", "records", "namespace"}]


def own_stack() -> bool:
    """May this process set sysctls of the network stack it runs in?"""
    return os.environ.get("LOSSBENCH_STACK") == "own"


# --- JSON lines out ------------------------------------------------------------------------------------------------
# Kinds the harness interprets; any other kind is stored as it is.
#   ready    before the clock starts             step     `step`: drives step schedules and the progress display
#   traffic  `sent`, `received`: datagrams per peer rank so far, joined with the kernel's counters; `complete`: true if
#            nothing else was sent on the data link, so that every missing datagram must be a counted drop
#   control  `sent_bytes`: that this rank sent over the control link so far, to measure: no way around the fault. What
#            went to and from the store at MASTER_PORT is counted by itself
#   summary  final numbers of this rank; the last value of each counts
#   doubt    `text`: why this program's own times are not to be believed; `load` = true: nor any others, by what it sent
#   row      one line of the run's result table: any names and values. `shown`: names that a terminal shows, the first
#            says what the line is about; `note` below it; `path` = "unknown" voids the line, `doubt` (why) its times
#            and those of its other numbers that `doubted` names
#   error    `message`: shown to the user
# Any record may declare units: {"wall_s": "s", "served": "1/s", "ms_in_name_only": ""}. A number whose unit is a time
# or a rate is believed only where the machine was quiet enough; without a unit it is a time if its name says so.


def _plain(value: Any) -> Any:
    """A tensor or an array of one number as that number, anything else in words: what a program says never ends it."""
    try:
        found = value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):  # no number, or several
        return str(value)
    return found if isinstance(found, int | float) else str(value)


@dataclass(kw_only=True)
class Door:
    """A rank's view of the run it is part of."""

    rank: int
    world_size: int
    addresses: tuple[str, ...]
    interface: str = ""
    port: int = DATA_PORT
    seed: int = 0
    token: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    records_path: str = ""
    go_path: str = ""
    role: str = ""  # of a program beside the workload
    dscp: int = 0
    namespace: str = ""  # the host this rank's sockets belong to, where it is not the process's own
    _records: TextIO | None = None
    _samples: dict[str, BinaryIO] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Door:
        env = os.environ if environment is None else environment
        spec = env.get("LOSSBENCH_SPEC", "")
        options: Mapping[str, Any] = {}
        if spec:
            with open(spec, encoding="utf-8") as file:
                options = json.load(file)
        addresses = tuple(a for a in env.get("LOSSBENCH_ADDRESSES", "").split(",") if a)
        records, by_name = env.get("LOSSBENCH_RECORDS", ""), env.get("LOSSBENCH_RECORDS_NAME", "")
        return cls(
            rank=int(env.get("RANK", "0")),
            world_size=int(env.get("WORLD_SIZE", "1")),
            addresses=addresses,
            interface=env.get("LOSSBENCH_INTERFACE", ""),
            port=int(env.get("LOSSBENCH_PORT", str(DATA_PORT))),
            seed=int(env.get("LOSSBENCH_SEED", "0")),
            token=int(env.get("LOSSBENCH_TOKEN", "0"), 16),
            options=options,
            records_path=records if os.access(Path(records).parent, os.W_OK) else by_name or records,
            go_path=env.get("LOSSBENCH_GO", ""),
            role=env.get("LOSSBENCH_ROLE", ""),
            dscp=int(env.get("LOSSBENCH_DSCP", "0")),
        )

    @classmethod
    def seats_from_environment(cls, environment: Mapping[str, str] | None = None) -> list[Door]:
        """All ranks that this process hosts; usually one."""
        env = os.environ if environment is None else environment
        own = cls.from_environment(env)
        if not env.get("LOSSBENCH_SEATS"):
            return [own]
        with open(env["LOSSBENCH_SEATS"], encoding="utf-8") as file:
            seats = json.load(file)
        return [
            replace(own, rank=seat["rank"], records_path=seat["records"], namespace=seat["namespace"]) for seat in seats
        ]

    def enter(self) -> None:
        """This thread steps into the rank's host: sockets and threads made from here on belong there."""
        if not self.namespace:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        with open(self.namespace, "rb") as file:
            if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"rank {self.rank} can't enter its host: {os.strerror(number)}")

    def record(self, kind: str, **fields: Any) -> None:
        """Append one JSON line; flushed at once so that a crash loses nothing that was said."""
        if not self.records_path:
            return
        if self._records is None:
            self._records = open(self.records_path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the rank
        line = {"kind": kind, "rank": self.rank, "time_s": round(time.time(), 6), **fields}
        self._records.write(json.dumps(line, separators=(",", ":"), default=_plain) + "\n")
        self._records.flush()

    def samples(
        self, name: str, values: Iterable[float], *, unit: str = "ms", together: bool = True, aside: bool = False
    ) -> None:
        """Append to a long set of numbers (latencies, step times): eight bytes each, beside the records. `together`:
        the n-th of every rank is the same event (a step, a call) and counts once, as long as its slowest rank took;
        False: every number is an event of its own (a request). `aside`: it tells something about other samples (when
        each was, how large): stored, and in no table."""
        if not self.records_path:
            return
        name = f"{self.role}.{name}" if self.role else name
        if name not in self._samples:
            folder = Path(self.records_path).parent.parent / "samples"
            folder.mkdir(exist_ok=True)
            about = json.dumps({"unit": unit, "together": together, "aside": aside})
            (folder / f"{name}.rank-{self.rank}.json").write_text(about, encoding="utf-8")
            path = folder / f"{name}.rank-{self.rank}.f64"
            self._samples[name] = open(path, "ab", buffering=0)  # noqa: SIM115 - open as long as the rank
        numbers = array("d", values)
        if sys.byteorder == "big":
            numbers.byteswap()
        self._samples[name].write(numbers.tobytes())

    def ready(self) -> None:
        """Say that this rank could start now, then wait until the harness opens the gate for all."""
        ready_together([self])


def ready_together(doors: Sequence[Door]) -> None:
    """`ready` for all ranks of this process."""
    for door in doors:
        door.record("ready")
    if not doors[0].go_path:
        return
    gate = os.open(doors[0].go_path, os.O_RDONLY)
    for _ in doors:
        os.read(gate, 1)
    os.close(gate)
