"""MAKES IT SO. The only pyroute2.

network is what a run asks of any network; star builds one of namespaces; host is a place with a stack of its own;
impair puts profiles in force; tc queues and hooks; bpf is the kernel's program loader; guest a machine with a stock
kernel, where this one lacks netem. kernel tells what can be done here, by trying; journal and made undo; counters and
conservation are what was counted, and the law that it obeys.

Names in a network: namespaces lb-<id>-sw (the switch) and lb-<id>-h0, h1, ...; in a host eth0 (data, impaired) and ctl0
(control); at the switch p0 and c0 (the other ends of h0's links), br0 and ctl0 (bridges), nowhere (where packets for
absent hosts go), i0u0 (the netem IFB of h0's uplink, first entry), e0u (edt's), t0u (the relay's tap).

May import: spec, files, processes, contract, errors."""
