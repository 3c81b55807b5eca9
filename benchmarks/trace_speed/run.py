"""Time the reader and the summary on a synthetic Nsight Systems export, and a million nested ranges.

    python benchmarks/trace_speed/run.py FILE.sqlite

Each task runs in a process of its own, so that its peak memory is its own. `summary` is the verb itself, `mansard trace summary`, as
users run it, start of the program included; the others time the parts. Prints seconds and peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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
        from mansard.trace.kernels import kernel_table

        timeline = open_trace(path)
        stage("read")
        launches = join_launches(timeline)
        stage("join")
        kernel_table(timeline, launches=launches)
        stage("kernels")
        size = {"kernels": len(timeline.of(Kind.KERNEL)), "calls": len(timeline.of(Kind.RUNTIME))}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    mapped = Path(path).stat().st_size
    print(json.dumps({"task": name, "s": round(time.perf_counter() - begin, 3), "peak_bytes": peak, "file_bytes": mapped,
                      "stages": stages, **size}))  # fmt: skip


def verb(path: str) -> dict[str, Any]:
    """Run `mansard trace summary` in its own process and return its figures."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "mansard", "trace", "summary", path, "--json"], stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdout is not None
    document = json.loads(process.stdout.read())
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"mansard trace summary ended with {process.returncode}")
    return {
        "task": "summary", "s": round(seconds, 3), "peak_bytes": used.ru_maxrss * 1024, "file_bytes": Path(path).stat().st_size,
        "stages": {"processor": round(used.ru_utime + used.ru_stime, 3)}, "kernels": document["kernel_count"],
    }  # fmt: skip


def main() -> None:
    """Run every task and compare with the targets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--task", choices=TASKS[1:])
    parser.add_argument("--repeat", type=int, default=1)
    given = parser.parse_args()
    if given.task:
        task(given.task, given.file)
        return
    for name in TASKS:
        for _ in range(given.repeat):
            command = [sys.executable, __file__, given.file, "--task", name]
            if name == "summary":
                found = verb(given.file)
            else:
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
