"""Proof by probing: flows are planned (pure), sent and received (fast path), crafted and dissected (scapy)."""
