"""The training workload: `python -m lossbench.workloads.training`, started by `lossbench run`.

May import: workloads.sync, workloads.collective, workloads.transport, workloads.errors."""
