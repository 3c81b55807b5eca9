"""Does a machine sit in one state or in two? Memory bandwidth of one and the same loop can differ by half for minutes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.measure.points.interval import interval_of
from mansard.measure.points.result import Regime

LEAST_SAMPLES = 10
LEAST_GAP = 0.15  # the medians of two regimes differ by at least this
LEAST_SHARE = 0.1  # of all samples, in the smaller one
LEAST_EVIDENCE = 10.0  # difference of the Bayesian information criterion that counts as very strong
STEPS = 200

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoRegimes:
    """Samples that fall into two groups.

    Args:
        fast_s, slow_s: Medians of the two groups [s].
        fast_share_ratio: Share of the samples in the fast one.
        switches: How often one window is mostly in another group than the window before.
        windows: How many windows there were.
        evidence: By how much two groups are the better model, as a difference of BIC.
    """

    fast_s: float
    slow_s: float
    fast_share_ratio: float
    switches: int
    windows: int
    evidence: float

    def to_json(self) -> dict[str, Any]:
        """Return the two regimes as a result keeps them."""
        return {
            "fast_s": self.fast_s, "slow_s": self.slow_s, "slow_over_fast_ratio": self.slow_s / self.fast_s,
            "fast_share_ratio": self.fast_share_ratio, "switches": self.switches, "windows": self.windows,
            "bic_difference": self.evidence,
        }  # fmt: skip


def two_regimes(windows: Sequence[Sequence[float]], *, least_gap: float = LEAST_GAP) -> TwoRegimes | None:
    """Return the two regimes of times taken in separated windows, or None where one describes them as well.

    Args:
        windows: Times of one operation, by window [s].
        least_gap: By how much the medians of two regimes differ at least, as a share of the faster one.

    Assumes: the logarithms of the times of one regime are about normal; outliers alone are no regime, since the smaller
    group must hold a tenth of all samples and lie 15 % away.
    Source: Dempster, Laird and Rubin, J. R. Stat. Soc. B 39(1), 1977 (expectation maximisation); Schwarz, Ann. Stat.
    6(2), 1978 (BIC); Kass and Raftery, JASA 90, 1995 (a difference above 10 is very strong).

    >>> two_regimes([[1.0, 1.01, 0.99, 1.0, 1.02], [2.0, 2.02, 1.98, 2.0, 2.01]]).switches
    1
    >>> two_regimes([[1.0, 1.01, 0.99, 1.0, 1.02], [1.0, 1.03, 0.98, 1.0, 1.01]]) is None
    True
    """
    parts = [np.log(np.asarray(w, dtype=np.float64)) for w in windows if len(w)]
    if not parts or sum(p.size for p in parts) < LEAST_SAMPLES:
        return None
    x = np.concatenate(parts)
    fitted = _mixture(x)
    if fitted is None:
        return None
    slow, evidence = fitted
    share = float(slow.mean())
    if not LEAST_SHARE <= share <= 1.0 - LEAST_SHARE or evidence < LEAST_EVIDENCE:
        return None
    fast_s, slow_s = math.exp(float(np.median(x[~slow]))), math.exp(float(np.median(x[slow])))
    if slow_s / fast_s < 1.0 + least_gap:
        return None
    mostly, at = [], 0
    for part in parts:
        mostly.append(bool(slow[at : at + part.size].mean() > 0.5))
        at += part.size
    return TwoRegimes(
        fast_s=fast_s, slow_s=slow_s, fast_share_ratio=1.0 - share, windows=len(parts), evidence=evidence,
        switches=sum(1 for one, two in itertools.pairwise(mostly) if one != two),
    )  # fmt: skip


def intervals_by_regime(groups: Sequence[Sequence[Sequence[float]]]) -> tuple[Regime, ...]:
    """Return the fast and the slow regime of a point, each with a median and an interval of its own; empty for one regime.

    Args:
        groups: Samples of each process, as windows [s].

    A sample belongs to the regime whose median is nearer on a logarithmic scale. What is between processes inside a regime
    is in its interval; that the machine may change its regime is not, which is why there are two.

    >>> fast, slow = [1.0, 1.01, 0.99, 1.0, 1.02], [2.0, 2.02, 1.98, 2.0, 2.01]
    >>> [(r.median_s, r.share_ratio, r.processes) for r in intervals_by_regime([[fast, slow], [fast], [fast, slow]])]
    [(1.0, 0.6, 3), (2.0, 0.4, 2)]
    """
    found = two_regimes([w for group in groups for w in group])
    if found is None:
        return ()
    border = math.sqrt(found.fast_s * found.slow_s)
    whole = sum(len(w) for group in groups for w in group)
    regimes = []
    for slow in (False, True):
        mine = [[s for w in group for s in w if bool(s > border) == slow] for group in groups]
        mine = [m for m in mine if m]
        i = interval_of(mine)
        regimes.append(
            Regime(
                median_s=i.median, low_s=i.low, high_s=i.high, share_ratio=sum(map(len, mine)) / whole,
                processes=len(mine), interval=i.holds,
            )
        )  # fmt: skip
    return tuple(regimes)


def _mixture(x: FloatArray) -> tuple[npt.NDArray[np.bool_], float] | None:
    """Return which values belong to the larger of two normal groups, and how much better two groups are than one."""
    least = max(1e-6, (1e-3 * float(np.ptp(x))))  # a group of equal values has no likelihood of its own
    order = np.sort(x)
    cut = int(np.argmax(np.diff(order)[x.size // 10 : x.size - x.size // 10 - 1])) + x.size // 10
    middle = (order[cut] + order[cut + 1]) / 2.0
    weight = (x > middle).astype(np.float64)
    for _ in range(STEPS):
        if not 0.0 < weight.mean() < 1.0:
            return None
        logs = _log_densities(x, weight, least)
        after = 1.0 / (1.0 + np.exp(np.clip(logs[0] - logs[1], -700.0, 700.0)))
        if float(np.abs(after - weight).max()) < 1e-6:
            break
        weight = after
    both = float(np.logaddexp(*_log_densities(x, weight, least)).sum())
    spread = max(float(x.std()), least)
    alone = float((-0.5 * ((x - x.mean()) / spread) ** 2 - math.log(spread) - 0.5 * math.log(2.0 * math.pi)).sum())
    # Five parameters against two.
    return weight > 0.5, 2.0 * (both - alone) - 3.0 * math.log(x.size)


def _log_densities(x: FloatArray, weight: FloatArray, least: float) -> tuple[FloatArray, FloatArray]:
    found = []
    for part in (1.0 - weight, weight):
        total = float(part.sum())
        centre = float((part * x).sum() / total)
        spread = max(math.sqrt(float((part * (x - centre) ** 2).sum() / total)), least)
        log: FloatArray = (
            -0.5 * ((x - centre) / spread) ** 2 - math.log(spread) - 0.5 * math.log(2.0 * math.pi)
        ) + math.log(total / x.size)
        found.append(log)
    return found[0], found[1]
