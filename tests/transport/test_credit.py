"""How much may be under way to a rank (native/credit.c), with a clock and a link of the test's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "workloads" / "transport" / "native"
# A link with a way of some length there and back, on which a whole window is always under way; what does not fit on the
# way waits in front of the link. Questions are answered after a time of their own.
DRIVER = """
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "{native}/credit.c"

static ns clock_now = SECOND;
ns now_ns(void) {{ return clock_now; }}
ns clock_ns(void) {{ return clock_now; }}
void acknowledge(engine *e, half *h, flow *f, uint32_t state) {{ (void)e; (void)h; (void)f; (void)state; }}

int main(int count, char **words)
{{
    double rate = atof(words[1]) / 8e3, way = atof(words[2]) * MS, answer = atof(words[3]) * MS; /* bytes a ns */
    static engine e;
    static peer peers[2];
    double most = 0, at_end = 0, most_waiting = 0, came = 0;
    (void)count;
    e.adaptive = 1; e.world = 2; e.others = 1; e.segment = 1472; e.brake = 1; e.slack = MS; e.peers = peers;
    e.room_bytes = 64 << 20; e.window = 256 << 10;
    peers[1].in_group = 1;
    for (int step = 0; step < 4000; step++) {{ /* half a millisecond each */
        clock_now += MS / 2;
        double waiting = e.window - rate * way;
        if (waiting < 0) waiting = 0;
        if (fmod(step * MS / 2, way) < MS / 2) came = 0; /* what was let go comes in one go, every time around */
        double flows = waiting > 0 || came < e.window ? rate : 0;
        came += flows * MS / 2;
        if (step % 40 == 0) loop_took(&e, &peers[1], (ns)answer);
        if (step % 4 == 0) marker_delay(&e, &peers[1], (uint64_t)(clock_now - way / 2 - waiting / rate), clock_now);
        if (flows > 0) {{
            e.last_arrival = clock_now;
            arrived_bytes(&e, (uint64_t)(flows * MS / 2), clock_now);
        }}
        if (e.window > most) most = e.window;
        if (waiting > most_waiting) most_waiting = waiting;
        at_end = e.window;
    }}
    printf("%.0f %.0f %.0f\\n", most, at_end, most_waiting);
    return 0;
}}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("credit")
    (folder / "driver.c").write_text(DRIVER.format(native=NATIVE))
    command = [compiler, "-O1", "-I", str(NATIVE), "-o", str(folder / "driver"), str(folder / "driver.c"), "-lm"]
    subprocess.run(command, check=True)
    return folder / "driver"


def simulated(driver: Path, *, mbit: float, way_ms: float, answer_ms: float) -> tuple[float, float, float]:
    """(the largest window, the last one, the most bytes that waited)."""
    done = subprocess.run([driver, str(mbit), str(way_ms), str(answer_ms)], capture_output=True, text=True, check=True)
    most, last, waiting = map(float, done.stdout.split())
    return most, last, waiting


@pytest.mark.parametrize("mbit", [50, 200])
@pytest.mark.parametrize("answer_ms", [40, 100, 300, 1000])
def test_answers_that_come_late_from_a_busy_machine_are_no_long_way(
    driver: Path, mbit: float, answer_ms: float
) -> None:
    """As it was: room for as long as an answer took, and the switch's queue (512 KiB) overflowed."""
    most, _, waiting = simulated(driver, mbit=mbit, way_ms=0.2, answer_ms=answer_ms)
    assert most < 400 << 10 and waiting < 400 << 10


@pytest.mark.parametrize(("mbit", "way_ms"), [(200, 40), (200, 80), (1000, 80), (50, 300)])
def test_a_way_that_is_long_is_filled(driver: Path, mbit: float, way_ms: float) -> None:
    _, last, waiting = simulated(driver, mbit=mbit, way_ms=way_ms, answer_ms=way_ms)
    on_the_way = mbit / 8 * 1e3 * way_ms
    assert last > 0.85 * on_the_way and waiting < 0.5 * on_the_way + (256 << 10)
