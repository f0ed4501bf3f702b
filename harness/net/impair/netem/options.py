"""A profile in netem's own units, and back: what is sent to the kernel, what its dump says, where the two differ."""

from __future__ import annotations

import math
from typing import Any

from lossbench.net.tc import kinds
from lossbench.spec import lossmodel
from lossbench.spec.losses import BlockLoss, GilbertElliottLoss, IidLoss, State4Loss, TraceLoss
from lossbench.spec.placement import Rule
from lossbench.spec.profile import Profile

DEFAULT_LIMIT_PACKETS = 1000
ASSUMED_PACKETS_PER_S = 1_000_000  # for sizing the queue of a delay when no rate is given


def refusal(profile: Profile) -> str | None:
    """What this backend can't do of a profile, in words; None if it can do all."""
    if isinstance(profile.loss, TraceLoss):
        return "a loss trace"
    if isinstance(profile.loss, BlockLoss):
        return "block loss"
    if profile.match.datagram is not None:
        return "matching our datagram header"
    return None


def limit_packets(profile: Profile) -> int:
    """Room for everything that waits, or netem drops it and calls it loss."""
    if profile.queue_limit_packets is not None:
        return profile.queue_limit_packets
    if profile.delay is None:
        return DEFAULT_LIMIT_PACKETS
    hold_s = (profile.delay.mean_ms + 4 * profile.delay.jitter_ms) / 1000
    rate = profile.rate_mbit * 1e6 / 8 / 128 if profile.rate_mbit else ASSUMED_PACKETS_PER_S
    return DEFAULT_LIMIT_PACKETS + math.ceil(min(rate, ASSUMED_PACKETS_PER_S) * hold_s * 1.5)


def options_of(rule: Rule) -> dict[str, Any]:
    """netem's options in netem's own units, by the names kinds.netem_parameters takes."""
    profile, u32 = rule.profile, kinds.netem_u32
    options: dict[str, Any] = {"limit": limit_packets(profile), "seed": rule.seed}
    correlations = {"delay": 0, "loss": 0, "duplicate": 0}
    options.update(_loss_options(profile, correlations))
    if profile.delay is not None:
        options["latency_ns"] = round(profile.delay.mean_ms * 1e6)
        options["jitter_ns"] = round(profile.delay.jitter_ms * 1e6)
        correlations["delay"] = u32(profile.delay.correlation_percent / 100)
        if profile.delay.distribution != "uniform" and profile.delay.jitter_ms:
            options["distribution"] = profile.delay.distribution
    if profile.reorder is not None:
        options["gap"] = profile.reorder.gap
        options["reorder"] = {
            "probability": u32(profile.reorder.percent / 100),
            "correlation": u32(profile.reorder.correlation_percent / 100),
        }
    if profile.duplicate_percent:
        options["duplicate"] = u32(profile.duplicate_percent / 100)
    # A change keeps every attribute that is not sent: what is not asked for goes as zero.
    options["corrupt"] = {"probability": u32(profile.corrupt_percent / 100), "correlation": 0}
    options["rate_bytes_s"] = round((profile.rate_mbit or 0.0) * 1e6 / 8)
    slot = profile.slot
    options["slot"] = {
        "min_delay": round(slot.min_ms * 1e6) if slot else 0,
        "max_delay": round(slot.max_ms * 1e6) if slot else 0,
        "max_packets": slot.packets if slot else 0,
        "max_bytes": slot.bytes if slot else 0,
        "dist_delay": 0,
        "dist_jitter": 0,
    }
    options["ecn"] = int(profile.ecn)
    options["corr"] = correlations
    return options


def differences(asked: dict[str, Any], real: dict[str, Any]) -> list[str]:
    """Names whose value in the kernel is not the asked one; absent and zero are the same. The delay table and the seed
    (before 6.6) are never dumped."""

    def plain(value: Any) -> Any:
        return {k: v for k, v in value.items() if v} if isinstance(value, dict) else value or 0

    names = {*asked, *real} - {"distribution", "seed"}
    limitless = {"max_packets", "max_bytes"}  # the kernel dumps "no limit" for the zero that was sent
    out = []
    for name in sorted(names):
        wanted, found = plain(asked.get(name, 0)), plain(real.get(name, 0))
        if name == "slot" and isinstance(found, dict) and not wanted:
            found = {k: v for k, v in found.items() if k not in limitless}
        if (wanted or 0) != (found or 0):
            out.append(name)
    return out


def _loss_options(profile: Profile, correlations: dict[str, int]) -> dict[str, Any]:
    u32, loss = kinds.netem_u32, profile.loss
    if isinstance(loss, IidLoss):
        correlations["loss"] = u32(loss.correlation_percent / 100)
        return {"loss": u32(loss.percent / 100)}
    if isinstance(loss, GilbertElliottLoss):
        good, bad = loss.chain().states
        return {
            "gilbert": {
                "p": u32(good[0].probability),
                "r": u32(bad[0].probability),
                "h": u32(1 - bad[0].loss),
                "k1": u32(good[0].loss),
            }
        }
    if isinstance(loss, State4Loss):
        return {
            "state4": {
                name: u32(getattr(loss, f"{name}_percent") / 100) for name in ("p13", "p31", "p32", "p14", "p23")
            }
        }
    return {}


def decoded(options: Any) -> dict[str, Any]:
    """A dump in the names of `options_of`."""
    out: dict[str, Any] = {name: options[name] for name in ("limit", "loss", "gap", "duplicate")}
    plain = {
        "TCA_NETEM_LATENCY64": "latency_ns",
        "TCA_NETEM_JITTER64": "jitter_ns",
        "TCA_NETEM_ECN": "ecn",
        "TCA_NETEM_PRNG_SEED": "seed",
        "TCA_NETEM_RATE64": "rate_bytes_s",
    }
    structs = {
        "TCA_NETEM_CORR": "corr",
        "TCA_NETEM_REORDER": "reorder",
        "TCA_NETEM_CORRUPT": "corrupt",
        "TCA_NETEM_SLOT": "slot",
    }
    for name, value in options["attrs"]:
        if name in plain:
            out[plain[name]] = value
        elif name in structs:
            out[structs[name]] = {key: value[key] for key, _ in type(value).fields}
        elif name == "TCA_NETEM_RATE":
            out.setdefault("rate_bytes_s", value["rate"])
        elif name == "TCA_NETEM_LOSS":
            for model, numbers in value["attrs"]:
                kind = "gilbert" if model == "NETEM_LOSS_GE" else "state4"
                out[kind] = {key: numbers[key] for key, _ in type(numbers).fields}
    return out


def mean_loss_of(real: dict[str, Any]) -> float:
    """The long-run loss that the kernel's own numbers amount to."""
    if "gilbert" in real:
        p, r, h, k1 = (real["gilbert"][name] / kinds.U32_MAX for name in ("p", "r", "h", "k1"))
        return lossmodel.mean_loss(lossmodel.gilbert_elliott(p=p, r=r, h=h, k=1 - k1))
    if "state4" in real:
        return lossmodel.mean_loss(lossmodel.state4(**{k: v / kinds.U32_MAX for k, v in real["state4"].items()}))
    return float(real["loss"] / kinds.U32_MAX)
