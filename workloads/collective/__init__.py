"""Importing this registers the torch.distributed backend "lossy".

import lossbench.workloads.collective
torch.distributed.init_process_group("lossy")

May import: workloads.transport, workloads.errors."""

from lossbench.workloads.collective.group import LossyGroup, register
from lossbench.workloads.transport.policy import Policy

__all__ = ["LossyGroup", "Policy"]

register()
