"""A machine that goes down while its NIC is impaired, and comes up: `python -m tests.nic.reboot_end down|up FOLDER`;
`meanwhile` instead of down: at a random moment while it is being impaired.

What lies in /run does not outlive a machine; here it is carried over, as if it did. `up` prints one JSON object."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from lossbench.net import journal
from tests.nic.pair_end import lossbench, seen
from tests.nic.wire import COMMAND

REBOOT = Path("/proc/sysrq-trigger")


def down(folder: Path, *, meanwhile: bool = False) -> None:
    (folder / "before.json").write_text(json.dumps(seen()))
    asked = ("nic", "apply", "eth0", "--profile", "loss_5", "--side", "both")
    if meanwhile:
        took = time.monotonic()
        lossbench(*asked)
        took = time.monotonic() - took
        lossbench("nic", "revert", "eth0")
        moment = random.uniform(0, took)
        (folder / "moment").write_text(f"after {moment:.2f} of {took:.2f} s")
        subprocess.Popen([*COMMAND, *asked])
        time.sleep(moment)
    else:
        lossbench(*asked)
    (folder / "journal").mkdir()
    with suppress(shutil.Error):  # files come and go while it is being written
        shutil.copytree(journal.ROOT, folder / "journal", dirs_exist_ok=True)
    os.sync()
    REBOOT.write_text("b")


def up(folder: Path) -> dict[str, Any]:
    before = json.loads((folder / "before.json").read_text())
    shutil.copytree(folder / "journal", journal.ROOT, dirs_exist_ok=True)
    out = {"as_before": json.loads(json.dumps(seen())) == before, "carried": len(journal.networks())}
    out["standing"] = json.loads(lossbench("nic", "show", "--json"))["nics"]
    lossbench("nic", "apply", "eth0", "--profile", "loss_5")
    lossbench("nic", "revert", "eth0")
    lossbench("clean")
    return {**out, "after": json.loads(json.dumps(seen())) == before, "left": len(journal.networks())}


if __name__ == "__main__":
    if sys.argv[1] != "up":
        down(Path(sys.argv[2]), meanwhile=sys.argv[1] == "meanwhile")
    else:
        print(json.dumps(up(Path(sys.argv[2]))))
