"""Rules put on a NIC: examined, watched, built, opened; undone whatever fails on the way."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from pyroute2 import IPRoute

from lossbench.errors import NotAbleError, RunError, UsageError
from lossbench.net.host import namespaces
from lossbench.net.host.place import Here
from lossbench.net.impair import registry
from lossbench.net.journal import Journal
from lossbench.net.kernel import Kernel, clock_offset_ns
from lossbench.net.nic import alone, left, safety, snapshot, state, takedown, watchdog
from lossbench.net.nic import facts as nic_facts
from lossbench.net.nic.facts import Facts, connections
from lossbench.net.nic.request import RULES, Request
from lossbench.net.nic.state import APPLYING, ATTACHED, STANDING, UNCONFIRMED, State
from lossbench.net.nic.way import programs
from lossbench.net.nic.way.clock import Clock, Fds
from lossbench.net.nic.way.detour import Detour
from lossbench.net.nic.way.gate import open_gate
from lossbench.net.tc import kinds, ours
from lossbench.net.tc.look import Look
from lossbench.net.tc.rtnl import Reader

REVOKED = "it took too long, and was taken back meanwhile"
BACKENDS = ("netem", "ebpf")  # what goes on when its maker has ended


def examined(request: Request) -> tuple[Facts, str]:
    """(what the interface is, which backend); refuses before anything is changed, and changes nothing."""
    if not request.attached:
        alone.refuse()
    for profile in request.profiles():
        for place in (*profile.match.destinations, *profile.match.sources):
            if place.startswith("h") and not request.placed:
                raise UsageError(f"profile {profile.name} names host {place}: a NIC knows addresses only")
        if profile.corrupt_percent and any(rule.profile == profile for rule in request.ever("ingress")):
            text = f"profile {profile.name} damages packets: at ingress their checksum has been looked at already"
            raise NotAbleError(text, next_step="--side egress")
    facts = left.found(request.interface)
    for gateway in facts.gateways:
        if gateway in {one.partition("/")[0] for one in request.traffic.peers}:
            raise NotAbleError(f"{gateway} is the gateway, which is never touched", next_step="leave it out of --to")
    _fits(request, facts)
    safety.refuse(facts, request.every_side(), this_nic=request.this_nic, past_rdma=request.past_rdma)
    if clock_offset_ns("boottime"):
        text = "the clock of this time namespace is not the kernel's, by which a gate ends the loss"
        raise NotAbleError(text, next_step="run it outside of the time namespace")
    kernel = Kernel.tried()
    if kernel.no_program() is not None:
        raise NotAbleError(f"{kernel.no_program()}: a NIC's gate is an eBPF program", next_step="run as root")
    return facts, _backend(request, kernel)


def _fits(request: Request, facts: Facts) -> None:
    """Into one program; found out before anything is made."""
    try:
        for side in request.every_side():
            never = safety.protected(facts, also=request.spared)
            programs.gate(fds=Fds(deadline=0, counts=0), side=side, to=1, traffic=request.traffic, protected=never)
    except struct.error:  # a jump beyond 16 bits
        raise NotAbleError("too many addresses for one program", next_step="name networks instead") from None


def _backend(request: Request, kernel: Kernel) -> str:
    if request.backend not in ("auto", *BACKENDS):
        step = f"known for a NIC: auto, {', '.join(BACKENDS)}"
        raise UsageError(f"backend {request.backend} does not stand on a NIC", next_step=step)
    why = {}
    for name in BACKENDS if request.backend == "auto" else (request.backend,):
        why[name] = _refusal(name, request, kernel)
        if why[name] is None:
            return name
    reasons = "; ".join(f"{name} can't: {reason}" for name, reason in why.items())
    step = "profiles without delay (loss_1, bursty_5) stand on ebpf" if "ebpf" in able(kernel) else "lossbench doctor"
    raise NotAbleError(f"profile {request.name()} can't be put on this NIC ({reasons})", next_step=step)


def _lacking(backend: str, kernel: Kernel) -> str | None:
    """netem's devices are no IFBs here."""
    return kernel.no_qdisc("netem") if backend == "netem" else registry.find(backend).lacking(kernel)


def able(kernel: Kernel) -> list[str]:
    return [name for name in BACKENDS if _lacking(name, kernel) is None]


def _refusal(backend: str, request: Request, kernel: Kernel) -> str | None:
    kind = registry.find(backend)
    reasons = [_lacking(backend, kernel), *(kind.refusal(one) for one in request.profiles())]
    reasons += [kind.too_many(request.ever(side)) for side in request.sides]
    return next((one for one in reasons if one is not None), None)


def apply(request: Request) -> State:
    """All of it; undone at once if anything fails. While it is attached this process holds it."""
    facts, backend = examined(request)
    facts = left.cleared(facts)
    book = Journal.claim(kind="nic")
    try:
        found, detours = put(request, book, facts, begun(request, book, facts, backend))
        closed(detours)
    except BaseException:
        takedown.take_away(book)
        raise
    if not request.attached:
        book.release()
    return found


