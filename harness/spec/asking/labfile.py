"""A lab.toml to begin with: the text that `lossbench lab init` writes, with words for whoever edits it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence

from lossbench.spec.lab import Lab
from lossbench.spec.userfile import check

NODES = ("node0", "node1")  # where nobody is named
HEAD = """\
# The machines of a lab, in the order of their ranks: h0, h1, ...       lossbench lab check THIS_FILE
# What is commented out may be said, too; all of it: lossbench schema lab --markdown
# ssh_config = "ssh_config"       # for ssh -F, beside this file; none: your own ~/.ssh/config
"""
MACHINE = """
[[machine]]
ssh = {ssh}
interface = {interface}
"""
MORE = """\
# address = "10.0.0.1"            # on the data network; none: the first one of the interface
# control = "192.168.0.10"        # on the control network; none: the one that ssh reaches it by
# sudo = true                     # become root there by `sudo -n`; else ssh as root
# python = "/opt/venv/bin/python" # 3.11 or newer, with lossbench's packages; none: python3
# past_rdma = true                # the interface has an RDMA device, and only TCP/IP is meant
# ranks = 8                       # of a program of your own, by torchrun
# gpus = 8                        # for the record
"""
FIRST = "{ssh}  # as your own ssh takes it: a name of ~/.ssh/config, root@node0"
DATA = "{interface}  # of the data network"
SWITCH = """
# [switch]                        # what stands between them
# name = "sn5600"                 # for the record; so are notes = "..."
# counters = ["./ask_switch"]     # a command of yours that prints what it dropped (docs/switches.md)
"""


def text(machines: Sequence[str] = NODES, *, interface: str = "eth1") -> str:
    """Words stand at the first machine alone."""
    names, data = [json.dumps(one) for one in machines], json.dumps(interface)
    first = MACHINE.format(ssh=FIRST.format(ssh=names[0]), interface=DATA.format(interface=data)) + MORE
    out = HEAD + first + "".join(MACHINE.format(ssh=one, interface=data) for one in names[1:]) + SWITCH
    check(Lab, tomllib.loads(out), origin="lab init")
    return out
