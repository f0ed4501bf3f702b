"""The lossy backend with CUDA tensors: pinned staging, streams, several ranks on one GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lossbench.net.kernel import Kernel
from lossbench.results.folders import RunFolder
from lossbench.runs import run
from lossbench.runs.ground import ThisMachine
from tests.training import test_backend, test_trainer

pytestmark = [pytest.mark.gpu, pytest.mark.training]


def test_every_collective_with_cuda_tensors() -> None:
    done = test_backend.torchrun(str(test_backend.HERE / "every_collective.py"), "cuda")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("on cuda: all is well") == 3


@pytest.mark.netns
@pytest.mark.parametrize("wrapper", ["ddp", "zero", "fsdp"])
def test_unchanged_training_on_a_gpu_lives_with_ten_percent_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrapper: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", test_backend.PATHS)
    experiment = test_backend.experiment("tests.training.toy", "loss_10", wrapper=wrapper, device="cuda")
    result = run.execute(
        experiment,
        seed=1,
        chosen={},
        folder=RunFolder(tmp_path / "run"),
        ground=ThisMachine(Kernel.tried()),
        progress=lambda _: None,
    )
    assert result.verdict.columns["outcome"].status == 0, result.verdict.columns["outcome"].reasons()
    for summary in result.watched.summaries:
        print(wrapper, {k: summary[k] for k in ("first_lossy", "lossy", "gloo", "payload_bytes", "lost")})
        assert 0.08 < summary["lost"] / summary["data_expected"] < 0.12
        assert summary["payload_bytes"] > 0 and summary["lossy"] < 0.6 * summary["first_lossy"]


@pytest.mark.parametrize(("data", "model"), [("digits", "mlp"), ("digits32", "resnet8"), ("pydoc", "llama_200k")])
def test_a_graph_of_all_ranks_trains_as_ranks_one_by_one(
    data: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else convolutions round to ten bits and pick algorithms as they like: two loops would differ just as much.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    keys = {"data": data, "model": model, "steps": 5, "window": 16, "optimizer": "sgd", "lr": 0.1, "device": "cuda"}
    loop = test_trainer.trained(tmp_path / "a", engine="loop", **keys)
    graph = test_trainer.trained(tmp_path / "b", engine="graph", **keys)
    torch.testing.assert_close(test_trainer.values(loop), test_trainer.values(graph), rtol=1e-3, atol=1e-4)
