"""tc kinds that pyroute2 0.9.7 lacks or knows only in part: netem in full, classic BPF, bfifo, prio.

`install()` registers them; nothing happens on import. pyroute2 silently ignores what it does not know, so what goes
through here is always read back and compared.
"""

from __future__ import annotations

import math
import struct
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

from pyroute2.netlink import nla
from pyroute2.netlink.rtnl import tcmsg
from pyroute2.netlink.rtnl.tcmsg import sched_bpf, sched_fq_codel, sched_pfifo
from pyroute2.netlink.rtnl.tcmsg.act_police import nla_plus_police

TC_H_ROOT = 0xFFFFFFFF
U32_MAX = 2**32 - 1


def install() -> None:
    """Register our kinds with pyroute2; safe to call again."""
    tcmsg.plugins["bfifo"] = sched_pfifo
    tcmsg.plugins["netem"] = SimpleNamespace(parent=TC_H_ROOT, options=NetemOptions, get_parameters=netem_parameters)
    tcmsg.plugins["prio"] = SimpleNamespace(parent=TC_H_ROOT, options=PrioOptions, get_parameters=prio_parameters)
    tcmsg.plugins["ets"] = SimpleNamespace(parent=TC_H_ROOT, options=EtsOptions, get_parameters=ets_parameters)
    tcmsg.plugins["fq"] = SimpleNamespace(parent=TC_H_ROOT, options=FqOptions, get_parameters=fq_parameters)
    codel = SimpleNamespace(parent=TC_H_ROOT, options=sched_fq_codel.options, get_parameters=fq_codel_parameters)
    tcmsg.plugins["fq_codel"] = codel
    tcmsg.plugins["bpf"] = SimpleNamespace(
        parent=TC_H_ROOT,
        options=BpfOptions,
        get_parameters=bpf_parameters,
        fix_request=sched_bpf.fix_request,
        stats2=sched_bpf.stats2,
    )


# --- cls_bpf: pyroute2 knows no classic program and does not decode the id ------------------------------------------


class BpfOptions(nla, nla_plus_police):  # type: ignore[misc]
    """No child of pyroute2's own: whatever uses that class first says once for all of its children what attributes
    are."""

    bpf_act = sched_bpf.options.bpf_act
    nla_map = tuple(
        {"TCA_BPF_OPS": ("TCA_BPF_OPS", "cdata"), "TCA_BPF_OPS_LEN": ("TCA_BPF_OPS_LEN", "uint16")}.get(
            name, (name, kind)
        )
        for name, kind in sched_bpf.options.nla_map
    ) + (("TCA_BPF_FLAGS_GEN", "uint32"), ("TCA_BPF_TAG", "hex"), ("TCA_BPF_ID", "uint32"))


