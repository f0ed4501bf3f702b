"""Hosts as namespaces around one switch: links and neighbours build it, gauges read it, network is all of it.

May import: net.impair, net.tc, net.bpf, net.host, net.counters, net.conservation, net.network."""
