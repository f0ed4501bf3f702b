"""Packets of our own through every rule: flows (which), foils (which no rule may take), datagram (scapy), exchange
(sockets), probing (around a network), afterwards (foils once more)."""
