"""A grid of requests: every combination of the values given, one row each; a point that fails says why."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.errors import MansardError, UsageError
from mansard.predict.bound import Machine, PhaseBound
from mansard.predict.document import total_bytes
from mansard.predict.estimate import Estimate, Request, estimate
from mansard.workload.parallel import Plan
from mansard.workload.records import Model

_PLAN = ("tp", "pp", "dp", "ep", "cp", "zero")
_NUMBERS = ("batch", "context", "seq", "cached", "chunk", "prompts", "drafted", "micro_batch", "accumulation")
_WORDS = ("dtype", "weights", "activations", "kv", "phase")
#: What a sweep can go over.
KEYS = (*_NUMBERS, *_PLAN, *_WORDS, "on")


def parse_sweep(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each key of `key=a,b,c`; numbers may be ranges, as `mansard measure` takes them.

    Raises:
        UsageError: an unknown key, a key or value twice, no values, a range without an end, or a value that is no number
            where one is needed.

    >>> parse_sweep(["batch=1,2", "kv=bf16,fp8"])
    {'batch': [1, 2], 'kv': ['bf16', 'fp8']}
    >>> parse_sweep(["batch=1..100x3"])
    {'batch': [1, 3, 9, 27, 81, 100]}
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in KEYS:
            raise UsageError(f"cannot sweep {text!r}", hint=f"key=a,b,c with one of {', '.join(KEYS)}")
        if key in grid:
            raise UsageError(f"{key} is swept twice")
        parts = [v.strip() for v in values.split(",")]
        if not all(parts):
            raise UsageError(f"an empty value in {text!r}", hint="key=a,b,c")
        grid[key] = parts if key in (*_WORDS, "on") else [n for v in parts for n in _numbers(key, v)]
        if len(set(grid[key])) != len(grid[key]):
            raise UsageError(f"{text} has a value twice")
    return grid


def _numbers(key: str, text: str) -> list[int]:
    """Return the numbers of `8`, `1..64x2` or `1..64+16`; the end of a range is there once."""
    if ".." not in text:
        return [_whole(key, text)]
    from mansard.measure.config.sweeps import SweepError, range_values
    from mansard.measure.config.typed import typed_option

    try:
        values, _added = range_values(**typed_option(text))
    except SweepError as error:
        raise UsageError(f"{key}={text}: {error}", hint="a range is 1..64x2 or 1..64+16") from None
    return [_whole(key, str(v)) for v in values]


def _whole(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{key}={text}: expected a whole number") from None


def with_values(request: Request, values: Mapping[str, Any]) -> Request:
    """Return the request with some of its fields replaced.

    Raises:
        UsageError: a plan that cannot be.
    """
    from dataclasses import replace

    plan_fields = {k: v for k, v in values.items() if k in _PLAN}
    others = {k: v for k, v in values.items() if k not in _PLAN and k != "on"}
    plan: Plan = replace(request.plan, **plan_fields)
    return replace(request, plan=plan, **others)


def sweep(
    model: Model, request: Request, grid: Mapping[str, Sequence[Any]], machines: Mapping[str, Machine | None]
) -> list[dict[str, Any]]:
    """Return one row per combination, in the order of the keys.

    Args:
        model: The model.
        request: What all points share.
        grid: Values by key, see `parse_sweep`.
        machines: Machines by name; the name of a point is its `on`, or the only one.
    """
    rows = []
    default = next(iter(machines.values()), None)
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        try:
            machine = machines[point["on"]] if "on" in point else default
            result = estimate(model, with_values(request, point), machine)
        except MansardError as error:
            rows.append({**point, **error.to_dict()})
            continue
        rows.append({**point, **row_of(result)})
    return rows


def row_of(result: Estimate) -> dict[str, Any]:
    """Return the figures of one point."""
    bound = result.bound
    known = isinstance(bound, PhaseBound)
    return {
        "flop": float(result.phase.model_flop),
        "bytes": total_bytes(result),
        "time_bound_s": bound.time_s if isinstance(bound, PhaseBound) else bound,
        "tokens_per_s": result.tokens_per_s,
        "bound": bound.bound.value if isinstance(bound, PhaseBound) else "undetermined",
        "memory_bytes": result.memory.total_bytes,
        "fits": getattr(result.fit, "fits", result.fit) if known else result.fit,
    }
