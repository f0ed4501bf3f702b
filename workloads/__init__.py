"""The programs that run in hosts. They import nothing of the harness but its contract.

noop and chatter are single files; training and allreduce are folders; suites are experiments that come along. A
workload says what its numbers mean, and what to load for it, in a file beside it (see spec/about.py).

May import: contract."""

if __name__ == "workloads":  # the folder's own name, in a checkout: what it was called before
    import sys

    from lossbench_former import alias

    sys.modules[__name__] = alias(__name__)
