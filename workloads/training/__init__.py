"""The training workload: `python -m workloads.training`, started by `lossbench run`."""
