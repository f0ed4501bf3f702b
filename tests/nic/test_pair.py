"""Two stock kernels joined by a wire: netem on a real (virtio) interface, in `make test-guest-pair`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lossbench.net.nic.state import LEASE_S

ROOT = Path(__file__).resolve().parents[2]
DRILLS = max(1, int(os.environ.get("LOSSBENCH_DRILLS", "1")))
BOUND_S = LEASE_S + 10  # an emulated machine


@pytest.mark.pair
def test_netem_on_a_virtio_nic_loses_exactly_what_the_other_machine_misses_and_goes_without_a_trace(
    tmp_path: Path,
) -> None:
    guests = [guest(end, tmp_path, "1", str(DRILLS)) if end == 1 else guest(end, tmp_path, "2") for end in (1, 2)]
    said = [process.communicate(timeout=1700)[0] for process in guests]
    one, other = (json.loads(text.strip().splitlines()[-1]) for text in said)
    assert one["backend"] == "netem" and "fq_codel" in one["root"]
    assert one["seen"] == 20_000 and one["dropped"] == 20_000 - one["received"] and 800 < one["dropped"] < 1200
    assert one["received"] == other["received"] and one["lost_in_detour"] == 0
    assert one["same"], "qdiscs, filters, offloads byte for byte as before"
    print(one["drills"])
    assert len(one["drills"]) == DRILLS and all(drill["back"] for drill in one["drills"]), one["drills"]
    assert all(drill["s"] <= BOUND_S for drill in one["drills"]), one["drills"]


@pytest.mark.pair
@pytest.mark.parametrize("down", ["down", "meanwhile"])
def test_a_machine_that_goes_down_impaired_comes_up_as_it_was(tmp_path: Path, down: str) -> None:
    """Also where the journal outlived it; also at any moment while it is being impaired."""
    if os.environ.get("LOSSBENCH_PAIR") != "full":
        pytest.skip("two boots more: make test-guest-pair")
    folder = tmp_path / "results1"
    for way in (down, "up"):
        said = guest(1, tmp_path, way, str(folder), module="tests.nic.reboot_end").communicate(timeout=1700)[0]
    found = json.loads(said.strip().splitlines()[-1])
    moment = (folder / "moment").read_text() if down == "meanwhile" else ""
    assert found.pop("carried") in ((1,) if down == "down" else (0, 1)), moment
    assert found == {"as_before": True, "standing": [], "after": True, "left": 0}, moment


def guest(end: int, folder: Path, *arguments: str, module: str = "tests.nic.pair_end") -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "lossbench.cli.main", "vm", "run", "--wire", str(folder / "wire")]
    command += ["--end", str(end), "--cpus", "1", "--timeout-s", "1700", "--writable", str(folder / f"results{end}")]
    inside = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / '.package'}:{ROOT}"}
    return subprocess.Popen(
        [*command, "--", *inside],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
