"""Plain data-parallel training. Nothing in here knows of lossbench: torchrun's variables are all it needs."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()

torch.manual_seed(0)
teacher = torch.randn(64, 10)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(1 + rank)  # every rank has its own examples
for step in range(STEPS):
    inputs = torch.randn(32, 64)
    loss = torch.nn.functional.cross_entropy(model(inputs), (inputs @ teacher).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and (step + 1) % 50 == 0:
        print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)

dist.destroy_process_group()
