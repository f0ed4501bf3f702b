"""Machines over SSH (or srun). On each an agent (runs/lab/agent.py) that speaks JSON lines over its standard input and
output; whatever it holds ends with that channel.

bundle is our own code as one file for machines that lack it, channel starts an agent and asks it, orders are what is
asked of all machines, check looks at a lab before it is used (fit judges what machines say, way measures from one to
the next), network is a lab as a run's network, place one of its machines. What an agent answers with: machine, traffic,
held (a profile for a while), half (of a run's network).

May import: net.nic, net.host, net.impair, net.tc, net.kernel, net.journal, net.network, net.counters,
net.conservation."""
