"""The loops over packets in C: pump.c, and how it is compiled at first use (native.py)."""
