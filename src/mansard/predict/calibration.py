"""From a floor to an expectation: the band in which public runs lay, with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mansard.core import Grade, Unknown
from mansard.predict.bound import PhaseBound
from mansard.predict.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which share of its bound a kind of run reached.

    Args:
        median, low: Median and tenth percentile of least time over measured time.
        count: Runs.
        basis: Which runs.
    """

    median: float
    low: float
    count: int
    basis: str


#: Recomputed by a test from the public runs; docs/measured_runs.md says which they are.
SHARES: dict[str, Share] = {
    "train": Share(
        median=0.434, low=0.215, count=274, basis="training runs of llm-foundry, Megatron-Bridge, tpu-recipes"
    ),
    "serving_decode": Share(median=0.276, low=0.124, count=144, basis="serving runs of vLLM, SGLang and TensorRT-LLM"),
    "stream_decode": Share(
        median=0.756, low=0.472, count=29, basis="single streams of llama.cpp and gpt-fast in 16 bits"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A time as a range.

    Args:
        low_s: The bound: no run is faster [s].
        expected_s, high_s: What the median run and the slowest tenth of comparable runs took [s].
        grade: How sure.
        basis: Which runs.
    """

    low_s: float | Unknown
    expected_s: float | Unknown
    high_s: float | Unknown
    grade: Grade
    basis: str

    def to_json(self) -> dict[str, Any]:
        """Return the keys of `prediction`."""
        return {
            "low_s": self.low_s, "expected_s": self.expected_s, "high_s": self.high_s, "grade": self.grade, "basis": self.basis,
        }  # fmt: skip


def prediction_of(result: Estimate) -> Prediction:
    """Return the range of an estimate: the bound, and an expectation where comparable runs are on record.

    Assumes: the run is like those of `SHARES`: tuned training code, or a serving engine. A prefill has none: public times to
    first token hold queueing, which the bound of a prompt does not.
    """
    bound = result.bound
    if not isinstance(bound, PhaseBound):
        return Prediction(low_s=bound, expected_s=bound, high_s=bound, grade=Grade.ASSUMED, basis="no machine")
    share = _share_for(result)
    if share is None or isinstance(bound.time_s, Unknown):
        none = Unknown(
            "no measured runs like this one are on record: public times to first token hold queueing"
            if result.phase.name == "prefill"
            else "no measured runs like this one are on record",
            ("mansard validate",),
        )
        return Prediction(
            low_s=bound.time_s, expected_s=none, high_s=none, grade=Grade.MODELLED, basis="the bound alone"
        )
    return Prediction(
        low_s=bound.time_s,
        expected_s=bound.time_s / share.median,
        high_s=bound.time_s / share.low,
        grade=Grade.ASSUMED,
        basis=f"{share.count} {share.basis}: {share.median:.0%} of the bound (median), {share.low:.0%} (slowest tenth)",
    )


def _share_for(result: Estimate) -> Share | None:
    """The runs that an estimate is comparable to."""
    if result.phase.name == "train":
        return SHARES["train"]
    if result.phase.name == "decode" and float(result.phase.sequences) > 1:
        return SHARES["serving_decode"]
    # Single streams are on record in 16 bits alone: dequantisation costs more than the bytes say.
    narrow = result.memory.whole_weight_bytes < 1.5 * result.params.total
    return SHARES["stream_decode"] if result.phase.name == "decode" and not narrow else None
