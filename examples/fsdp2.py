"""FSDP2: parameters, gradients and optimizer states are shared out over the ranks."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))

torch.manual_seed(0)
teacher = torch.randn(64, 10)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

torch.manual_seed(1 + rank)
for step in range(STEPS):
    inputs = torch.randn(32, 64)
    loss = torch.nn.functional.cross_entropy(model(inputs), (inputs @ teacher).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and (step + 1) % 25 == 0:
        print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)

dist.destroy_process_group()
