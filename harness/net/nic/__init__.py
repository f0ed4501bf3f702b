"""This machine's own interface. Nothing of others is ever changed: packets that are asked for are led aside, meet
their fate there, and come back; so what is to be restored is what we added.

    eth1, egress or ingress: gate ---> A ==veth== B: rules (ebpf), or C ==veth== D with netem on C; onward ---> eth1

facts is what an interface is (layers: what is above and below it), safety what must not be done to it, left what an
earlier one has left there, alone whether it can be left there without us,
programs the code at the gate and behind it, detour the devices, impaired puts a profile there, standing looks at it and
gives it back, watchdog does so when its time is over, snapshot shows that all is as before.

Names: lb<id>ea and lb<id>eb (A and B of egress), ec and ed (C and D); ia, ib, ic, id the same of ingress.

May import: net.impair, net.tc, net.bpf, net.host, net.journal, net.made, net.kernel, net.counters."""
