"""The backends there are, and which one a run gets. Adding one is its file and its place in this list; a user's own is
named by its import path: backend = "my_module:KIND"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lossbench.contract import by_path
from lossbench.errors import NotAbleError, UsageError
from lossbench.net.impair import cbpf, edt
from lossbench.net.impair.backend import Kind
from lossbench.net.impair.ebpf import backend as ebpf
from lossbench.net.impair.netem import backend as netem
from lossbench.net.impair.relay import backend as relay
from lossbench.net.kernel import Kernel
from lossbench.spec.placement import Rule, Rules
from lossbench.spec.profile import Profile

KINDS: dict[str, Kind] = {kind.name: kind for kind in (netem.KIND, ebpf.KIND, cbpf.KIND, edt.KIND, relay.KIND)}


def find(name: str) -> Kind:
    if name in KINDS:
        return KINDS[name]
    if ":" not in name:
        raise UsageError(f"no backend '{name}'", next_step=f"known: auto, {', '.join(KINDS)}, simulated")
    try:
        found = by_path(name)
    except ValueError as error:
        raise UsageError(f"backend: {error}") from None
    if not isinstance(found, Kind):
        raise UsageError(f"backend {name} is not a lossbench.net.impair.backend.Kind")
    return found


def able(kernel: Kernel, *, also: str = "auto") -> dict[str, str | None]:
    """Per backend: None if it works here, else why not. `also`: one that a user brings."""
    kinds = KINDS if also == "auto" else KINDS | {also: find(also)}
    return {name: kind.lacking(kernel) for name, kind in kinds.items()}


def choose(asked: str, *, profiles: list[Profile], rules: Rules, can: dict[str, str | None]) -> tuple[str, str]:
    """(backend, why). `can`: what `able` said. Refuses before anything is built, saying who could do what was asked."""
    hooks = {_shape(here): here for here in rules.values()}.values()  # hooks that look alike need one look
    kinds = KINDS if asked == "auto" else KINDS | {asked: find(asked)}
    refusals = {name: _first_refusal(kind, profiles) or _too_many(kind, hooks) for name, kind in kinds.items()}
    if asked != "auto":
        if can[asked] is not None:
            raise NotAbleError(f"backend {asked} does not work here: {can[asked]}", next_step=kinds[asked].advice)
        if refusals[asked] is not None:
            raise NotAbleError(f"backend {asked} can't do {refusals[asked]}", next_step=_who_can(refusals, can))
        return asked, "asked for"
    for number, name in enumerate(kinds):
        if can[name] is None and refusals[name] is None:
            passed_over = [f"{n}: {can[n] or f'can not do {refusals[n]}'}" for n in list(kinds)[:number]]
            return name, "; ".join(passed_over) or "first choice"
    by_reason: dict[str, list[str]] = {}
    for name in kinds:
        by_reason.setdefault(can[name] or f"can not do {refusals[name]}", []).append(name)
    reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    raise NotAbleError(
        f"no backend of this machine can do what was asked ({reasons})", next_step=_who_can(refusals, can)
    )


def keeps_time(kind: Kind, rules: Rules) -> bool:
    """Does this kind keep the windows of these rules? They all stand there at once: there may be too many of them."""
    timed = any(rule.window is not None for here in rules.values() for rule in here)
    return (
        kind.keeps_time and timed and _too_many(kind, {_shape(here): here for here in rules.values()}.values()) is None
    )


def _shape(rules: tuple[Rule, ...]) -> tuple[Any, ...]:
    """What decides how long a program gets."""
    return tuple(
        (rule.profile, len(rule.match.destinations), len(rule.match.sources), rule.window is None) for rule in rules
    )


def _too_many(kind: Kind, hooks: Iterable[tuple[Rule, ...]]) -> str | None:
    return next((why for here in hooks if (why := kind.too_many(here)) is not None), None)


def _first_refusal(kind: Kind, profiles: list[Profile]) -> str | None:
    for profile in profiles:
        reason = kind.refusal(profile)
        if reason is not None:
            return f"{reason} (profile {profile.name})"
    return None


def _who_can(refusals: dict[str, str | None], can: dict[str, str | None]) -> str:
    could = [name for name, reason in refusals.items() if reason is None]
    here = [name for name in could if can[name] is None]
    if here:
        return f"backend {here[0]} can, here"
    if could:
        return " or ".join(f"backend {name} could: {find(name).advice}" for name in could)
    return "no backend can do all of this at once: split the profile"
