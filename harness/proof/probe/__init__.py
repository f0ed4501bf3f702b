"""Packets of our own through every rule: flows (which), datagram (scapy), exchange (sockets), probing (around a
network)."""
