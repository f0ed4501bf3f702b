#!/bin/bash
# The collectives benchmark and the GPU tests on a machine with many cores and no network: packages come from .wheels,
# torch from the machine. Usage: bash tests/bench/many_cores.sh setup | collectives | bars | large | tail_of | gpu | steady FOLDER | campaign FILE MINUTES | at_once FILE MINUTES [options] | record | beside SUITE | suite NAME | training speed|cifar|llm, with
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
    lossbench run collectives --set probe.packets=20000 --set topology.hosts="${HOSTS:-8}" --set topology.mtu="${MTU:-1500}" \
      --set workload.options.mb="${MB:-32}" --set impair.0.profile="$profile" \
      --set workload.options.repeats="${REPEATS:-20}" --set workload.options.budget_s="${BUDGET:-6}" \
      "$@" --out "${OUT:-/tmp}/runs" --json > /tmp/collectives.json || true
    python3 - "$profile" <<'P'
import json, sys
one = json.load(open("/tmp/collectives.json"))["summary"][0]
said = [] if set(one["columns"].values()) == {"valid"} else [one["reasons"]["fault"][:5], one["reasons"]["outcome"][:2]]
print("==", sys.argv[1], *one["columns"].values(), "lost", one["met"].get("loss"), "elsewhere", one["met"].get("lost_elsewhere"), "queues", one["met"].get("lost_in_queues"), *said)
for row in one["rows"]:
    keys = ("contender", "op", "dtype", "mb", "n", "p50_ms", "p95_ms", "p99_ms", "gbit_s", "cpu_s_per_gb", "arrived_1", "arrived_2", "vs_tcp", "vs_limit", "share", "note", "overflow", "late")
    print(" ".join(f"{k}={row[k]}" for k in keys if row.get(k) not in (None, "", 0) and (k != "path" or row[k] != "ok")), flush=True)
