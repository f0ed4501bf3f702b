"""lossbench's harness: builds networks, puts genuine loss in force, proves it, runs workloads in it."""

__version__ = "0.1.0"