def bpf_parameters(arguments: dict[str, Any]) -> dict[str, Any]:
    operations = arguments.pop("ops", None)
    out: dict[str, Any] = sched_bpf.get_parameters(arguments)
    if operations is not None:
        out["attrs"] += [["TCA_BPF_OPS_LEN", len(operations) // 8], ["TCA_BPF_OPS", operations]]
    return out


# --- prio ----------------------------------------------------------------------------------------------------------


class PrioOptions(nla):  # type: ignore[misc]
    fields = (("bands", "i"), ("priomap", "16B"))


def prio_parameters(arguments: dict[str, Any]) -> dict[str, Any]:
    """Filters sort the packets; what no filter takes goes to `default_band`, whatever its skb priority."""
    return {"bands": arguments["bands"], "priomap": [arguments["default_band"]] * 16}


class EtsOptions(nla):  # type: ignore[misc]
    nla_flags = 0x8000  # ets insists on the nested flag where older kinds do not
    nla_map = (
        ("TCA_ETS_UNSPEC", "none"),
        ("TCA_ETS_NBANDS", "uint8"),
        ("TCA_ETS_NSTRICT", "uint8"),
        ("TCA_ETS_QUANTA", "hex"),
        ("TCA_ETS_QUANTA_BAND", "uint32"),
        ("TCA_ETS_PRIOMAP", "priomap"),
    )

    class priomap(nla):  # type: ignore[misc]
        nla_flags = 0x8000  # nested
        nla_map = ((6, "TCA_ETS_PRIOMAP_BAND", "uint8"),)


def ets_parameters(arguments: dict[str, Any]) -> dict[str, Any]:
    """All bands strict: the same service as prio."""
    bands = arguments["bands"]
    priomap = [["TCA_ETS_PRIOMAP_BAND", arguments["default_band"]]] * 16
    return {"attrs": [["TCA_ETS_NBANDS", bands], ["TCA_ETS_NSTRICT", bands], ["TCA_ETS_PRIOMAP", {"attrs": priomap}]]}


class FqOptions(nla):  # type: ignore[misc]
    nla_map = (("TCA_FQ_UNSPEC", "none"), ("TCA_FQ_PLIMIT", "uint32"), ("TCA_FQ_FLOW_PLIMIT", "uint32"))


def fq_parameters(arguments: dict[str, Any]) -> dict[str, Any]:
    """Only the limits: packets wait for the departure time they carry."""
    return {"attrs": [["TCA_FQ_PLIMIT", arguments["limit"]], ["TCA_FQ_FLOW_PLIMIT", arguments["limit"]]]}


CODEL_INTERVALS = 20  # of its targets


def fq_codel_parameters(arguments: dict[str, Any]) -> dict[str, Any]:
    """As the kernel has it but for room and target; pyroute2's own names for these will change, as it warns."""
    target = arguments.get("target_us", 5000)
    numbers = {
        "TARGET": target,
        "INTERVAL": CODEL_INTERVALS * target,
        "LIMIT": arguments.get("limit", 10_240),
        "ECN": 1,
    }
    return {"attrs": [[f"TCA_FQ_CODEL_{name}", value] for name, value in numbers.items()]}


# --- netem ---------------------------------------------------------------------------------------------------------


class NetemOptions(nla):  # type: ignore[misc]
    fields = (("latency", "I"), ("limit", "I"), ("loss", "I"), ("gap", "I"), ("duplicate", "I"), ("jitter", "I"))
    nla_map = (
        ("TCA_NETEM_UNSPEC", "none"),
        ("TCA_NETEM_CORR", "corr"),
        ("TCA_NETEM_DELAY_DIST", "cdata"),
        ("TCA_NETEM_REORDER", "probability"),
        ("TCA_NETEM_CORRUPT", "probability"),
        ("TCA_NETEM_LOSS", "model"),
        ("TCA_NETEM_RATE", "rate"),
        ("TCA_NETEM_ECN", "uint32"),
        ("TCA_NETEM_RATE64", "uint64"),
        ("TCA_NETEM_PAD", "none"),
        ("TCA_NETEM_LATENCY64", "int64"),
        ("TCA_NETEM_JITTER64", "int64"),
        ("TCA_NETEM_SLOT", "slot"),
        ("TCA_NETEM_SLOT_DIST", "cdata"),
        ("TCA_NETEM_PRNG_SEED", "uint64"),
    )

    class corr(nla):  # type: ignore[misc]
        fields = (("delay", "I"), ("loss", "I"), ("duplicate", "I"))

    class probability(nla):  # type: ignore[misc]
        fields = (("probability", "I"), ("correlation", "I"))

    class rate(nla):  # type: ignore[misc]
        fields = (("rate", "I"), ("packet_overhead", "i"), ("cell_size", "I"), ("cell_overhead", "i"))

    class slot(nla):  # type: ignore[misc]
        fields = (
            ("min_delay", "q"),
            ("max_delay", "q"),
            ("max_packets", "i"),
            ("max_bytes", "i"),
            ("dist_delay", "q"),
            ("dist_jitter", "q"),
        )

    class model(nla):  # type: ignore[misc]
        nla_flags = 0x8000  # nested
        nla_map = (("NETEM_LOSS_UNSPEC", "none"), ("NETEM_LOSS_GI", "state4"), ("NETEM_LOSS_GE", "gilbert"))

        class state4(nla):  # type: ignore[misc]
            fields = (("p13", "I"), ("p31", "I"), ("p32", "I"), ("p14", "I"), ("p23", "I"))

        class gilbert(nla):  # type: ignore[misc]
            # h is the chance of delivery in the bad state, k1 that of loss in the good one.
            fields = (("p", "I"), ("r", "I"), ("h", "I"), ("k1", "I"))


def netem_u32(probability: float) -> int:
    """netem's probabilities: 2**32 - 1 is certainty."""
    return round(min(max(probability, 0.0), 1.0) * U32_MAX)


def netem_parameters(arguments: dict[str, Any]) -> dict[str, Any]:
    """From `options` (see impair/netem/options.py) to netlink; unknown keys are our own mistake."""
    options = dict(arguments["netem"])
    attributes: list[list[Any]] = []
    out = {"latency": 0, "jitter": 0, "gap": options.pop("gap", 0), "attrs": attributes}
    out.update({name: options.pop(name, 0) for name in ("limit", "loss", "duplicate")})
    names = {
        "corr": "TCA_NETEM_CORR",
        "reorder": "TCA_NETEM_REORDER",
        "corrupt": "TCA_NETEM_CORRUPT",
        "ecn": "TCA_NETEM_ECN",
        "latency_ns": "TCA_NETEM_LATENCY64",
        "jitter_ns": "TCA_NETEM_JITTER64",
        "slot": "TCA_NETEM_SLOT",
        "seed": "TCA_NETEM_PRNG_SEED",
    }
    if "distribution" in options:
        attributes.append(["TCA_NETEM_DELAY_DIST", distribution_table(options.pop("distribution"))])
    for model, name in (("gilbert", "NETEM_LOSS_GE"), ("state4", "NETEM_LOSS_GI")):
        if model in options:
            attributes.append(["TCA_NETEM_LOSS", {"attrs": [[name, options.pop(model)]]}])
    if "rate_bytes_s" in options:
        rate = options.pop("rate_bytes_s")
        overhead = {"packet_overhead": 0, "cell_size": 0, "cell_overhead": 0}
        attributes.append(["TCA_NETEM_RATE", {"rate": min(rate, U32_MAX), **overhead}])
        if rate > U32_MAX:
            attributes.append(["TCA_NETEM_RATE64", rate])
    for key, value in options.items():
        attributes.append([names[key], value])
    return out


DISTRIBUTION_SCALE = 8192
DISTRIBUTION_ENTRIES = 4096


def distribution_table(name: str) -> bytes:
    """Inverse of the distribution function, in units of one standard deviation times 8192, as iproute2's tables."""
    shapes = {"normal": _normal, "pareto": _pareto, "paretonormal": _pareto_normal}
    shape = shapes[name]
    values = [shape((i + 0.5) / DISTRIBUTION_ENTRIES) * DISTRIBUTION_SCALE for i in range(DISTRIBUTION_ENTRIES)]
    return struct.pack(f"<{DISTRIBUTION_ENTRIES}h", *(max(-32768, min(32767, round(v))) for v in values))


def _normal(share: float) -> float:
    return NormalDist().inv_cdf(share)


def _pareto_normal(share: float) -> float:
    return 0.25 * _normal(share) + 0.75 * _pareto(share)


def _pareto(share: float) -> float:
    """Shape 3, centred and scaled as iproute2's pareto.c does."""
    return (math.pow(1 - share, -1 / 3) - 1.5) * 4 / 3
