"""The figures behind lossbench's promises about the network, measured on this machine. Minutes, as root.

make bars            or            python tests/bench/bars.py [part ...]
parts: up watch loss bursts honest relay web lab
"""

from __future__ import annotations

import json
import os
import secrets
import statistics as stats
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chisquare

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from lossbench import api  # noqa: E402
from lossbench.net.journal import Journal  # noqa: E402
from lossbench.net.kernel import Kernel  # noqa: E402
from lossbench.net.star.network import StarNetwork  # noqa: E402
from lossbench.proof import statistics as own  # noqa: E402
from lossbench.proof.probe.exchange import Exchange  # noqa: E402
from lossbench.proof.probe.flows import plan  # noqa: E402
from lossbench.results.folders import RunFolder  # noqa: E402
from lossbench.runs import run  # noqa: E402
from lossbench.runs.ground import ThisMachine  # noqa: E402
from lossbench.spec import lossmodel  # noqa: E402
from lossbench.spec.asking import points  # noqa: E402
from lossbench.spec.experiment import Experiment  # noqa: E402
from lossbench.spec.placement import rules_in_force  # noqa: E402
from lossbench.spec.profile import load  # noqa: E402
from lossbench.spec.userfile import check  # noqa: E402
from tests.lab.machines import machines  # noqa: E402
from tests.shared import z_score  # noqa: E402

MILLION = 1_000_000
HONEST = ("ebpf", "cbpf")
SHORT = ("workload.options.seconds=0.01",)


def planned() -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Of suites that are shipped: (suite, settings, full form)."""
    yield from (("proof", (f"backend={backend}", *SHORT), False) for backend in HONEST)
    yield "proof", ("topology.hosts=3",), False


@contextmanager
def network(*, backend: str, seed: int = 1, **keys: Any) -> Iterator[tuple[StarNetwork, float]]:
    e = check(Experiment, {"name": "bars", **keys}, origin="bars")
    journal = Journal.claim(kind="run")
    net = StarNetwork(network_id=journal.id, experiment=e, backend=backend)
    start = time.monotonic()
    try:
        net.build(before_making=journal.before_making)
        net.cut_to_mtu()
        net.shape()
        net.put(rules_in_force(e, seed=seed))
        yield net, time.monotonic() - start
    finally:
        net.close()
        journal.undo_or_say()


def watch() -> None:
    print("\n== one look of the watch at everything: two classes, rate and loss (ms of CPU, median of 9)")
    classes = [{"name": "web", "dscp": 10, "share_percent": 50}, {"name": "training", "ports": [29400], "priority": 7}]
    for hosts in (8, 64):
        keys = {"topology": {"hosts": hosts, "rate_mbit": 50}, "shaping": {"classes": classes}}
        with network(backend="ebpf", impair=[{"profile": "loss_1"}], **keys) as (net, _):
            net.listen()
            spent = []
            for _ in range(9):
                began = time.process_time()
                look = net.look()
                net.links_wrong(look)
                net.read(look=look)
                net.changes()
                net.not_in_force(look)
                net.shaping_wrong(look)
                net.hosts_wrong(some=True)
                net.classes(look)
                spent.append(1000 * (time.process_time() - began))
            print(f"{hosts:3d} hosts: {stats.median(spent):.1f}")


def up() -> None:
    print("\n== up and down, with loss and rate in force (seconds, median of 5)")
    for hosts in (4, 16, 64):
        ups, downs = [], []
        for _ in range(5):
            with network(
                backend="ebpf", topology={"hosts": hosts, "rate_mbit": 1000}, impair=[{"profile": "bursty_1"}]
            ) as (_, took):
                ups.append(took)
                start = time.monotonic()
            downs.append(time.monotonic() - start)
        print(f"{hosts:3d} hosts: up {stats.median(ups):.2f} (max {max(ups):.2f})  down {stats.median(downs):.2f}")


def blast(net: StarNetwork, packets: int) -> tuple[Any, Any, Any]:
    """One flow, `packets` probes: (missing, counters before, counters after) of the first hook's rule."""
    flows, _ = plan(net.rules, net.experiment.topology)
    flow = flows[0]
    hook = flow.hooks()[0]
    label = net.rules[hook][0].label
    before = net.counters()[hook][label]
    with Exchange([flow], place_of=net.place, payload_bytes=64, token=secrets.randbits(62)) as exchange:
        (heard,) = exchange.loss(packets=packets, rate_mbit=None, settled=lambda _: False, wait_s=0.2)
        assert exchange.overflow == 0
    return heard.missing(), before, net.counters()[hook][label]


