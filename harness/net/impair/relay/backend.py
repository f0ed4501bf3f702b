"""Backend relay: ebpf, and delay by a user-space wire, for kernels that have neither netem nor fq.

The program sends a surviving packet that must wait to a TAP device; a process (process.py) reads it
there, keeps it until its time, and writes it back, from where a second program returns it to the port it came from.
Loss, counters and proof are the ebpf backend's. Good for tens of thousands of packets per second; refused above."""

from __future__ import annotations

import fcntl
import json
import os
import select
import struct
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyroute2 import IPRoute

from lossbench.contract import derive_seed
from lossbench.errors import NotAbleError, RunError
from lossbench.net.bpf import syscalls
from lossbench.net.bpf.assembler import R1, R2, R6, REDIRECT, Assembler
from lossbench.net.counters import Counters, Detour, Held, HeldByRule, ReadBack
from lossbench.net.host.place import Place
from lossbench.net.impair.backend import Kind
from lossbench.net.impair.ebpf import backend as ebpf
from lossbench.net.impair.ebpf.delay import Delays
from lossbench.net.impair.ebpf.program import DUPLICATE_MARK, SKB_MARK
from lossbench.net.tc.hook import PARENT, TC_H_ROOT, HookPoint, ensure_clsact
from lossbench.net.tc.look import Look
from lossbench.processes import module_command, module_environment
from lossbench.spec.placement import Hook, Rule
from lossbench.spec.profile import Profile
from lossbench.spec.topology import Topology

PACKETS_PER_S = 40_000  # of MTU size, all links together; a busy machine carries fewer, and the proof shows it
TUNSETIFF, IFF_TAP_NO_PI = 0x400454CA, 0x0002 | 0x1000
QUEUE_PACKETS = 20_000
ANSWER_S = 30.0  # a wire that has not answered by then never will


def refusal(profile: Profile) -> str | None:
    """What this backend can't do of a profile, in words; None if it can do all."""
    if profile.delay is not None and profile.delay.correlation_percent:
        return "correlated delay"
    return ebpf.refusal(profile.model_copy(update={"delay": None, "reorder": None}))


def outrun_by(topology: Topology) -> str | None:
    """Why these links could outrun the wire; None if they can't."""
    hosts, rate_mbit, mtu = topology.hosts, topology.uplink_mbit(), topology.mtu
    if rate_mbit is None:
        need = "links need a rate (--rate 100mbit, topology.rate_mbit)"
        return f"backend relay carries {PACKETS_PER_S} packets/s in all: {need}"
    possible = hosts * rate_mbit * 1e6 / 8 / mtu
    if possible > PACKETS_PER_S:
        fitting = PACKETS_PER_S * mtu * 8 / 1e6 / hosts
        return (
            f"backend relay carries {PACKETS_PER_S} packets/s, {hosts} links of {rate_mbit:g} Mbit/s make "
            f"{possible:.0f} (at most {fitting:.0f} Mbit/s each)"
        )
    return None


