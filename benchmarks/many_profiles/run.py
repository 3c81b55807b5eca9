"""Time and memory of `mansard trace ranks` over many profiles of one job: linear in files, memory flat.

    python benchmarks/many_profiles/run.py [--files 1000] [--megabytes 2] [--jobs 2] [--ray]

Profiles are made in a scratch folder: the same kernels for every rank, with a rank that arrives later at each collective.
Memory is that of the whole process tree, sampled while it runs. With --ray the same folder is read by Ray as well, and
both documents must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

BASE = 1_700_000_000_000_000_000


def events(megabytes: float, late_us: int, small: int) -> list[dict[str, Any]]:
    """Return products and an all-reduce, again and again until the file is about so large.

    Args:
        megabytes: Size of the file [MB].
        late_us: How much longer the products before each all-reduce take [us].
        small: Kernels of 1 us before each product.
    """
    out = []
    for i in range(int(megabytes * 1e6 / (470 + 130 * small))):
        begin = 200 * i
        products = [(begin + k, 1) for k in range(small)] + [(begin + small, 100 + late_us - small)]
        for start, length in products:
            out.append({"ph": "X", "cat": "kernel", "name": "ampere_sgemm_128x64_nn", "pid": 0, "tid": 7, "ts": start,
                        "dur": length, "args": {"device": 0, "stream": 7}})  # fmt: skip
        out.append({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "pid": 0, "tid": 9,
                    "ts": begin + 100 + late_us, "dur": 60 - late_us,
                    "args": {"device": 0, "stream": 9, "Collective name": "allreduce", "In msg nelems": 1000,
                             "Out msg nelems": 1000, "Group size": 8, "dtype": "Float", "Process Group Name": "0"}})  # fmt: skip
    return out


def make(folder: Path, files: int, megabytes: float, small: int = 60) -> None:
    texts = [json.dumps(events(megabytes, late, small)) for late in (0, 20)]
    for rank in range(files):
        head = json.dumps(
            {"baseTimeNanoseconds": BASE, "host_name": "node", "distributedInfo": {"rank": rank, "world_size": files}}
        )
        body = texts[1 if rank == 3 else 0]
        (folder / f"rank{rank:05}.json").write_text(f'{head[:-1]}, "traceEvents": {body}}}', encoding="utf-8")


def tree_bytes(root: int) -> float:
    """Return the resident memory of a process and all below it [B]; pages that several share count in each."""
    total, queue = 0.0, [root]
    while queue:
        pid = queue.pop()
        try:
            queue += [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError):
            continue
    return total


def timed(words: list[str]) -> tuple[float, float, str]:
    """Return wall time [s], the most memory [B] and standard output."""
    begin = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    most = 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.1):
            most = max(most, tree_bytes(child.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    text, _ = child.communicate()
    done.set()
    watcher.join()
    if child.returncode not in (0, 3):
        raise RuntimeError(f"{words} ended with {child.returncode}")
    return time.perf_counter() - begin, most, text


def without_times(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return {k: v for k, v in found.items() if k not in ("created", "environment")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--ray", action="store_true", help="read them by Ray as well")
    args = parser.parse_args()
    sizes = sorted({max(2, args.files // 4), max(2, args.files // 2), args.files})
    print(
        f"| profiles of {args.megabytes:g} MB | engine | time | per profile | memory of all processes |\n|---|---|---|---|---|"
    )
    for count in sizes:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            make(folder, count, args.megabytes)
            base = [sys.executable, "-m", "mansard", "trace", "ranks", scratch, "--json", "--jobs", str(args.jobs)]
            seen = []
            for engine in ("local", "ray") if args.ray else ("local",):
                seconds, most, text = timed([*base, "--engine", engine])
                seen.append(without_times(text))
                print(
                    f"| {count} | {engine} | {seconds:.1f} s | {seconds / count * 1e3:.1f} ms | {most / 1e6:.0f} MB |",
                    flush=True,
                )
            if seen[0]["straggler_rank"] != 3 and count > 3:
                raise RuntimeError(f"the straggler is rank 3, found {seen[0]['straggler_rank']}")
            if len(seen) > 1 and seen[0] != seen[1]:
                raise RuntimeError("Ray gave another result")
    return 0


if __name__ == "__main__":
    sys.exit(main())
