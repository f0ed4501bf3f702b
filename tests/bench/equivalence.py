"""The same profile on every backend this kernel has: is it the same channel? Prints the table of docs/backends.md.

lossbench vm run --timeout-s 3000 -- .venv/bin/python -m tests.bench.equivalence
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.stats import chi2, chi2_contingency

from lossbench.net.impair import registry
from lossbench.net.kernel import Kernel
from lossbench.proof import statistics
from lossbench.spec import lossmodel
from lossbench.spec.profile import load
from tests.bench.bars import blast_missing, network

PROFILES = ("loss_1", "loss_5", "loss_10", "bursty_1", "bursty_5", "dc_tail", "wifi_like")
BACKENDS = ("netem", "ebpf", "cbpf")


def same_rate(one: np.ndarray, other: np.ndarray, inflation: float) -> float:
    """Two-sample test of loss counts; `inflation` is the variance of a bursty count over that of independent loss."""
    table = [[one.sum(), len(one) - one.sum()], [other.sum(), len(other) - other.sum()]]
    statistic = chi2_contingency(table, correction=False).statistic / inflation
    return float(chi2.sf(statistic, 1))


def same_bursts(one: np.ndarray, other: np.ndarray) -> float:
    """Two-sample chi-square of burst lengths; rare lengths are put together."""
    runs = [statistics.bursts(x) for x in (one, other)]
    longest = max(int(r.max(initial=1)) for r in runs)
    counts = np.array([np.bincount(r, minlength=longest + 1)[1:] for r in runs])
    while counts.shape[1] > 1 and counts[:, -1].min() < 10:
        counts = np.concatenate([counts[:, :-2], counts[:, -2:].sum(axis=1, keepdims=True)], axis=1)
    return 1.0 if counts.shape[1] < 2 else float(chi2_contingency(counts).pvalue)


def _cell(lost: np.ndarray | None) -> str:
    return "-" if lost is None else f"{100 * lost.mean():.3f} %, {statistics.bursts(lost).mean():.3f}"


def main(packets: int) -> None:
    able = registry.able(Kernel.tried())
    print("| profile | asked loss, burst | " + " | ".join(BACKENDS) + " | same rate? (p) | same bursts? (p) |")
    print("|---" * (4 + len(BACKENDS)) + "|")
    for name in PROFILES:
        profile = load(name)
        chain = profile.chain()
        assert chain is not None
        inflation = lossmodel.loss_variance_per_packet(chain) / (
            lossmodel.mean_loss(chain) * (1 - lossmodel.mean_loss(chain))
        )
        seen = {}
        for backend in BACKENDS:
            if able[backend] is None and registry.KINDS[backend].refusal(profile) is None:
                with network(backend=backend, topology={"hosts": 2}, impair=[{"profile": name}]) as (net, _):
                    seen[backend] = blast_missing(net, packets)
        cells = [_cell(seen.get(backend)) for backend in BACKENDS]
        others = [b for b in seen if b != "netem"]
        rates = ", ".join(f"{b} {same_rate(seen['netem'], seen[b], inflation):.2f}" for b in others if "netem" in seen)
        bursts = ", ".join(f"{b} {same_bursts(seen['netem'], seen[b]):.2f}" for b in others if "netem" in seen)
        asked = f"{100 * lossmodel.mean_loss(chain):.3f} %, {lossmodel.burst_mean(chain):.3f}"
        print(f"| {name} | {asked} | {' | '.join(cells)} | {rates} | {bursts} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
