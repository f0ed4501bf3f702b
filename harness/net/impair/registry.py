"""The backends there are, and which one a run gets. Adding a backend is one file and two lines here (and
what it needs in machine.Kernel.able)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyroute2 import IPRoute

from harness.errors import NotAbleError
from harness.net.impair import cbpf, ebpf, edt, netem, relay
from harness.net.impair.base import Backend
from harness.placement import Rule, Rules
from harness.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Kind:
    make: Callable[..., Backend]
    refusal: Callable[[Profile], str | None]
    too_many: Callable[[tuple[Rule, ...]], str | None]


KINDS: dict[str, Kind] = {
    "netem": Kind(make=netem.NetemBackend, refusal=netem.refusal, too_many=netem.too_many),
    "ebpf": Kind(make=ebpf.EbpfBackend, refusal=ebpf.refusal, too_many=ebpf.too_many),
    "cbpf": Kind(make=cbpf.CbpfBackend, refusal=cbpf.refusal, too_many=cbpf.too_many),
    "edt": Kind(make=edt.EdtBackend, refusal=edt.refusal, too_many=ebpf.too_many),
    "relay": Kind(make=relay.RelayBackend, refusal=relay.refusal, too_many=ebpf.too_many),
}
ADVICE = {
    "netem": "on a stock kernel, here: lossbench vm run -- lossbench run ...",
    "ebpf": "run as root on a kernel with cls_bpf",
    "cbpf": "needs a kernel with cls_bpf",
    "edt": "run as root on a kernel with sch_fq",
    "relay": "run as root, with /dev/net/tun",
}


def choose(asked: str, *, profiles: list[Profile], rules: Rules, able: dict[str, str | None]) -> tuple[str, str]:
    """(backend, why). `able[name]` is None if this machine can, else the reason why not. Refuses before anything is
    built, saying who could do what was asked."""
    hooks = {_shape(here): here for here in rules.values()}.values()  # hooks that look alike need one look
    refusals = {name: _first_refusal(kind, profiles) or _too_many(kind, hooks) for name, kind in KINDS.items()}
    if asked != "auto":
        if able[asked] is not None:
            raise NotAbleError(f"backend {asked} does not work here: {able[asked]}", next_step=ADVICE[asked])
        if refusals[asked] is not None:
            raise NotAbleError(f"backend {asked} can't do {refusals[asked]}", next_step=_who_can(refusals, able))
        return asked, "asked for"
    for number, name in enumerate(KINDS):
        if able[name] is None and refusals[name] is None:
            passed_over = [f"{n}: {able[n] or f'can not do {refusals[n]}'}" for n in list(KINDS)[:number]]
            return name, "; ".join(passed_over) or "first choice"
    by_reason: dict[str, list[str]] = {}
    for name in KINDS:
        by_reason.setdefault(able[name] or f"can not do {refusals[name]}", []).append(name)
    reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    raise NotAbleError(
        f"no backend of this machine can do what was asked ({reasons})", next_step=_who_can(refusals, able)
    )


def _shape(rules: tuple[Rule, ...]) -> tuple[Any, ...]:
    """What decides how long a program gets."""
    return tuple((rule.profile, len(rule.match.destinations), len(rule.match.sources)) for rule in rules)


def _too_many(kind: Kind, hooks: Iterable[tuple[Rule, ...]]) -> str | None:
    return next((why for here in hooks if (why := kind.too_many(here)) is not None), None)


def _first_refusal(kind: Kind, profiles: list[Profile]) -> str | None:
    for profile in profiles:
        reason = kind.refusal(profile)
        if reason is not None:
            return f"{reason} (profile {profile.name})"
    return None


def _who_can(refusals: dict[str, str | None], able: dict[str, str | None]) -> str:
    could = [name for name, reason in refusals.items() if reason is None]
    here = [name for name in could if able[name] is None]
    if here:
        return f"backend {here[0]} can, here"
    if could:
        return " or ".join(f"backend {name} could: {ADVICE[name]}" for name in could)
    return "no backend can do all of this at once: split the profile"


def make(
    name: str, switch: IPRoute, *, namespace: str, state: dict[str, Any] | None = None, rules: Rules | None = None
) -> Backend:
    """A backend for the switch in this namespace; `state` and `rules` if another process put them in force."""
    return KINDS[name].make(switch, namespace=namespace, state=state, rules=rules)
