"""One collective of one size by every contender in turns; a row each: time, bandwidth, what arrived, CPU, path proof.

Options: op, dtype, mb, repeats (turns), burst (calls in a row in a turn), warm_up, limit_s (one call), budget_s (all
calls of a contender), contenders, beside (a TCP stream with this congestion control, from rank 1 to rank 0).

    lossbench run collectives
"""

from __future__ import annotations

import sys

from lossbench.contract import Door
from lossbench.workloads.allreduce.bench import Bench
from lossbench.workloads.allreduce.rows import Rows
from lossbench.workloads.errors import OptionError


def main() -> None:
    bench = Bench(Door.from_environment())
    bench.run()
    Rows(bench).report()
    bench.close()


if __name__ == "__main__":
    try:
        main()
    except OptionError as error:
        sys.exit(f"lossbench allreduce: {error}")
