"""Options of clients and servers, looked at before anything is built."""

from __future__ import annotations

import json
import sys

from lossbench.workloads.errors import status_of
from lossbench.workloads.web.options import read_options


def main() -> int:
    return status_of(lambda: [read_options(options) for options in json.load(sys.stdin)])


if __name__ == "__main__":
    raise SystemExit(main())