def blast_missing(net: StarNetwork, packets: int) -> Any:
    """Which packets of the first hook's flow were lost."""
    return blast(net, packets)[0]


def loss() -> None:
    print("\n== iid loss, one million packets a row; |z| < 3.9, kernel == receiver, burst within 3 % of 1/(1-p)")
    for backend in ("ebpf", "cbpf"):
        for name in ("loss_0p1", "loss_1", "loss_5", "loss_10"):
            with network(backend=backend, topology={"hosts": 2}, impair=[{"profile": name}]) as (net, _):
                missing, before, after = blast(net, MILLION)
            chain = load(name).chain()
            assert chain is not None
            dropped, seen = after.dropped - before.dropped, after.seen - before.seen
            burst, asked = own.bursts(missing).mean(), lossmodel.burst_mean(chain)
            exact = "-"
            if before.position is not None:
                pattern = lossmodel.predict(chain, seed=before.position.generator, count=MILLION)
                exact = str(bool(np.array_equal(pattern, missing)))
            print(
                f"{backend} {name:9s} lost {dropped / seen:.4%}  z {z_score(dropped, seen, chain):+.2f}  "
                f"kernel {dropped} receiver {int(missing.sum())} equal {dropped == int(missing.sum())}  "
                f"burst {burst:.4f} (asked {asked:.4f}, {burst / asked - 1:+.2%})  equals prediction: {exact}"
            )


def bursts() -> None:
    print("\n== bursty models on ebpf, one million packets: burst within 5 %, chi-square p > 0.001, the same twice")
    for name in ("bursty_1", "bursty_5", "dc_tail", "wifi_like"):
        patterns = []
        for _ in range(2):
            with network(backend="ebpf", topology={"hosts": 2}, impair=[{"profile": name}]) as (net, _):
                missing, before, after = blast(net, MILLION)
            patterns.append(missing)
        chain = load(name).chain()
        assert chain is not None and before.position is not None
        runs, asked = own.bursts(missing), lossmodel.burst_mean(chain)
        prediction = lossmodel.predict(chain, seed=before.position.generator, count=MILLION)
        print(
            f"{name:9s} lost {missing.mean():.4%} (asked {lossmodel.mean_loss(chain):.4%})  burst {runs.mean():.3f} "
            f"(asked {asked:.3f}, {runs.mean() / asked - 1:+.2%})  chi-square p {_chi_square(runs, chain):.3f}  "
            f"twice the same: {np.array_equal(*patterns)}  equals prediction: {np.array_equal(prediction, missing)}"
        )


def _chi_square(runs: Any, chain: Any) -> float:
    """Burst lengths against the model; lengths with fewer than 10 expected are put together."""
    shares = lossmodel.burst_lengths(chain, up_to=200)
    bins = int(np.sum(shares * len(runs) >= 10))
    expected = np.append(shares[:bins], 1 - shares[:bins].sum()) * len(runs)
    observed = np.append([np.sum(runs == n + 1) for n in range(bins)], np.sum(runs > bins))
    return float(chisquare(observed, expected).pvalue)


def honest() -> None:
    print("\n== 100 honest networks in a row: how many are not proven?")
    kernel = Kernel.tried()
    for backend in HONEST:
        ((_, e),) = points.points(points.find("proof"), settings=[f"backend={backend}", *SHORT])
        wrong, start = [], time.monotonic()
        for seed in range(100):
            with tempfile.TemporaryDirectory() as folder:
                result = run.execute(
                    e,
                    seed=seed,
                    chosen={},
                    folder=RunFolder(Path(folder)),
                    ground=ThisMachine(kernel),
                    progress=lambda _: None,
                )
            if result.verdict.columns["fault"].status:
                wrong.append(result.verdict.columns["fault"].reasons())
        print(f"{backend}: {len(wrong)} of 100 not proven, {(time.monotonic() - start) / 100:.2f} s a run {wrong[:3]}")


