"""Packets to and from the socket, many at once: pump (numpy, or pump.c), sender (a thread of its own)."""
