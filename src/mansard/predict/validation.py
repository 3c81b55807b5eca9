"""How far off a prediction is: each run predicted from the others, and compared with what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mansard.core import Unknown
from mansard.predict.calibration import SHARES, Share

#: Fewer runs of a kind than this give no expectation.
FEWEST = 3
#: A run this much faster than its bound is no run: the bound or the measurement is wrong.
ABOVE = 1.03
SLOWEST = 0.1
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run that was bounded and measured.

    Args:
        name: For people.
        group: Runs that share a source, a model or a machine: a prediction never learns from its own group.
        kind: See `calibration.kind_of`.
        bound_s: Least time of the run [s].
        measured_s: What it took [s].
        about: Conditions, for people.
    """

    name: str
    group: str
    kind: str
    bound_s: float
    measured_s: float
    about: str = ""

    @property
    def share(self) -> float:
        """Least time over measured time."""
        return self.bound_s / self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A case with what was predicted for it.

    Args:
        case: The run.
        expected_s: Prediction from the runs of other groups [s].
        high_s: Upper end of the band: the slowest tenth of them [s].
    """

    case: Case
    expected_s: float | Unknown
    high_s: float | Unknown

    @property
    def error_ratio(self) -> float | Unknown:
        """Expected over measured, less 1: above 0 the run was faster than expected."""
        if isinstance(self.expected_s, Unknown):
            return self.expected_s
        return self.expected_s / self.case.measured_s - 1.0

    @property
    def in_band(self) -> bool | Unknown:
        """Whether the measurement lies between the bound and the upper end."""
        if isinstance(self.high_s, Unknown):
            return self.high_s
        return self.case.bound_s <= self.case.measured_s * ABOVE and self.case.measured_s <= self.high_s * (
            1.0 + ROUNDING
        )

    def to_json(self) -> dict[str, Any]:
        """Return the keys of a case."""
        c = self.case
        return {
            "name": c.name, "group": c.group, "kind": c.kind, "about": c.about, "bound_s": c.bound_s, "measured_s": c.measured_s,
            "share_of_bound_ratio": c.share, "expected_s": self.expected_s, "high_s": self.high_s,
            "error_ratio": self.error_ratio, "in_band": self.in_band,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KindError:
    """How far off predictions of one kind of run are.

    Args:
        kind: The kind.
        count, groups: Runs, and groups of them.
        predicted: Runs for which others allowed a prediction.
        share: What the runs reached, and so what later ones may expect.
        error_median_ratio, error_p90_ratio: Median and nine tenths of the size of the error.
        bias_ratio: Median of the signed error.
        in_band_ratio: Part of the runs between the bound and the upper end.
        published_error_ratio: Median size of the error with the shares of public runs; `Unknown` where there are none.
    """

    kind: str
    count: int
    groups: int
    predicted: int
    share: Share | Unknown
    error_median_ratio: float | Unknown
    error_p90_ratio: float | Unknown
    bias_ratio: float | Unknown
    in_band_ratio: float | Unknown
    published_error_ratio: float | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """All cases and the errors of each kind.

    Args:
        outcomes: Every case with its prediction.
        kinds: Errors by kind.
        implausible: Names of cases that were faster than their bound by more than 3 %; no share is learnt from them.
    """

    outcomes: tuple[Outcome, ...]
    kinds: tuple[KindError, ...]
    implausible: tuple[str, ...]

    @property
    def shares(self) -> dict[str, Share]:
        """What the runs reached, by kind; see `calibration.prediction_of`."""
        return {k.kind: k.share for k in self.kinds if isinstance(k.share, Share)}


def share_of(cases: Sequence[Case], basis: str) -> Share | Unknown:
    """Return median and slowest tenth of the shares of runs; `Unknown` for fewer than three.

    >>> runs = [Case(name="", group="a", kind="train", bound_s=b, measured_s=10.0) for b in (2.0, 4.0, 5.0)]
    >>> share_of(runs, "runs").median
    0.4
    """
    if len(cases) < FEWEST:
        return Unknown(f"{len(cases)} comparable runs, {FEWEST} are needed", ("more runs",))
    values = np.array([c.share for c in cases])
    return Share(
        median=float(np.median(values)), low=float(np.quantile(values, SLOWEST)), count=len(cases), basis=basis
    )


def validate(cases: Sequence[Case], *, basis: str = "runs") -> Validation:
    """Predict each run from the runs of its kind in other groups, and say how far off the predictions are.

    Args:
        cases: The runs; those of one kind with a single group are left out one at a time instead.
        basis: Which runs these are, for people.

    Assumes: groups are independent; runs of one source or one model resemble each other more than a new run will.
    """
    implausible = tuple(c.name for c in cases if c.share > ABOVE)
    sound = [c for c in cases if c.share <= ABOVE]
    outcomes = tuple(_predicted(case, sound) for case in cases)
    kinds = sorted({c.kind for c in cases})
    return Validation(
        outcomes=outcomes,
        kinds=tuple(_kind_error(kind, [o for o in outcomes if o.case.kind == kind], basis) for kind in kinds),
        implausible=implausible,
    )


def _predicted(case: Case, sound: Sequence[Case]) -> Outcome:
    same = [c for c in sound if c.kind == case.kind and c is not case]
    others = [c for c in same if c.group != case.group] if any(c.group != case.group for c in same) else same
    share = share_of(others, "")
    if isinstance(share, Unknown):
        return Outcome(case=case, expected_s=share, high_s=share)
    return Outcome(case=case, expected_s=case.bound_s / share.median, high_s=case.bound_s / share.low)


def _kind_error(kind: str, outcomes: Sequence[Outcome], basis: str) -> KindError:
    sound = [o for o in outcomes if o.case.share <= ABOVE]
    errors = np.array([e for o in sound if not isinstance(e := o.error_ratio, Unknown)])
    within = [b for o in sound if not isinstance(b := o.in_band, Unknown)]
    none = Unknown(f"too few runs of kind {kind}", ("more runs, of more than one group",))
    public = SHARES.get(kind)
    return KindError(
        kind=kind,
        count=len(outcomes),
        groups=len({o.case.group for o in outcomes}),
        predicted=len(errors),
        share=share_of([o.case for o in sound], basis),
        error_median_ratio=float(np.median(np.abs(errors))) if len(errors) else none,
        error_p90_ratio=float(np.quantile(np.abs(errors), 0.9)) if len(errors) else none,
        bias_ratio=float(np.median(errors)) if len(errors) else none,
        in_band_ratio=sum(within) / len(within) if within else none,
        published_error_ratio=Unknown("no public runs of this kind are on record")
        if public is None or not sound
        else float(np.median([abs(o.case.share / public.median - 1.0) for o in sound])),
    )


def validation_keys(found: Validation, refused: Sequence[Mapping[str, str]] = ()) -> dict[str, Any]:
    """Return the keys of a `validation` document, its header apart.

    Args:
        found: The validation.
        refused: Runs that could not be predicted, each with `name` and `reason`.
    """
    return {
        "prediction_is": "least time over the median share of the bound that runs of the same kind in other groups reached",
        "kinds": [
            {
                "kind": k.kind, "count": k.count, "groups": k.groups, "predicted": k.predicted,
                "error_median_ratio": k.error_median_ratio, "error_p90_ratio": k.error_p90_ratio, "bias_ratio": k.bias_ratio,
                "in_band_ratio": k.in_band_ratio, "published_error_ratio": k.published_error_ratio,
            }
            for k in found.kinds
        ],
        "shares": {
            kind: {"median": s.median, "low": s.low, "count": s.count, "basis": s.basis} for kind, s in found.shares.items()
        },
        "implausible": list(found.implausible),
        "cases": [o.to_json() for o in found.outcomes],
        "refused": [dict(r) for r in refused],
    }  # fmt: skip