class RelayBackend(ebpf.EbpfBackend):
    """See backend.Backend."""

    name = "relay"

    def __init__(
        self, switch: IPRoute, *, place: Place, state: dict[str, Any] | None = None, rules: Any = None
    ) -> None:
        super().__init__(switch, place=place, state=state, rules=rules)
        self._taps: dict[Hook, tuple[int, int]] = {}  # descriptor, interface index
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = b""

    def expect(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        """Wires are opened before traffic flows: a new one means a new process for all of them."""
        super().expect(point, rules)
        if any(rule.profile.delay is not None for rule in rules) and point.hook not in self._taps:
            self._open_tap(point)

    def put(self, point: HookPoint, rules: tuple[Rule, ...]) -> None:
        held = [rule for rule in rules if rule.profile.delay is not None]
        if len(held) > 1:
            step = "one [[impair]] with a delay per host"
            raise NotAbleError("backend relay holds back by one rule per hook", next_step=step)
        if held and point.hook not in self._taps:
            self._open_tap(point)
        # In this order the first packet that is held back meets its delay, and the last one too.
        if held:
            self._tell(point.hook, held[0])
        super().put(point, rules)

    def restart(self, point: HookPoint) -> None:
        super().restart(point)
        if self._taps and self._alive():
            self._ask({"forget": True})

    def _delays(self, point: HookPoint, rules: tuple[Rule, ...]) -> Delays:
        del rules
        return Delays(detour=self._taps[point.hook][1] if point.hook in self._taps else 0)

    def read_back(self, point: HookPoint, look: Look) -> list[ReadBack]:
        """The program may be in force while the wire behind it is dead."""
        entries = super().read_back(point, look)
        if point.hook in self._taps and not self._alive():
            entries = [replace(entry, attached=False) for entry in entries]
        return entries

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def detours(self, point: HookPoint, look: Look, counters: Counters) -> tuple[Detour, ...]:
        """What a rule with a delay lets live goes to the tap; the wire writes it back there."""
        if point.hook not in self._taps:
            return ()
        tap = look.links.get(self._taps[point.hook][1])
        if tap is None:
            return ()
        held = {rule.label for rule in self._placed[point.hook].slots if rule.profile.delay is not None}
        queued = sum(one.dropped for one in look.qdiscs.get(tap.index, ()) if one.parent == TC_H_ROOT)
        return (
            Detour(
                place=f"{point.hook.name}: wire of {tap.name}",
                into=sum(c.seen - c.dropped for label, c in counters.items() if label in held),
                returned=tap.rx_packets,
                dropped=tap.tx_dropped + tap.rx_dropped + queued,
            ),
        )

    def held(self) -> HeldByRule:
        """What the wires say of themselves since the counters were set to zero."""
        if not self._alive():
            return {}
        by_wire = self._ask({"report": True})["wires"]
        return {
            hook: {rule: Held(**one) for rule, one in by_wire[str(fd)].items()}
            for hook, (fd, _) in self._taps.items()
            if str(fd) in by_wire
        }

    def _open_tap(self, point: HookPoint) -> None:
        name = f"t{point.hook.rank}{point.hook.direction[0]}"
        with self._place.inside():
            descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            try:
                fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP_NO_PI))
            except OSError:
                os.close(descriptor)
                raise
        index = self._switch.link_lookup(ifname=name)[0]
        self._switch.link("set", index=index, mtu=max(point.mtu, 1500), txqlen=QUEUE_PACKETS, state="up")
        self._taps[point.hook] = (descriptor, index)
        ensure_clsact(self._switch, index)
        fd = syscalls.load_classifier(_return_program(point), name="lb_return")
        try:
            self._switch.tc(
                "replace-filter",
                "bpf",
                index,
                handle=1,
                parent=PARENT["ingress"],
                prio=1,
                fd=fd,
                name="lb_return",
                direct_action=True,
            )
        finally:
            os.close(fd)
        self._restart()

    def _restart(self) -> None:
        """One process for all wires; a new wire means a new process, so open them before traffic flows."""
        self._stop()
        descriptors = [descriptor for descriptor, _ in self._taps.values()]
        with self._place.inside():  # so that it is found, and ended, with its namespace
            self._process = subprocess.Popen(
                module_command("lossbench.net.impair.relay.process"),
                pass_fds=descriptors,
                env=module_environment(os.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us; the wire ends when its orders end
            )
        self._heard = b""
        for hook, rule in self._held.items():
            self._tell(hook, rule)

    @property
    def _held(self) -> dict[Hook, Rule]:
        return {
            hook: rule
            for hook, placed in self._placed.items()
            if hook in self._taps
            for rule in placed.rules
            if rule.profile.delay is not None
        }

    def _tell(self, hook: Hook, rule: Rule | None) -> None:
        order: dict[str, Any] = {"wire": self._taps[hook][0], "seed": derive_seed(rule.seed, "delay") if rule else 0}
        if rule is not None:
            order |= {"rule": rule.label, **rule.profile.model_dump(include={"delay", "reorder"})}
        self._ask(order)

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Returns when the wire has obeyed: a process may start late, and packets must not run ahead of it."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RunError("the wire that holds packets back has ended") from None
        limit = time.monotonic() + ANSWER_S
        while b"\n" not in self._heard:
            ready = select.select([self._process.stdout], [], [], max(limit - time.monotonic(), 0))[0]
            data = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            if not data:
                raise RunError(f"the wire that holds packets back {'has ended' if ready else 'does not answer'}")
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return dict(json.loads(line))

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None and self._process.stdout is not None
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.stdout.close()
            self._process = None

    def close(self) -> None:
        self._stop()
        for descriptor, _ in self._taps.values():
            os.close(descriptor)
        self._taps = {}
        super().close()


def _return_program(point: HookPoint) -> bytes:
    """From the wire back to the port: marked, so that the hook lets it pass, on its ingress or its egress side."""
    a = Assembler()
    a.mov(R6, R1)
    a.mov(R1, DUPLICATE_MARK)
    a.store(4, R6, SKB_MARK, R1)
    a.mov(R1, point.port_index)
    a.mov(R2, 1 if point.side == "ingress" else 0)
    a.call(REDIRECT)
    a.exit(None)
    return a.assemble()


KIND = Kind(
    name="relay",
    make=RelayBackend,
    refusal=refusal,
    too_many=ebpf.too_many,
    outrun_by=outrun_by,
    stands_alone=False,
    lacking=lambda kernel: kernel.no_program() or kernel.tun,
    advice="run as root, with /dev/net/tun",
)