P
  done
}
only() { echo "--set workload.options.contenders=$1"; }
bars() {  # of the transport, in about eight minutes; the backlog of 1000 packets would lose some of 8 x 5 Gbit/s
  sysctl -q -w net.core.netdev_max_backlog=20000
  local two='["lossy","udp-blast"]' tcp='["lossy","gloo-bbr-5ms","gloo-cubic-5ms","tcp-bbr-5ms","udp-blast"]'
  local small='["lossy","gloo-bbr-5ms","floor"]' moves='["lossy","gloo-bbr-5ms"]'
  MB=32 REPEATS=20 BUDGET=20 PROFILES="clean loss_1 loss_5 loss_10" collectives $(only "$tcp")
  MB=32 REPEATS=200 BUDGET=60 PROFILES="clean loss_10 bursty_5" collectives $(only "$two")
  for kb in 1 16 64; do MB=$(python3 -c "print($kb/1000)") REPEATS=24 PROFILES="clean loss_10" collectives $(only "$small"); done
  MB=.256 REPEATS=100 PROFILES=clean collectives $(only '["lossy","lossy-busy"]')
  MB=16 REPEATS=40 PROFILES=clean collectives $(only "$two") --set workload.options.dtype=bfloat16
  for op in broadcast all_gather; do MB=4 REPEATS=40 PROFILES="clean loss_1" collectives $(only "$moves") --set workload.options.op=$op; done
  HOSTS=16 MB=16 REPEATS=10 PROFILES=clean collectives $(only '["lossy"]') --set topology.rate_mbit=1000
}
large() {  # one call of GB gigabytes between two ranks: memory, what arrived, whether it is right
  local profile
  for profile in $PROFILES; do
    printf 'name = "large"\n[topology]\nhosts = 2\n[[impair]]\nprofile = "%s"\n[workload]\nname = "allreduce.loop"\ntime_limit_s = 300\noptions = { mb = %s, calls = 1 }\n' \
      "$profile" "$((${GB:-8} * 1000))" > /tmp/large.toml
    lossbench run /tmp/large.toml --out "${OUT:-/tmp}/runs" --json > /tmp/large.json || true
    python3 -c 'import json; one = json.load(open("/tmp/large.json"))["summary"][0]; print(one["columns"], one["workload"], one["reasons"]["fault"][-1:])'
  done
}
tail_of() {  # PROFILES: p99/p50 of the lossy all-reduce alone
  collectives --set 'workload.options.contenders=["lossy"]' --set workload.options.budget_s=100
}
record() {  # the bursts of ResNet-110 on 16 hosts
  lossbench run record-exchange --full --out /tmp/record "$@" | tail -30
  find /tmp/record -name recording.json -exec cp {} /tmp/recording.json \;
  cp /tmp/recording.json "${OUT:-/tmp}"; cat /tmp/recording.json
}
beside() {  # a suite of the web service: one line for each run
  local suite=$1; shift
  lossbench run "$suite" "$@" --out /tmp/beside --json > /tmp/beside.json || true
  cp /tmp/beside.json "${OUT:-/tmp}/$suite-$(date +%s).json"
  python3 - <<'P'
import json
for one in json.load(open("/tmp/beside.json"))["summary"]:
    rows = {}
    for row in one["rows"]:
        rows.update({k.removeprefix("web."): v for k, v in row.items() if v is not None})
    keys = ("offered", "n", "n_independent", "mean_ms", "p50_ms", "p99_ms", "p99.9_ms", "lag_p99_ms", "learning_loss", "failed")
    bad = [] if set(one["columns"].values()) == {"valid"} else [str(one["reasons"])[:300]]
    print(one["point"], one["seed"], *one["columns"].values(), {k: rows[k] for k in keys if k in rows}, *bad, flush=True)
P
}
suite() {  # NAME, options of `lossbench run`: for LIMIT seconds, goes on with what a call before began; packed into $OUT
  local name=$1 begun; shift; mkdir -p /tmp/suites
  begun=$(find /tmp/suites -maxdepth 1 -name "*_${name}_*" | sort | tail -1)
  if [ -n "$begun" ]; then set -- "$begun" --resume; else set -- "$name" --out /tmp/suites "$@"; fi
  timeout -s INT "${LIMIT:-540}" python3 -m lossbench.cli.main run "$@" 2>&1 | tail -n "${LINES_SHOWN:-60}" || true
  tar czf "${OUT:-/tmp}/$name.tgz" --exclude '*.samples*' --exclude 'logs' -C /tmp/suites .
}
training() { python3 tests/bench/gpu_training.py "$@"; }
steady() {  # FOLDER [options]: tests/bench/steady.py; on a machine that is thrown away afterwards, since it installs the packages
  python3 -c 'import xdist, pyroute2' 2>/dev/null || python3 -m pip install -q --no-index --no-deps --break-system-packages .wheels/*.whl
  unset PYTHONDONTWRITEBYTECODE  # every worker would compile our files anew
  python3 -m compileall -q harness workloads tests >/dev/null || true
  # Two threads, as on the machine that decides: sixteen in each of a hundred processes only wait for each other.
  OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} CUDA_VISIBLE_DEVICES= PYTHONPATH=$PWD/.package:$PWD python3 tests/bench/steady.py --state "$1/steady.jsonl" "${@:2}"
}
unpacked() {  # data from .data, once and not in every rank
  [ ! -d .data ] || find .data -name '*.xz' -print0 | xargs -r -0 -n 1 -P 8 python3 -c 'import lzma, pathlib, sys
packed = pathlib.Path(sys.argv[1]); plain = packed.with_suffix("")
plain.exists() or plain.write_bytes(lzma.decompress(packed.read_bytes()))'
  export LOSSBENCH_DATA=$PWD/.data LOSSBENCH_OFFLINE=1
}
packed() {  # the results so far into $OUT
  lossbench pack --all --light --in "/tmp/campaigns/$1" --to "${OUT:-/tmp}/$1.tar.gz" --part-mib 15
}
campaign() {  # FILE MINUTES: goes on with what a call before began
  local name; name=$(basename "$1" .toml); setup; unpacked
  lossbench campaign "$1" --minutes "$2" --out "/tmp/campaigns/$name" || true
  packed "$name"
}
at_once() {  # FILE MINUTES [options of tests/bench/at_once.py]: the same, several runs at once
  local name; name=$(basename "$1" .toml); setup; unpacked
  python3 tests/bench/at_once.py "$1" --minutes "$2" --out "/tmp/campaigns/$name" "${@:3}"
  if [ "$name" = full-forms ]; then python3 tests/bench/full_forms.py "/tmp/campaigns/$name" | tee "${OUT:-/tmp}/full-forms.md"; fi
  packed "$name"
}
gpu() { python3 -m pytest -q -s -p no:cacheprovider -m gpu tests/training; }
"$@"
