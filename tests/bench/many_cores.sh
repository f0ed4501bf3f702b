#!/bin/bash
# The collectives benchmark and the GPU tests on a machine with many cores and no network: packages come from .wheels,
# torch from the machine. Usage: bash tests/bench/many_cores.sh setup | collectives | tail_of | gpu | training speed|cifar|llm, with
# PROFILES, HOSTS, MB, MTU, REPEATS set
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=${PACKAGES:-/tmp/lossbench-packages}
export LOSSBENCH_CACHE=${LOSSBENCH_CACHE:-/tmp/lossbench-cache} PYTHONPATH=$PWD/.package:$PWD:$packages
setup() { [ -d "$packages" ] || python3 -m pip install -q --no-index --no-deps --target "$packages" .wheels/*.whl; }
lossbench() { python3 -m lossbench.cli.main "$@"; }
collectives() {  # further options of `lossbench run`
  local profile
  for profile in $PROFILES; do
    lossbench run collectives --set topology.hosts="${HOSTS:-8}" --set topology.mtu="${MTU:-1500}" \
      --set workload.options.mb="${MB:-32}" --set impair.0.profile="$profile" \
      --set workload.options.repeats="${REPEATS:-20}" --set workload.options.budget_s="${BUDGET:-6}" \
      "$@" --out "${OUT:-/tmp}/runs" --json > /tmp/collectives.json || true
    python3 - "$profile" <<'P'
import json, sys
one = json.load(open("/tmp/collectives.json"))["summary"][0]
print("==", sys.argv[1], one["columns"], one["met"], one["reasons"]["fault"][:4], one["reasons"]["outcome"][:2])
for row in one["rows"]:
    keys = ("contender", "n", "p50_ms", "p99_ms", "max_ms", "gbit_s", "cpu_s_per_gb", "arrived_1", "arrived_2", "path", "vs_gloo", "vs_tcp", "note")
    print(" ".join(f"{k}={row.get(k)}" for k in keys), {k: row[k] for k in ("overflow", "late", "cut") if k in row}, flush=True)
P
  done
}
tail_of() {  # PROFILES: p99/p50 of the lossy all-reduce alone
  collectives --set 'workload.options.contenders=["lossy"]' --set workload.options.budget_s=100
}
training() { python3 tests/bench/gpu_training.py "$@"; }
gpu() { python3 -m pytest -q -s -p no:cacheprovider -m gpu tests/training; }
"$@"
