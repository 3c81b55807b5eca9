"""Time and peak memory of reading a large Kineto trace, each reader in a process of its own, with the totals checked.

    python benchmarks/trace_kineto_speed/generate.py big.json --megabytes 1000 > big.totals.json
    python benchmarks/trace_kineto_speed/run.py big.json --totals big.totals.json [--with json orjson hta tracelens]

Prints one JSON document: seconds (the best of the repetitions), peak memory, and the load of the machine before each run. A
reader that is not installed is reported as absent, not skipped in silence.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

OURS = """
from pathlib import Path
from mansard.core.intervals import union_ns
from mansard.trace.readers.chrome import read
from mansard.trace.timeline import Kind
k = read(Path(path)).of(Kind.KERNEL)
result = {"kernels": len(k), "kernel_sum_ns": int(k.duration_ns.sum()), "kernel_union_ns": union_ns(k.start_ns, k.end_ns)}
"""
KERNELS_ONLY = OURS.replace("read(Path(path))", "read(Path(path), kinds=frozenset({Kind.KERNEL}))")
PARSED = """
import {module} as parser
events = parser.loads(open(path, "rb").read())["traceEvents"]
k = [e for e in events if e.get("cat") == "kernel"]
result = {{"kernels": len(k), "kernel_sum_ns": round(sum(e["dur"] for e in k) * 1000)}}
"""
HTA = """
import os, shutil, tempfile
from hta.trace_analysis import TraceAnalysis
folder = tempfile.mkdtemp()
os.symlink(os.path.abspath(path), os.path.join(folder, "rank-0.json"))
TraceAnalysis(trace_dir=folder).get_temporal_breakdown(visualize=False)
shutil.rmtree(folder)
result = {}
"""
TRACELENS = """
from TraceLens import TreePerfAnalyzer
TreePerfAnalyzer.from_file(profile_filepath=path)
result = {}
"""
READERS = {
    "mansard": ("mansard", OURS), "mansard, kernels only": ("mansard", KERNELS_ONLY), "json": ("json", PARSED.format(module="json")),
    "orjson": ("orjson", PARSED.format(module="orjson")), "hta": ("hta", HTA), "tracelens": ("TraceLens", TRACELENS),
}  # fmt: skip
CHILD = """
import json, resource, sys, time
path = sys.argv[1]
start = time.perf_counter()
{code}
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({{"seconds": seconds, "peak_bytes": peak, "result": result}}))
"""


def run(path: Path, code: str, repeat: int) -> dict[str, object]:
    runs = []
    for _ in range(repeat):
        load = os.getloadavg()[0]
        done = subprocess.run(
            [sys.executable, "-c", CHILD.format(code=code), str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1:]}
        runs.append({**json.loads(done.stdout.splitlines()[-1]), "load_before": load})
    best = min(runs, key=lambda r: r["seconds"])
    return {**best, "all_seconds": [round(r["seconds"], 2) for r in runs]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--totals", type=Path, help="what generate.py printed; the answers must equal it")
    parser.add_argument(
        "--with", dest="rivals", nargs="*", default=[], choices=[r for r in READERS if "mansard" not in r]
    )
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    totals = json.loads(args.totals.read_text()) if args.totals else {}
    out: dict[str, object] = {"bytes": args.trace.stat().st_size, "cores": os.cpu_count(), "readers": {}}
    for name in ["mansard", "mansard, kernels only", *args.rivals]:
        module, code = READERS[name]
        if importlib.util.find_spec(module) is None:
            out["readers"][name] = "not installed"  # type: ignore[index]
            continue
        found = run(args.trace, code, args.repeat if name.startswith("mansard") else 1)
        result = found.get("result", {})
        found["right"] = all(totals[k] == v for k, v in result.items() if k in totals) if totals and result else None  # type: ignore[union-attr]
        out["readers"][name] = found  # type: ignore[index]
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
