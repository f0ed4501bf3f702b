"""The collectives benchmark: `lossy` against TCP done well, on the same ports, in turns.

May import: workloads.collective, workloads.transport, workloads.errors."""
