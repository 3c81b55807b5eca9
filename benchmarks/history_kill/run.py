"""Kill writers of a store at random points, and look whether anything that was acknowledged is lost.

    python benchmarks/history_kill/run.py --kills 200 --writers 4

Each writer adds results as fast as it can and notes a digest in a file once the store has acknowledged it. After a random number of
acknowledgements of the group, and a random wait of microseconds to milliseconds, every writer gets SIGKILL. After each round the store
is opened, and every noted result is read back: its row, its figures, and its raw document, checked against its hash.
Exit code 0 where nothing is lost or half-written, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mansard.core.unknown import Unknown
from mansard.history.store import open_store


def write(url: str, who: str, notes: str) -> None:
    """Add results until killed."""
    handle = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with open_store(url) as store:
        for i in range(10**9):
            samples = [[1.0 + i, 2.0, 3.0, 4.0, 5.0]] * 40
            body = {"schema": "samples/1", "environment": {"config_hash": f"{who}-{i}"},
                    "benchmarks": [{"name": "step", "metric": "step_time_s", "runs": samples}]}  # fmt: skip
            os.write(handle, f"{store.add(json.dumps(body).encode(), source=who).sha256}\n".encode())


def lost(url: str, notes: Path) -> tuple[int, int]:
    """Return how many results were acknowledged, and how many of them are not there or not whole."""
    acknowledged = set(notes.read_text().split())
    with open_store(url) as store:
        rows = {r.sha256: r for r in store.records()}
        for r in rows.values():
            json.loads(store.raw(r.sha256))
            if isinstance(r.figures["step_time_s"], Unknown):
                return len(acknowledged), len(acknowledged)
    return len(acknowledged), len(acknowledged - rows.keys())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument(
        "--store", help="postgresql:// URL of an empty database; SQLite in a temporary folder by default"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(*options.write)
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        url, notes = options.store or str(Path(folder) / "history.db"), Path(folder) / "notes"
        notes.touch()
        open_store(url).close()
        killed, began = 0, time.monotonic()
        while killed < options.kills:
            names = [f"{killed + w}" for w in range(min(options.writers, options.kills - killed))]
            group = [subprocess.Popen([sys.executable, __file__, "--write", url, n, str(notes)]) for n in names]
            goal, deadline = notes.stat().st_size + 65 * chance.randrange(1, 12), time.monotonic() + 300
            while notes.stat().st_size < goal and time.monotonic() < deadline:
                time.sleep(0.0005)
            for writer in group:
                time.sleep(chance.random() * 0.01)
                os.kill(writer.pid, signal.SIGKILL)
            for writer in group:
                writer.wait()
            killed += len(group)
            acknowledged, missing = lost(url, notes)
            print(f"{killed:>4} killed, {acknowledged:>6} acknowledged, {missing} lost", flush=True)
            if missing:
                return 1
        print(
            f"{killed} writers killed in {time.monotonic() - began:.0f} s: {acknowledged} results acknowledged, none lost"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
