"""Importing this registers the torch.distributed backend "lossy".

import lossbench.torch
torch.distributed.init_process_group("lossy")
"""

from lossbench.workloads.collective import LossyGroup, Policy

__all__ = ["LossyGroup", "Policy"]