def relay() -> None:
    """Packets of 1 kB in bursts of at most 2 ms, 4 hosts to their neighbours, each held 5 ms."""
    print("\n== relay: share of packets lost in the user-space wire at a given packet rate, 3 s each")
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write('why = "bars"\n[delay]\nmean_ms = 5\n')
        file.flush()
        for rate in (10_000, 20_000, 30_000, 40_000, 50_000, 60_000, 80_000):
            keys = {"topology": {"hosts": 4}, "impair": [{"profile": file.name}]}
            with network(backend="relay", **keys) as (net, _):
                sent, got, took = _paced(net, packets_per_s=rate, seconds=3)
            print(f"{rate:6d} asked, {sent / took:6.0f} sent per second: {1 - got / sent:.4%} lost")


def _paced(net: StarNetwork, *, packets_per_s: int, seconds: float) -> tuple[int, int, float]:
    flows, _ = plan(net.rules, net.experiment.topology)
    with Exchange(flows, place_of=net.place, payload_bytes=1000, token=secrets.randbits(62)) as exchange:
        total = int(packets_per_s * seconds / len(flows))
        # `loss` sends at half of the rate it is told, in rounds of at most 2 ms.
        rate_mbit = packets_per_s / len(flows) * (1000 + 66) * 8 / 1e6 / 0.5
        start = time.monotonic()
        heard = exchange.loss(packets=total, rate_mbit=rate_mbit, settled=lambda _: False, wait_s=0.2)
        took = time.monotonic() - start - 0.5  # it listens half a second after its last packet
    return total * len(flows), sum(h.sent - int(h.missing().sum()) for h in heard), took


def web() -> None:
    """What the clients of `web` can offer before they fall behind."""
    print("\n== web: 16 hosts, 100 Mbit/s, 800 x 100 KB a second, 20 s, in turns: lag p99, median completion, timing")
    load = {"topology.rate_mbit": 100, "beside.1.options.rate": 800, "beside.1.options.factor": 1}
    load |= {"beside.1.options.seconds": 20}
    for server in ("nginx", "builtin") * 3:
        settings = ["arm=web alone", f"beside.0.options.server={server}", *(f"{key}={v}" for key, v in load.items())]
        with tempfile.TemporaryDirectory() as folder:
            found = api.made("colocation", settings=settings, out=folder)
            one = json.loads((found.folder / "000" / "summary.json").read_text())
        row = next((row for row in one["rows"] if "web.n" in row), {})
        lag, share = (one["workload"].get(f"web.{name}") for name in ("lag_p99_ms", "lag_share"))
        timing = f"timing {one['columns']['timing']}: {one['reasons'].get('timing')}"
        print(f"{server}: {lag} ms ({share} of the median), p50 {row.get('web.p50_ms')} ms, {timing}")


def lab() -> None:
    """`proof` on three machines over ssh beside three namespaces: all share this machine's processors."""
    print("\n== lab: seconds of `run proof` before its workload begins, and after its end; five times in turns")
    os.environ["LOSSBENCH_REAL"] = "1"  # the command imports for itself
    spent: dict[str, list[tuple[float, float]]] = {"namespaces": [], "lab": []}
    with tempfile.TemporaryDirectory() as folder, machines(Path(folder)) as made:
        for turn in range(5):
            for where, more in (("namespaces", ["--set", "topology.hosts=3"]), ("lab", ["--lab", str(made.file)])):
                out, began = Path(folder) / f"{where}{turn}", time.time()
                made.lossbench("run", "proof", *more, "--out", str(out), expect=None)
                ended = time.time()
                (run,) = out.glob("*/000")
                start = json.loads((run / "timeline.jsonl").read_text().splitlines()[0])["time_s"]
                end = start + json.loads((run / "verdict.json").read_text())["duration_s"]
                spent[where].append((start - began, ended - end))
    for number, when in enumerate(("before", "after")):
        of = {where: [pair[number] for pair in pairs] for where, pairs in spent.items()}
        for where, seconds in of.items():
            print(f"{when}, {where}: {stats.median(seconds):.1f} ({', '.join(f'{one:.1f}' for one in seconds)})")
        print(f"added {when}: {stats.median(of['lab']) - stats.median(of['namespaces']):.1f}")


PARTS = {"up": up, "watch": watch, "loss": loss, "bursts": bursts, "honest": honest, "relay": relay, "web": web}
PARTS |= {"lab": lab}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
