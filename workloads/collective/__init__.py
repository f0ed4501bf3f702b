"""Importing this registers the torch.distributed backend "lossy".

import workloads.collective
torch.distributed.init_process_group("lossy")
"""

from workloads.collective.group import LossyGroup, register
from workloads.transport.policy import Policy

__all__ = ["LossyGroup", "Policy"]

register()
