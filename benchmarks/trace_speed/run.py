"""Time the reader and the summary on a synthetic Nsight Systems export, and a million nested ranges.

    python benchmarks/trace_speed/run.py FILE.sqlite

Each task runs in a process of its own, so that its peak memory is its own. Prints seconds and peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

TASKS = ("summary", "kernels", "ranges")
#: Seconds and bytes that the project asks of two cores for 5 million kernels, calls and 0.5 million ranges.
TARGETS = {"summary": (4.0, 1e9), "ranges": (5.0, None)}


def task(name: str, path: str) -> None:
    """Do one task in this process and print its figures as JSON."""
    stages: dict[str, float] = {}
    begin = last = time.perf_counter()

    def stage(word: str) -> None:
        nonlocal last
        now = time.perf_counter()
        stages[word], last = round(now - last, 3), now

    from mansard.trace.launches import join_launches
    from mansard.trace.open import open_trace
    from mansard.trace.timeline import Kind

    stage("import")
    if name == "ranges":
        from mansard.trace.regions import attribute, innermost, range_table

        timeline = open_trace(path)
        stage("read")
        begin = last
        ranges = attribute(timeline)
        stage("attribute")
        rows = range_table(ranges)
        stage("table")
        innermost(ranges)
        stage("innermost")
        size = {"ranges": len(timeline.of(Kind.ANNOTATION)), "names": len(rows)}
    else:
        from mansard.trace.kernels import graphs, kernel_table
        from mansard.trace.occupancy import device_times

        timeline = open_trace(path)
        stage("read")
        launches = join_launches(timeline)
        stage("join")
        if name == "summary":
            for device in device_times(timeline, launches=launches):
                device.buckets(), device.overlap_matrix()
            stage("devices")
            graphs(timeline, launches)
        kernel_table(timeline, launches=launches, operators=name == "kernels")
        stage("kernels")
        size = {"kernels": len(timeline.of(Kind.KERNEL)), "calls": len(timeline.of(Kind.RUNTIME))}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    mapped = Path(path).stat().st_size
    print(json.dumps({"task": name, "s": round(time.perf_counter() - begin, 3), "peak_bytes": peak, "file_bytes": mapped,
                      "stages": stages, **size}))  # fmt: skip


def main() -> None:
    """Run every task and compare with the targets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--task", choices=TASKS)
    parser.add_argument("--repeat", type=int, default=1)
    given = parser.parse_args()
    if given.task:
        task(given.task, given.file)
        return
    for name in TASKS:
        for _ in range(given.repeat):
            command = [sys.executable, __file__, given.file, "--task", name]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            goal, memory = TARGETS.get(name, (None, None))
            met = "" if goal is None else f" target {goal} s: {'met' if found['s'] <= goal else 'missed'}"
            met += (
                ""
                if memory is None
                else f", {memory / 1e9:.0f} GB: {'met' if found['peak_bytes'] <= memory else 'missed'}"
            )
            print(
                f"{name}: {found['s']} s, peak {found['peak_bytes'] / 1e9:.2f} GB (the mapped file of {found['file_bytes'] / 1e9:.2f} GB included){met}"
            )
            print(f"  {found['stages']}, {found.get('kernels', found.get('ranges'))} rows")


if __name__ == "__main__":
    main()
