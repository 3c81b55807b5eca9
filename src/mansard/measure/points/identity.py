"""What tells one point, and one plan, from every other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from mansard.core.document import to_jsonable
from mansard.measure.points.effort import Effort
from mansard.measure.points.result import Point


def key_of(point: Point) -> str:
    """Return what tells a point from every other: name, benchmark, implementation, parameters and flags, as a hash."""
    body = {
        "name": point.name, "benchmark": point.benchmark, "impl": point.impl, "params": dict(point.params),
        "flags": dict(point.flags),
    }  # fmt: skip
    text = json.dumps(to_jsonable(body), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plan_hash(points: Sequence[Point], effort: Effort) -> str:
    """Return what tells a plan from another one: its points and the effort."""
    text = json.dumps([*sorted({key_of(p) for p in points}), effort.name])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
