"""`--capture`: a pcap of every host."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lossbench.runs.launch import capture
from tests.forked import lossbench
from tests.forms import full

TALK = """
import os, socket, time
rank, addresses = int(os.environ["RANK"]), os.environ["LOSSBENCH_ADDRESSES"].split(",")
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind((addresses[rank], 5555))
time.sleep(0.5)
if rank == 0:
    for number in range(200):
        link.sendto(number.to_bytes(4, "big") + bytes(900), (addresses[1], 5555))
        time.sleep(0.0005)
time.sleep(0.5)
"""


def packets(path: Path) -> list[tuple[int, bytes]]:
    """(length on the wire, what was kept) of a pcap file."""
    raw, out = path.read_bytes(), []
    assert struct.unpack("<I", raw[:4]) == (0xA1B23C4D,)
    at = 24
    while at < len(raw):
        _, _, kept, length = struct.unpack("<IIII", raw[at : at + 16])
        out.append((length, raw[at + 16 : at + 16 + kept]))
        at += 16 + kept
    return out


def captured(folder: Path, *more: str) -> tuple[dict[str, Any], Path]:
    """The summary of a run, and where its captures are."""
    (folder / "talk.py").write_text(TALK)
    text = '[workload]\ncommand = ["python", "talk.py"]\nbarrier = false\n[topology]\nhosts = 2\n'
    (folder / "mine.toml").write_text(text + '[[impair]]\nprofile = "loss_10"\n[probe]\npackets = 4000\n')
    done = lossbench("run", "mine.toml", "--json", *more, cwd=folder)
    (one,) = json.loads(done.stdout)["summary"]
    return one, folder / one["dir"] / "captures"


@pytest.mark.netns
def test_every_host_has_a_file_that_holds_what_its_link_carried(tmp_path: Path) -> None:
    one, folder = captured(tmp_path, "--capture")
    seen, others = {}, 0
    for host in ("h0", "h1"):
        about = json.loads((folder / f"{host}.json").read_text())
        assert about["missed"] == 0 and about["full"] is False
        every = list(packets(folder / f"{host}.pcap"))
        mine = [data for length, data in every if length == 14 + 20 + 8 + 904]
        others += len(every) - len(mine)
        assert all(len(data) == 128 for data in mine)
        seen[host] = {int.from_bytes(data[42:46], "big") for data in mine}
    assert seen["h0"] == set(range(200)), "what was sent, before it met the loss"
    assert seen["h1"] < seen["h0"]
    assert 0 <= one["met"]["lost_by_rule"] - (200 - len(seen["h1"])) <= others, "what is not there was lost by the rule"
    if shutil.which("tcpdump"):
        subprocess.run(["tcpdump", "-nr", str(folder / "h1.pcap")], check=True, capture_output=True)


@full
@pytest.mark.netns
def test_a_capture_is_bounded(tmp_path: Path) -> None:
    one, folder = captured(tmp_path, "--set", "capture.packets=50", "--set", "capture.bytes=64")
    kept = packets(folder / "h0.pcap")
    assert len(kept) == 50 and max(len(data) for _, data in kept) == 64
    assert json.loads((folder / "h0.json").read_text())["full"] is True
    assert "the capture of h0 holds the first 50 packets only" in one["warnings"]
    (folder / "h1.json").unlink()
    assert any("h1 was cut short" in text for text in capture.faults(folder.parent))
