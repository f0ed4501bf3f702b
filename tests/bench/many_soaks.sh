#!/bin/bash
# The bars about kills, broken input and strangers, side by side on a machine with many cores, each with a /run of its own:
# bash tests/bench/many_soaks.sh FOLDER      (packages as tests/bench/many_cores.sh setup leaves them)
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:?a folder for the logs}
export LOSSBENCH_CACHE=${LOSSBENCH_CACHE:-/tmp/lossbench-cache} PYTHONUNBUFFERED=1 CUDA_VISIBLE_DEVICES=
apart() { local log=$1; shift; unshare -m --propagation private sh -c 'mount -t tmpfs tmpfs /run; exec "$@"' sh "$@" > "$out/$log.log" 2>&1; echo "exit $?" >> "$out/$log.log"; }
for kind in harness relay nursery "net set"; do apart "kills-${kind/ /-}" python3 tests/bench/soak.py --kills "${KILLS:-50}" --only "$kind" & done
for part in 1 2 3 4; do apart "files-$part" python3 tests/bench/fuzz.py files --count 25000 --seed "$part" & done
apart datagrams python3 tests/bench/fuzz.py datagrams --count 10000000 --seed 1 &
apart datagrams-c python3 tests/bench/fuzz.py datagrams_c --count 10000000 --seed 1 &
apart netlink python3 tests/bench/fuzz.py netlink --count 3000000 --seed 1 &
apart stranger python3 tests/bench/stranger.py --datagrams 10000000 &
wait
tail -n 2 "$out"/*.log
