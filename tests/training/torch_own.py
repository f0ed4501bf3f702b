"""PyTorch's own distributed tests (they come with its wheel) against the lossy backend, on loopback: nothing is lost.

python tests/training/torch_own.py [--world 4] [--only PART | --exactly NAME,NAME] [--backend gloo]    a line each

One process has imported everything; each test runs in children of it, one a rank, with a group of their own. Needs
the package expecttest, as those tests do.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

SECONDS = 60  # for one test
LARGE_WORLD = 8  # some want groups in groups
NOT_HERE = {  # name, or how it begins: why it is not asked of this backend
    "test_sparse_all_reduce": "sparse tensors are refused",
    "test_monitored_barrier_": "torch has it for Gloo alone",
    "test_batch_isend_irecv_mixed_backend_err": "needs NCCL",
    "test_batch_isend_irecv_op_err": "needs a GPU",
    "test_SyncBatchNorm_process_group": "needs torchvision",
    "test_accumulate_gradients_": "makes its model for gloo, nccl and ucc alone",
    "test_all_to_all_cuda": "needs a GPU",
    "test_all_to_all_full_group_cuda": "needs a GPU",
    "test_all_to_all_group_cuda": "needs a GPU",
}


def prepared(backend: str, world: int, folder: str) -> Any:
    """The class of tests, told that there is such a backend."""
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(world), TEMP_DIR=folder, INIT_METHOD=f"file://{folder}/none")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("ddp", "subgroup"):
        DistTestCases.backend_feature[feature].add(backend)
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    import lossbench.torch  # noqa: F401 - registers the backend

    class Own(TestDistBackend, DistributedTest._DistTestBase):  # type: ignore[misc]
        pass

    return Own


def run_rank(tests: Any, name: str, rank: int, world: int, store: str, log: Path) -> int:
    """In a child. The exit code that those tests use: 0, or one of their skips."""
    import torch.distributed as dist

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    one = tests(name)
    one.rank, one.file_name = rank, store
    dist.init_process_group(
        os.environ["BACKEND"], init_method=f"file://{store}", world_size=world, rank=rank, timeout=timedelta(seconds=40)
    )
    one._barrier()
    try:
        getattr(one, name)()
    except unittest.SkipTest as reason:
        print(f"SKIP {reason}", flush=True)
        return 1000
    one._barrier()
    dist.destroy_process_group()
    return 0


def child(tests: Any, name: str, rank: int, world: int, store: str, log: Path) -> None:
    code = 1
    try:
        code = run_rank(tests, name, rank, world, store, log)
    except SystemExit as said:
        code = int(said.code or 0)
        if code > 1:
            from torch.testing._internal.common_distributed import TEST_SKIPS

            reasons = {one.exit_code: one.message for one in TEST_SKIPS.values()}
            print(f"SKIP {reasons.get(code, code)}", flush=True)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit({0: 0, 1: 1}.get(code, 2))


def run_test(tests: Any, name: str, world: int, folder: Path) -> tuple[str, str]:
    """(passed | skipped | failed, why)."""
    from torch.testing._internal.distributed import distributed_test

    os.environ["WORLD_SIZE"] = str(world)
    distributed_test.initialize_temp_directories()
    distributed_test.Barrier.init()
    handle, store = tempfile.mkstemp(dir=folder)
    os.close(handle)
    os.unlink(store)
    logs = [folder / f"rank{rank}.log" for rank in range(world)]
    pids = {}
    for rank in range(world):
        pid = os.fork()
        if not pid:
            child(tests, name, rank, world, store, logs[rank])
        pids[pid] = rank
    codes = wait_for(pids)
    distributed_test.cleanup_temp_dir()
    text = [log.read_text(errors="replace") if log.exists() else "" for log in logs]
    if all(code == 0 for code in codes.values()):
        return "passed", ""
    if any(code == 2 for code in codes.values()) and all(code in (0, 2) for code in codes.values()):
        return "skipped", next(line for part in text for line in part.splitlines() if line.startswith("SKIP"))[5:]
    worst = [part for part, (_, code) in zip(text, sorted(codes.items()), strict=True) if code not in (0, 2)]
    lines = [line for part in worst for line in part.splitlines() if "Error" in line]
    return "failed", " | ".join(dict.fromkeys(lines))[:400] or "did not end"


def wait_for(pids: dict[int, int]) -> dict[int, int]:
    codes: dict[int, int] = {}
    until = time.monotonic() + SECONDS
    while len(codes) < len(pids):
        for pid, rank in pids.items():
            if rank not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            for pid, rank in pids.items():
                if rank not in codes:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    codes[rank] = 124
        time.sleep(0.01)
    return codes


def ask(tests: Any, name: str, world: int, folder: Path) -> tuple[str, str]:
    for start, why in NOT_HERE.items():
        if name.startswith(start):
            return "skipped", why
    how, why = run_test(tests, name, world, folder)
    if how == "skipped" and "small world size" in why:
        return run_test(tests, name, LARGE_WORLD, folder)
    return how, why


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--world", type=int, default=4)
    asked.add_argument("--only", default="")
    asked.add_argument("--exactly", default="", help="names, with commas")
    asked.add_argument("--backend", default="lossy")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tests = prepared(given.backend, given.world, folder)
        names = [name for name in dir(tests) if name.startswith("test_") and given.only in name]
        if given.exactly:
            names = [name for name in names if name in given.exactly.split(",")]
        for name in names:
            begun = time.monotonic()
            how, why = ask(tests, name, given.world, Path(folder))
            took = round(time.monotonic() - begun, 1)
            print(json.dumps({"test": name, "how": how, "why": why, "s": took}), flush=True)


if __name__ == "__main__":
    main()
