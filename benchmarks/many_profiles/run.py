"""Time and memory of `mansard trace ranks` and `mansard diagnose` over many profiles of one job: linear in files, memory flat.

    python benchmarks/many_profiles/run.py [--files 100,300,1000] [--megabytes 2] [--jobs 2] [--verb ranks] [--ray]

Profiles are made in a scratch folder as PyTorch's profiler writes them: steps, operators, launches, flows and kernels, each joined to the
next, for every rank the same, with a rank that arrives later at each all-reduce. Memory is that of the whole process tree, and
of the process that was started, sampled while it runs. With --ray the same folder is read by Ray as well, and both documents must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BASE = 1_700_000_000_000_000_000
PAIR_BYTES, KERNEL_BYTES, HOST_BYTES = (
    470,
    130,
    770,
)  # of a product with an all-reduce, a small kernel, and one's host side
EACH_STEP = 5  # all-reduces


def host_side(name: str, kernel: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Return the operator, the launch and the flow of a kernel, as PyTorch's profiler writes them."""
    begin = kernel["ts"] - 20
    kernel["args"] |= {
        "correlation": number, "External id": number, "queued": 0, "context": 1, "registers per thread": 32,
        "shared memory": 0, "blocks per SM": 8.0, "warps per SM": 64.0, "grid": [1024, 1, 1], "block": [256, 1, 1],
        "est. achieved occupancy %": 100,
    }  # fmt: skip
    yield {"ph": "X", "cat": "cpu_op", "name": name, "pid": 4242, "tid": 4242, "ts": begin, "dur": 8,
           "args": {"External id": number, "Record function id": 0, "Ev Idx": number}}  # fmt: skip
    yield {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4242, "tid": 4242, "ts": begin + 2, "dur": 4,
           "args": {"External id": number, "cbid": 211, "correlation": number}}  # fmt: skip
    flow = {"id": number, "cat": "ac2g", "name": "ac2g"}
    yield {"ph": "s", **flow, "pid": 4242, "tid": 4242, "ts": begin + 2}
    yield {"ph": "f", **flow, "pid": 0, "tid": kernel["tid"], "ts": kernel["ts"], "bp": "e"}


def events(megabytes: float, late_us: int, small: int, *, host: bool, ranks: int) -> list[dict[str, Any]]:
    """Return products and an all-reduce, again and again until the file is about so large.

    Args:
        megabytes: Size of the file [MB].
        late_us: How much longer the products before each all-reduce take [us].
        small: Kernels of 1 us before each product.
        host: Whether operators, launches, flows and steps are recorded as well.
        ranks: Ranks of the job.
    """
    out: list[dict[str, Any]] = []
    size = PAIR_BYTES + KERNEL_BYTES * small + (HOST_BYTES * (small + 2) if host else 0)
    for i in range(int(megabytes * 1e6 / size)):
        begin = 200 * i
        if host and i % EACH_STEP == 0:
            step = {"cat": "user_annotation", "name": f"ProfilerStep#{i // EACH_STEP}", "ts": begin - 30}
            out.append({"ph": "X", **step, "pid": 4242, "tid": 4242, "dur": 200 * EACH_STEP, "args": {}})
        products = [(begin + k, 1) for k in range(small)] + [(begin + small, 100 + late_us - small)]
        kernels = [
            {"ph": "X", "cat": "kernel", "name": "ampere_sgemm_128x64_nn", "pid": 0, "tid": 7, "ts": start,
             "dur": length, "args": {"device": 0, "stream": 7}}
            for start, length in products
        ]  # fmt: skip
        kernels.append({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "pid": 0, "tid": 9,
                    "ts": begin + 100 + late_us, "dur": 60 - late_us,
                    "args": {"device": 0, "stream": 9, "Collective name": "allreduce", "In msg nelems": 1000,
                             "Out msg nelems": 1000, "Group size": ranks, "dtype": "Float", "Process Group Name": "0"}})  # fmt: skip
        for kernel in kernels:
            if host:
                name = "aten::mm" if kernel["tid"] == 7 else "c10d::allreduce_"
                out += host_side(name, kernel, len(out) + 1)
            out.append(kernel)
    return out


def make(folder: Path, files: int, megabytes: float, small: int = 60, *, host: bool = True) -> None:
    """Write the profiles of a job; rank 3 arrives 20 us late at each all-reduce."""
    texts = [json.dumps(events(megabytes, late, small, host=host, ranks=files)) for late in (0, 20)]
    properties = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_899_345_920, "numSms": 108}]
    for rank in range(files):
        head = json.dumps({
            "baseTimeNanoseconds": BASE, "host_name": "node", "deviceProperties": properties,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": files},
        })  # fmt: skip
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


def own_bytes(pid: int) -> float:
    """Return the resident memory of one process [B]; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0.0


def timed(words: list[str]) -> tuple[float, float, float, str]:
    """Return wall time [s], the most memory of all processes and of the first [B], and standard output."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        child = subprocess.Popen(words, stdout=out)
        most = own = 0.0
        while child.poll() is None:
            most, own = max(most, tree_bytes(child.pid)), max(own, own_bytes(child.pid))
            time.sleep(0.05)
        seconds = time.perf_counter() - begin
        out.seek(0)
        text = out.read()
    if child.returncode not in (0, 3):
        raise RuntimeError(f"{words} ended with {child.returncode}")
    return seconds, most, own, text


def without_times(text: str) -> dict[str, Any]:
    """Return a document without what is different in every run."""
    found: dict[str, Any] = json.loads(text)
    return {k: v for k, v in found.items() if k not in ("created", "environment")}


def verb_of(verb: str) -> list[str]:
    """Return the command of a verb."""
    words = (
        ["trace", "ranks"] if verb == "ranks" else ["diagnose", "--network-rate", "200 Gbit/s", "--node-devices", "8"]
    )
    return [sys.executable, "-m", "mansard", *words]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", default="100,300,1000", help="how many, one run each")
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--verb", choices=("ranks", "diagnose"), default="ranks")
    parser.add_argument("--ray", action="store_true", help="read them by Ray as well")
    args = parser.parse_args()
    print(
        "| profiles | of | verb | engine | time | per profile | all processes | the first |\n|---|---|---|---|---|---|---|---|"
    )
    for count in sorted({max(2, int(n)) for n in args.files.split(",")}):
        with tempfile.TemporaryDirectory() as scratch:
            make(Path(scratch), count, args.megabytes)
            base = [*verb_of(args.verb), scratch, "--json", "--jobs", str(args.jobs)]
            seen = []
            for engine in ("local", "ray") if args.ray else ("local",):
                seconds, most, own, text = timed([*base, "--engine", engine])
                seen.append(without_times(text))
                print(
                    f"| {count} | {args.megabytes:g} MB | {args.verb} | {engine} | {seconds:.1f} s | {seconds / count * 1e3:.1f} ms "
                    f"| {most / 1e6:.0f} MB | {own / 1e6:.0f} MB |",
                    flush=True,
                )
            if str(seen[0]["straggler_rank"]) != "3" and count > 3:
                raise RuntimeError(f"the straggler is rank 3, found {seen[0]['straggler_rank']}")
            if len(seen) > 1 and seen[0] != seen[1]:
                raise RuntimeError("Ray gave another result")
    return 0


if __name__ == "__main__":
    sys.exit(main())
