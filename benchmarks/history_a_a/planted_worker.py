"""A worker of `measure` whose benchmarks do a planted share of more work of the same kind: `planted_worker.py 0.05`.

Where a sample holds many operations, more of them are done and the time is still divided by how many were asked for. Where it holds few (a copy
through memory), the arrays are that much longer.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

from mansard.measure.points import worker

#: With fewer operations in a sample than this, a share of a percent is no whole number of them.
LEAST_REPEATS = 40
LONG = ("num_elements",)


def planted(share: float) -> None:
    """Make every benchmark of this process do that share of more work."""
    known = worker.benchmark_named

    class More:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def prepare(self, params: Any, impl: str, where: Any) -> Any:
            longer = {k: round(v * (1.0 + share)) if k in LONG else v for k, v in params.items()}
            ready = self._inner.prepare(longer, impl, where)
            if longer != params:
                return ready
            left, run = 0.0, ready.run

            def more(count: int) -> None:
                nonlocal left
                if count < LEAST_REPEATS:
                    run(count)
                    return
                left += share * count
                run(count + math.floor(left))
                left -= math.floor(left)

            return dataclasses.replace(ready, run=more)

    worker.benchmark_named = lambda name: More(known(name))  # type: ignore[assignment,return-value]


if __name__ == "__main__":
    planted(float(sys.argv[1]))
    sys.exit(worker.main())
