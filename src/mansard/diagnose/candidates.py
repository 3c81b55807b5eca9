"""Measured implementations of one operation side by side, from `detailed.json`: what a kernel could be replaced by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_TIMING = ("warmup_tries", "num_runs", "min_duration_s", "max_duration_s", "impl", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One measured implementation of a benchmark at one set of parameters.

    Args:
        benchmark: Its name, such as `gemm`.
        impl: Implementation.
        backend: Backend of it.
        params: What was computed, without how it was timed.
        time_s: Median time of one operation [s].
        device: Name of the device it ran on, as recorded.
    """

    benchmark: str
    impl: str
    backend: str
    params: Mapping[str, Any]
    time_s: float
    device: str


def candidates_of(points: Sequence[Mapping[str, Any]]) -> tuple[Candidate, ...]:
    """Return the points that can be trusted: done, and neither implausible nor without times.

    Args:
        points: Elements of `detailed.json`.
    """
    found = []
    for point in points:
        times = point.get("raw_times_ms") or ()
        if point.get("state") != "done" or point.get("verdict") == "implausible" or not times:
            continue
        meta = point["metadata"]
        params = {k: v for k, v in meta.get("params", {}).items() if k not in _TIMING}
        found.append(
            Candidate(
                benchmark=str(meta.get("benchmark_name", "")), impl=str(meta.get("impl", "")), backend=str(meta.get("backend", "")),
                params=params, time_s=float(np.median(times)) * 1e-3, device=str(meta.get("device_info", {}).get("device_name", "")),
            )
        )  # fmt: skip
    return tuple(found)


def side_by_side(candidates: Sequence[Candidate]) -> tuple[tuple[Candidate, ...], ...]:
    """Return the operations that several implementations were measured for, the fastest implementation first.

    Only what ran with the same parameters on the same device is compared.
    """
    groups: dict[tuple[str, str, str], list[Candidate]] = {}
    for c in candidates:
        key = (c.benchmark, c.device, repr(sorted(c.params.items(), key=lambda kv: kv[0])))
        groups.setdefault(key, []).append(c)
    several = [sorted(g, key=lambda c: c.time_s) for g in groups.values() if len({c.impl for c in g}) > 1]
    return tuple(tuple(g) for g in sorted(several, key=lambda g: -(g[-1].time_s - g[0].time_s)))
