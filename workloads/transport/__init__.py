"""Datagrams that may be lost: UDP with segmentation offload, vectorised headers, two halves of a collective.

Knows numpy and sockets, nothing of torch. Read native/engine.c and endpoint.py first.

May import: workloads.errors."""
