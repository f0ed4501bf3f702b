"""A user's script under torchrun: what its workers say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lossbench.runs.launch import torchrun
from lossbench.runs.launch.environment import gpu_for

WORKER = {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOSSBENCH_PORT": "1"}


def test_a_workers_line_is_written_whole(tmp_path: Path) -> None:
    """As it was: a word at a time, and the lines of two workers tangled in the log that they share."""
    script = tmp_path / "mine.py"
    script.write_text("print('rank', 0, 'of', 1)\nprint('sum', 6.0, flush=True)\n")
    command = [sys.executable, "-m", torchrun.MODULE, torchrun.WORKER, "1", str(script)]
    end, start = os.pipe2(os.O_DIRECT)  # of such a pipe a read gives what one write gave
    with os.fdopen(end, "rb", buffering=0) as said:
        subprocess.run(command, env={**os.environ, **WORKER, "PYTHONUNBUFFERED": "1"}, stdout=start, check=True)
        os.close(start)
        assert [said.read(4096) for _ in range(3)] == [b"rank 0 of 1\n", b"sum 6.0\n", b""]


def test_each_host_gets_a_gpu_of_its_own_in_turn() -> None:
    """As it was: every rank took the first."""
    two = ["NVIDIA A", "NVIDIA B"]
    assert [gpu_for(rank, two, {})["CUDA_VISIBLE_DEVICES"] for rank in range(4)] == ["0", "1", "0", "1"]
    assert gpu_for(1, two, {"CUDA_VISIBLE_DEVICES": "5,GPU-7"}) == {"CUDA_VISIBLE_DEVICES": "GPU-7"}
    assert gpu_for(1, two[:1], {}) == gpu_for(1, [], {}) == gpu_for(1, two, {"CUDA_VISIBLE_DEVICES": ""}) == {}


def test_hosts_of_several_ranks_get_gpus_of_their_own() -> None:
    """As it was: with --ranks every host's first rank took the machine's first GPU."""
    four = ["A", "B", "C", "D"]
    each = [gpu_for(host, four, {}, ranks=2)["CUDA_VISIBLE_DEVICES"] for host in range(3)]
    assert each == ["0,1", "2,3", "0,1"]
    assert gpu_for(1, four, {}, ranks=3) == {"CUDA_VISIBLE_DEVICES": "3,0,1"}
    assert gpu_for(1, four[:2], {}, ranks=3) == {}, "more ranks than GPUs: all are seen"
    assert gpu_for(1, four, {"CUDA_VISIBLE_DEVICES": "5,6,7,8"}, ranks=2) == {"CUDA_VISIBLE_DEVICES": "7,8"}
