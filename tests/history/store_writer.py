"""A process that writes results into a store until it is done or killed; each one that is acknowledged is noted in a file."""

from __future__ import annotations

import json
import os
import sys

from mansard.history.store import open_store


def main(url: str, who: str, count: int, notes: str) -> None:
    handle = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with open_store(url) as store:
        for i in range(count):
            body = {"schema": "samples/1", "environment": {"config_hash": f"{who}-{i}"},
                    "benchmarks": [{"name": "step", "metric": "step_time_s", "runs": [[1.0 + i, 2.0, 3.0, 4.0, 5.0]] * 40}]}  # fmt: skip
            stored = store.add(json.dumps(body).encode(), source=f"{who}-{i}.json")
            os.write(handle, f"{stored.sha256}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
