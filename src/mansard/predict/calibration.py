"""From a floor to an expectation: the band in which public runs lay, with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.core import Grade, Unknown
from mansard.core.document import damage_named, read_document
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


VALIDATION = "validation/1"

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


def prediction_of(result: Estimate, shares: Mapping[str, Share] | None = None) -> Prediction:
    """Return the range of an estimate: the bound, and an expectation where comparable runs are on record.

    Args:
        result: The estimate.
        shares: Which share of their bound runs of each kind reached, such as those of `mansard validate`; None takes `SHARES`.

    Assumes: the run is like those of the shares. Those of `SHARES` are tuned training code, or a serving engine; a prefill has
    none there: public times to first token hold queueing, which the bound of a prompt does not.
    """
    bound = result.bound
    if not isinstance(bound, PhaseBound):
        return Prediction(low_s=bound, expected_s=bound, high_s=bound, grade=Grade.ASSUMED, basis="no machine")
    kind = kind_of(result)
    share = (SHARES if shares is None else shares).get(kind) if kind else None
    if bound.open:
        reason = Unknown(f"the bound is not whole: {bound.open[0].reason}", bound.open[0].needs)
        return Prediction(
            low_s=bound.time_s, expected_s=reason, high_s=reason, grade=Grade.MODELLED, basis="the bound alone"
        )
    if share is None or isinstance(bound.time_s, Unknown):
        none = Unknown(
            "no measured runs like this one are on record: public times to first token hold queueing"
            if result.phase.name == "prefill" and shares is None
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


def kind_of(result: Estimate) -> str | None:
    """Return the kind of run that an estimate is comparable to, or None where runs of its phase are not told apart.

    A single stream with weights below 16 bits is a kind of its own: dequantisation costs more than the bytes say.
    """
    name = result.phase.name
    if name in ("train", "prefill"):
        return str(name)
    if name != "decode":
        return None
    if float(result.phase.sequences) > 1:
        return "serving_decode"
    narrow = result.memory.whole_weight_bytes < 1.5 * result.params.total
    return "stream_decode_narrow" if narrow else "stream_decode"


def read_shares(path: Path) -> dict[str, Share]:
    """Return the shares of a `validation` document.

    Raises:
        InputError: it is no such document.
    """
    body = read_document(path, VALIDATION)
    with damage_named(f"{path}: the shares cannot be read", hint="mansard validate -o FILE"):
        return {
            str(kind): Share(
                median=float(s["median"]), low=float(s["low"]), count=int(s["count"]), basis=str(s["basis"])
            )
            for kind, s in body["shares"].items()
        }
