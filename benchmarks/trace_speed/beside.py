"""Run `mansard trace` and other programs on the same file, interleaved, one process each: seconds and peak memory.

    python benchmarks/trace_speed/beside.py FILE --ours "summary" --peer "NAME=COMMAND with {file}" [--rounds 3]

Each program gets a copy of the file of its own, since some write into it; the copy is not timed. Peak memory is that of the
largest process of the command, as the kernel counts it. A peer that fails is reported with its last line, not left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def once(command: list[str], limit_s: float) -> dict[str, Any]:
    """Run one command and return seconds, CPU seconds, peak memory and how it ended."""
    with tempfile.TemporaryFile() as said:
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if time.perf_counter() - begin > limit_s:
                child.kill()
                _, status, usage = os.wait4(child.pid, 0)
                break
            time.sleep(0.005)
        seconds = time.perf_counter() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").strip().splitlines()
    return {
        "s": round(seconds, 2), "cpu_s": round(usage.ru_utime + usage.ru_stime, 2), "peak_bytes": usage.ru_maxrss * 1024,
        "exit": child.returncode, "said": lines[-1:] if child.returncode else [],
    }  # fmt: skip


def main() -> None:
    """Interleave the programs and print their best round and the ratio to ours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--ours", default="summary", help="question of mansard trace, with its options")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a program is ended")
    given = parser.parse_args()
    question, *options = shlex.split(given.ours)
    commands = {f"mansard trace {given.ours}": [sys.executable, "-m", "mansard", "trace", question, "{file}", *options]}
    for peer in given.peer:
        name, _, text = peer.partition("=")
        commands[name] = shlex.split(text)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.rounds):
            for name, command in commands.items():
                copy = Path(folder) / given.file.name
                shutil.copyfile(given.file, copy)
                runs[name].append(once([part.replace("{file}", str(copy)) for part in command], given.limit))
                for left in Path(folder).iterdir():  # caches beside the file too
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
    best = {name: min(found, key=lambda r: r["s"]) for name, found in runs.items()}
    ours = next(iter(best.values()))
    for name, found in best.items():
        found |= {"times_ours": round(found["s"] / ours["s"], 1), "memory_times_ours": round(found["peak_bytes"] / ours["peak_bytes"], 1),
                  "all_s": [r["s"] for r in runs[name]]}  # fmt: skip
    print(json.dumps({"file": given.file.name, "bytes": given.file.stat().st_size, "programs": best}, indent=1))


if __name__ == "__main__":
    main()
