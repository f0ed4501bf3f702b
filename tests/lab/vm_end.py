"""One of two machines under QEMU that make a lab: `python -m tests.lab.vm_end END KEYS OUT`. Prints one JSON object.

Both are provisioned as the Vagrantfile would; 1 controls, and trains with 2 over a real interface with netem on it.
They speak over TCP port 53, which is never touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.nic.pair_end import CONTROL, _connected, seen
from tests.nic.wire import COMMAND

ROOT = Path(__file__).resolve().parents[2]
PREFIX = Path("/tmp/lossbench-lab")
EXPERIMENT = """
name = "two-machines"
essential = ["fault", "outcome"]
backend = "netem"
[topology]
hosts = 2
[workload]
name = "training"
time_limit_s = 900
options = { data = "digits", model = "mlp", optimizer = "sgd", lr = 0.2, batch = 32, steps = 30, drift_every = 10 }
[probe]
packets = 4000
[[impair]]
profile = "loss_5"
[sweep]
"workload.options.strategy" = ["rps", "bounded_drift"]
"""


def provisioned(end: int, keys: str) -> str:
    variables = {
        "LB_ROLE": "both" if end == 1 else "host",
        "LB_KEYS": keys,
        "LB_NUMBER": str(end),
        "LB_DATA": f"10.99.0.{end}/24",
        "LB_INTERFACE": "eth0",
        "LB_MACHINES": "10.99.0.1=10.99.0.1 10.99.0.2=10.99.0.2",
        "LB_PYTHON": sys.executable,
        "LB_PREFIX": str(PREFIX),
    }
    # fq_codel drops where an emulated machine is slow, which is counted, and makes a proof unknown.
    subprocess.run(["tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo", "limit", "10000"], check=True)
    command = ["sh", str(ROOT / "provision.sh")]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lossbench(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=1500)
    assert done.stdout, done.stderr
    return {"exit": done.returncode, **json.loads(done.stdout)}


def control(keys: str, out: str) -> dict[str, Any]:
    said = provisioned(1, keys)
    with _connected() as other, other.makefile("rw") as lines:
        before = seen()
        lab = str(PREFIX / "lab.toml")
        assert f"lossbench lab check {lab}" in said
        checked = lossbench("lab", "check", lab, "--json")
        (PREFIX / "two.toml").write_text(EXPERIMENT)
        began = time.monotonic()
        ran = lossbench("run", str(PREFIX / "two.toml"), "--lab", lab, "--yes-these-nics", "--out", out, "--json")
        took = time.monotonic() - began
        lines.write("bye\n")
        lines.flush()
        there = lines.readline().strip()
    return {"check": checked, "run": ran, "same": seen() == before, "same_there": there, "run_s": took}


def follow(keys: str) -> dict[str, Any]:
    import socket

    provisioned(2, keys)
    before = seen()
    with socket.create_server(("", CONTROL)) as server:
        peer, _ = server.accept()
        with peer, peer.makefile("rw") as lines:
            lines.readline()
            same = seen() == before
            lines.write(f"{same}\n")
            lines.flush()
    return {"same": same}


if __name__ == "__main__":
    print(json.dumps(control(sys.argv[2], sys.argv[3]) if sys.argv[1] == "1" else follow(sys.argv[2])))