def closed(detours: list[Detour]) -> None:
    """Handles only: what stands goes on."""
    for one in detours:
        one.close()
    for handle in {id(one.handle): one.handle for one in detours}.values():
        handle.close()


def begun(request: Request, book: Journal, facts: Facts, backend: str) -> State:
    """Watched from now on; nothing is changed yet."""
    moment = state.now()
    book.keep("snapshot.json", snapshot.of(facts.index))
    found = State(
        id=book.id,
        interface=facts.name,
        index=facts.index,
        netns=namespaces.current(),
        phase=APPLYING,
        until=moment + state.SETUP_S + watchdog.ARMED_S,
        expires=moment + request.for_s + state.SETUP_S + watchdog.ARMED_S,
        profile=request.name(),
        backend=backend,
        seed=request.seed,
        sides=request.sides,
        rank=request.rank,
        counted=request.counted,
        asked={"traffic": asdict(request.traffic), "rules": RULES.dump_python(request.rules, mode="json")},
        ssh=connections() if facts.ssh is not None else (),  # of every port: sshd may listen at several
    )
    found.save(book)
    if left.on(facts, but=book.id):  # another one may have begun since
        raise NotAbleError(f"{facts.name} was impaired by another one meanwhile", next_step="try again")
    watchdog.arm(book)
    return found


def put(request: Request, book: Journal, facts: Facts, begun_as: State) -> tuple[State, list[Detour]]:
    """In force; what comes next is decided by the phase it returns with. The detours are the caller's to close."""
    kinds.install()
    with ExitStack() as stack:
        stack.enter_context(nic_facts.present(facts.name))
        handle = IPRoute()
        stack.callback(handle.close)
        clock = Clock.made()
        stack.callback(clock.close)
        detours = []
        make = _not_revoked(book)
        for side in request.sides:
            one = request.detour(side, network_id=book.id, facts=facts, backend=begun_as.backend, handle=handle)
            stack.callback(one.close)
            one.build(make)
            detours.append(one)
        if not facts.clsact and not facts.old_ingress:
            make(**ours.clsact_entry(facts.name, facts.index))
        moment = state.now()
        expires = moment + request.for_s
        phase, until = _phase(request, facts, moment, expires)
        clock.set(moment + state.LEASE_S if phase == ATTACHED else until)
        kept = {one.side: one.state() for one in detours}
        found = begun_as.with_phase(APPLYING, moment + state.SETUP_S, maps=clock.ids(), detours=kept)
        found.save(book)
        _open_gates(request, book, facts, detours, clock, handle)
        if takedown.revoked(book):
            raise RunError(REVOKED)
        if wrong := looked_at(detours):
            raise RunError("; ".join(wrong))
        if phase == ATTACHED:  # the lease begins now, however slow this machine was so far
            clock.set(state.now() + state.LEASE_S)
        found = found.with_phase(phase, until, expires=expires)
        found.save(book)
        clock.close()
        stack.pop_all()  # they are the caller's now
        return found, detours


def _open_gates(
    request: Request, book: Journal, facts: Facts, detours: list[Detour], clock: Clock, handle: IPRoute
) -> None:
    """From now on packets are led aside, or counted."""
    aside = {one.side: one.index("a") for one in detours}
    for side in request.every_side():
        priority = safety.free_priority(facts, side)
        assert priority is not None  # safety.refuse has asked
        code = programs.gate(
            fds=clock.fds(),
            side=side,
            to=aside.get(side, 0),
            traffic=request.traffic,
            protected=safety.protected(facts, also=request.spared),
        )
        open_gate(handle, _not_revoked(book), network_id=book.id, facts=facts, side=side, priority=priority, code=code)


def looked_at(detours: list[Detour]) -> list[str]:
    """What is not as it was asked for, in words."""
    reader = Reader(Here())
    try:
        look = Look.now(reader)
        return [text for one in detours for text in one.wrong(look)]
    finally:
        reader.close()


def _not_revoked(book: Journal) -> Callable[..., None]:
    """Who slept through its time must not make anything more."""

    def before_making(**entry: Any) -> None:
        if takedown.revoked(book):
            raise RunError(REVOKED)
        book.before_making(**entry)

    return before_making


def _phase(request: Request, facts: Facts, moment: float, expires: float) -> tuple[str, float]:
    if request.attached:
        return ATTACHED, expires
    if facts.ssh is not None:
        return UNCONFIRMED, min(moment + request.confirm_s, expires)
    return STANDING, expires


@contextmanager
def lease(found: State) -> Iterator[None]:
    """The kernel's deadline is put off as long as this process lives and moves."""
    clock, book = Clock.opened(found.maps), Journal(found.id)
    ended = threading.Event()

    def renew() -> None:
        while clock is not None and not ended.wait(state.LEASE_S / 6) and not takedown.revoked(book):
            clock.set(min(state.now() + state.LEASE_S, found.expires))

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if clock is not None:
            clock.close()
