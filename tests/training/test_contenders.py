"""The race of collectives, in small: everybody takes part, says what it did, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from lossbench.net.kernel import Kernel
from lossbench.results.folders import RunFolder
from lossbench.runs import run
from lossbench.runs.ground import ThisMachine
from lossbench.spec.experiment import Experiment
from lossbench.spec.userfile import check
from lossbench.workloads.allreduce.operation import Operation
from lossbench.workloads.errors import OptionError
from lossbench.workloads.transport import tuning
from tests.forms import forms, full

pytestmark = [pytest.mark.training]


def raced(
    folder: Path, *, rate: int | None = None, profile: str = "clean", **options: Any
) -> dict[str, dict[str, Any]]:
    """Rows, by contender."""
    experiment = check(
        Experiment,
        {
            "name": "race",
            "topology": {"hosts": 3} | ({"rate_mbit": rate} if rate else {}),
            "impair": [{"profile": profile}],
            "probe": {"packets": 3000},
            "workload": {"name": "allreduce", "options": {"repeats": 3, "warm_up": 1, **options}},
        },
        origin="test",
    )
    result = run.execute(
        experiment,
        seed=1,
        chosen={},
        folder=RunFolder(folder),
        ground=ThisMachine(Kernel.tried()),
        progress=lambda _: None,
    )
    assert result.verdict.columns["outcome"].status == 0, result.verdict.columns["outcome"].reasons()
    return {row["contender"]: row for row in result.watched.rows}


@pytest.mark.netns
def test_everybody_races_with_small_calls_in_bursts(tmp_path: Path) -> None:
    rows = raced(tmp_path / "run", mb=0.003, repeats=1)
    assert set(rows) >= {"lossy", "gloo-bbr", "gloo-cubic-5ms", "tcp-cubic-5ms", "udp-blast", "floor"}
    assert "lossy-busy" not in rows
    for name in ("lossy", "floor"):
        assert rows[name]["n"] == 50 and rows[name]["vs_limit"] is not None, name
        assert rows[name]["path"] == "ok", "its bytes crossed the link"
    assert rows["gloo-cubic-5ms"]["n"] >= 50, "cubic needs no sysctl of the machine"
    assert rows["lossy"]["arrived_1"] == rows["lossy"]["arrived_2"] == 1.0


@full
@pytest.mark.netns
@forms(("op", "dtype"), [("all_gather", "bfloat16"), ("broadcast", "float32")])
def test_other_operations_and_types(tmp_path: Path, op: str, dtype: str) -> None:
    contenders = ["lossy", "gloo-bbr", "tcp-bbr-5ms", "udp-blast"]
    rows = raced(tmp_path / "run", mb=0.3, op=op, dtype=dtype, burst=1, contenders=contenders)
    assert rows["lossy"]["n"] == rows["gloo-bbr"]["n"] == 3 and rows["lossy"]["path"] == "ok"
    assert rows["lossy"]["op"] == op and rows["lossy"]["dtype"] == dtype and rows["lossy"]["arrived_1"] is None
    assert op in rows["tcp-bbr-5ms"]["note"] or "float32" in rows["tcp-bbr-5ms"]["note"]


@pytest.mark.netns
def test_bandwidth_counts_what_arrived(tmp_path: Path) -> None:
    """As it was: what a rule had dropped counted as carried."""
    rows = raced(tmp_path / "run", profile="loss_10", mb=1, burst=1, repeats=20, contenders=["lossy", "udp-blast"])
    for row in rows.values():
        nominal = row["mb"] * 8 * 2 * 2 / 3 / row["p50_ms"]  # an all-reduce of three ranks
        assert row["gbit_s"] == pytest.approx(0.9 * nominal, rel=0.03)
        assert row["path"] == "ok"


@full
@pytest.mark.netns
def test_beside_a_tcp_stream_the_share_of_the_link_is_told(tmp_path: Path) -> None:
    rows = raced(tmp_path / "run", rate=100, mb=1, burst=1, contenders=["lossy"], beside="cubic")
    assert 0.05 < rows["lossy"]["share"] < 1.0


def test_bandwidths_count_what_crosses_a_link() -> None:
    """As nccl-tests do."""
    size = {"mb": 0.8, "dtype": "bfloat16"}
    found = {
        name: Operation.asked({**size, "op": name}, rank=1, world=4)
        for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
    }
    assert [one.bytes for one in found.values()] == [800_000] * 4
    assert [one.crossing for one in found.values()] == [1.5, 0.75, 0.75, 1.0]
    with pytest.raises(OptionError, match="no operation 'sum'"):
        Operation.asked({"op": "sum"}, rank=0, world=4)
    with pytest.raises(OptionError, match="no type 'int4'"):
        Operation.asked({"dtype": "int4"}, rank=0, world=4)


def test_tuning_leaves_no_handle_behind_and_touches_new_connections_alone() -> None:
    def control(one: socket.socket) -> str:
        return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()

    with socket.create_server(("127.0.0.1", 0)) as server:
        old = socket.create_connection(server.getsockname())
        was, handles = control(old), set(os.listdir("/proc/self/fd"))
        numbers = tuning._connections()
        assert old.fileno() in numbers and server.fileno() not in numbers
        # One less, where a collection of garbage came just then. (Listing takes a handle for itself.)
        assert set(os.listdir("/proc/self/fd")) <= handles
        new = socket.create_connection(server.getsockname())
        tuning.tell(new.fileno(), "reno")
        assert control(new) == "reno" and control(old) == was
        old.close()
        new.close()
