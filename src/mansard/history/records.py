"""What a result says, whatever kind of document it came from: measurements, each with its samples and its conditions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mansard.core.unknown import Unknown

#: A metric -> its unit and whether more of it is better. Only these are compared; what a document says beside them is kept raw.
METRICS: Mapping[str, tuple[str, bool]] = {
    "step_time_s": ("s", False),
    "time_s": ("s", False),
    "latency_s": ("s", False),
    "ttft_s": ("s", False),
    "tpot_s": ("s", False),
    "wall_time_s": ("s", False),
    "gpu_span_s": ("s", False),
    "bytes_per_s": ("B/s", True),
    "busbw_bytes_per_s": ("B/s", True),
    "algbw_bytes_per_s": ("B/s", True),
    "flop_per_s": ("FLOP/s", True),
    "tokens_per_s": ("token/s", True),
    "operations_per_s": ("1/s", True),
    "mfu_ratio": ("1", True),
    "share_of_ceiling": ("1", True),
    "memory_bytes": ("B", False),
}
#: Shares of a ceiling may exceed 1 by the uncertainty of the ceiling; beyond this they cannot be true.
SHARES = ("mfu_ratio", "share_of_ceiling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a measurement depends on, as far as its document tells.

    Args:
        parts: Component -> key -> value in words; a component that is not known is left out.
    """

    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def merged(self, other: Mapping[str, Mapping[str, str]]) -> Fingerprint:
        """Return this fingerprint with what `other` says on top."""
        names = [*self.parts, *(n for n in other if n not in self.parts)]
        return Fingerprint(parts={n: {**self.parts.get(n, {}), **other.get(n, {})} for n in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One figure of one benchmark in one run.

    Args:
        benchmark: What was measured; the same name means the same work.
        metric: A key of `METRICS`; its unit is SI.
        groups: Samples of each process, in the unit of the metric; empty where the document has none.
        stated: The figure of the document where it has no samples: value and 95 % interval.
        count: Samples behind `stated`.
        exact: A count or a computed figure, which does not vary between runs.
        primary: The figure that comparisons are about; others are functions of the same samples.
        clock_hz: Clock while it ran [Hz].
        fingerprint: What it depends on.
        flaw: Why it must not be believed: the document called it implausible.
        absent: Why there is no figure.
        single: All of it is known to come from one process, so it shows nothing of how processes differ.
        taken: When it was made, ISO 8601; empty takes the time of its record.
    """

    benchmark: str
    metric: str
    groups: tuple[tuple[float, ...], ...] = ()
    stated: tuple[float, float, float] | None = None
    count: int = 0
    exact: bool = False
    primary: bool = True
    clock_hz: float | None = None
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    flaw: str = ""
    absent: str = ""
    single: bool = False
    taken: str = ""

    @property
    def name(self) -> str:
        """Benchmark and metric: what rules and results call it."""
        return f"{self.benchmark}/{self.metric}"

    @property
    def unit(self) -> str:
        """SI unit of the figure."""
        return METRICS[self.metric][0]

    @property
    def more_is_better(self) -> bool:
        """Whether a larger figure is the better one."""
        return METRICS[self.metric][1]

    @property
    def samples(self) -> tuple[float, ...]:
        """All samples, of whatever process."""
        return tuple(x for group in self.groups for x in group)

    @property
    def sample_count(self) -> int:
        """How many samples are behind the figure."""
        return sum(len(g) for g in self.groups) or (self.count if self.stated is not None else 0)

    @property
    def value(self) -> float | Unknown:
        """The figure: the median of the samples, or what the document states."""
        if self.absent:
            return Unknown(self.absent)
        samples = self.samples
        if samples:
            return float(np.median(samples))
        return self.stated[0] if self.stated is not None else Unknown("no samples", ("measure again",))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "benchmark": self.benchmark, "metric": self.metric, "groups": [list(g) for g in self.groups],
            "stated": None if self.stated is None else list(self.stated), "count": self.count, "exact": self.exact,
            "primary": self.primary, "clock_hz": self.clock_hz,
            "fingerprint": {k: dict(v) for k, v in self.fingerprint.parts.items()}, "flaw": self.flaw, "absent": self.absent,
            "single": self.single,
        }  # fmt: skip


def measurement_from_json(d: Mapping[str, Any]) -> Measurement:
    """Return what `Measurement.to_json` wrote."""
    stated = d["stated"]
    return Measurement(
        benchmark=d["benchmark"], metric=d["metric"], groups=tuple(tuple(float(x) for x in g) for g in d["groups"]),
        stated=None if stated is None else (float(stated[0]), float(stated[1]), float(stated[2])), count=int(d["count"]),
        exact=bool(d["exact"]), primary=bool(d["primary"]), clock_hz=d["clock_hz"],
        fingerprint=Fingerprint(parts=d["fingerprint"]), flaw=d["flaw"], absent=d["absent"],
        single=bool(d.get("single", False)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One result: a document, read.

    Args:
        source: File name, for reading.
        schema: Kind of document.
        created: When it was made, ISO 8601; empty where the document does not tell.
        sha256: Digest of the raw document.
        measurements: What it says.
        empty: Why it holds nothing to compare, where it holds nothing.
    """

    source: str
    schema: str
    created: str
    sha256: str
    measurements: tuple[Measurement, ...]
    empty: str = ""

    def headline(self, metric: str) -> float | None:
        """Return the figure of a metric where exactly one benchmark of the record has it, else None."""
        found = [m.value for m in self.measurements if m.metric == metric and not m.flaw]
        numbers = [v for v in found if not isinstance(v, Unknown)]
        return numbers[0] if len(numbers) == 1 else None


def finite(value: Any) -> float | None:
    """Return `value` as a float where it is a finite number; an unknown figure is an object in JSON and gives None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number of more digits than a float has room for
        return None


def implausible(value: Any) -> str:
    """Return why a share that a document says to be implausible is so; empty for any other value."""
    if isinstance(value, Mapping) and "implausible" in value:
        suspects = ", ".join(str(s) for s in value.get("suspects", ())[:2])
        return f"its share is {float(value['implausible']):.3g} of the ceiling" + (f" ({suspects})" if suspects else "")
    return ""
