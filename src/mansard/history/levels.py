"""Levels of a series whose neighbours may resemble each other: where they begin, how sure each step is, and whether a line explains it instead.

The noise is taken as autoregressive of first order, x_t = phi x_(t-1) + e_t with 0 <= phi < 1, and phi is estimated together with the levels
(generalised least squares, maximum likelihood over a grid). Independent draws are phi = 0. A step is told from wandering noise by its
jump: the noise of correlated neighbours moves little from one result to the next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.errors import InputError, install

FloatArray = npt.NDArray[np.float64]

#: A level shorter than this is no level yet.
LEAST_LEVEL = 3
#: Change points are proposed at this times log(n) of the noise variance; what is proposed too much is taken back by the test.
#: Source: Yao, Statistics and Probability Letters 6, 1988: log(n) never misses one in the long run.
_PENALTY = 3.0
#: Estimates of phi. Above, noise is a walk, in which no level means anything.
_PHI = np.arange(0.0, 0.951, 0.05)
#: 95 % set of the place of a change: 2 (log L_max - log L) up to -2 log(1 - sqrt(0.95)). Source: Eo and Morley, Quantitative Economics 6,
#: 2015; the distribution is that of Bai, Review of Economics and Statistics 79, 1997.
_PLACE_95 = -2.0 * math.log(1.0 - math.sqrt(0.95))
_MAD = 1.4826
#: Smooth curves up to this degree are tried against levels.
_MOST_DEGREE = 6


def step_limit(n: int) -> float:
    """Return what twice the log-likelihood ratio of a step must exceed, wherever it was looked for in `n` results.

    Two chances in a hundred where nothing changed, at the worst phi (0.9): 98 % quantiles of 4000 simulated series of each length are 8.9,
    10.2, 12.3, 13.7, 14.6, 15.4 and 16.0 for 8, 10, 14, 20, 30, 60 and 120 results (benchmarks/history_trend).

    >>> [round(step_limit(n), 1) for n in (8, 20, 60)]
    [8.7, 13.6, 15.7]
    """
    return 16.8 - 65.0 / n


def drift_limit(n: int) -> float:
    """Return the same of a straight line; its worst phi is the largest: 9.6, 10.3, 11.7, 11.7, 11.7 and 11.2 for 8 to 60 results.

    >>> [round(drift_limit(n), 1) for n in (8, 20, 60)]
    [9.5, 11.7, 11.7]
    """
    return min(11.7, 14.5 - 40.0 / n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Columns fitted to a series by generalised least squares.

    Args:
        log_likelihood: Its largest value over phi.
        phi: The correlation of neighbours that it is largest at.
        values: Coefficients of the columns.
        errors: Their standard errors.
        gains: Twice what each column adds to the log-likelihood, phi fitted anew without it; for few results made smaller by (n - p - 1) / n.
        deviation: Deviation of the noise around the fit.
        degrees: Results less columns and phi.
    """

    log_likelihood: float
    phi: float
    values: FloatArray
    errors: FloatArray
    gains: FloatArray
    deviation: float
    degrees: int


def _whitened(x: FloatArray, phi: FloatArray) -> FloatArray:
    """Return columns [n, p] for each phi [k, n, p], such that their noise is independent."""
    first = np.sqrt(1.0 - phi * phi)[:, None, None] * x[None, :1]
    return np.concatenate([first, x[None, 1:] - phi[:, None, None] * x[None, :-1]], axis=1)


def fitted(y: FloatArray, columns: FloatArray, floor: float) -> Fit:
    """Fit columns to a series.

    Args:
        y: The series [n].
        columns: [n, p]; the first one is usually constant.
        floor: Deviation that any noise has at least.
    """
    n, p = columns.shape
    a, z = _whitened(columns, _PHI), _whitened(y[:, None], _PHI)[..., 0]
    inverse = np.linalg.pinv(np.einsum("knp,knq->kpq", a, a), hermitian=True)
    values = np.einsum("kpq,knq,kn->kp", inverse, a, z)
    rss = ((z - np.einsum("knp,kp->kn", a, values)) ** 2).sum(axis=1) + n * floor**2
    jacobian = 0.5 * np.log1p(-_PHI * _PHI)
    likelihood = -0.5 * n * np.log(rss / n) + jacobian
    unit = np.einsum("kpp->kp", inverse)
    without = -0.5 * n * np.log((rss[:, None] + values**2 / np.maximum(unit, 1e-300)) / n) + jacobian[:, None]
    best = int(np.argmax(likelihood))
    degrees = max(1, n - p - 1)
    variance = float(rss[best]) / degrees
    return Fit(
        log_likelihood=float(likelihood[best]), phi=float(_PHI[best]), values=values[best], errors=np.sqrt(variance * unit[best]),
        gains=2.0 * (likelihood[best] - without.max(axis=0)) * degrees / n, deviation=math.sqrt(variance / (1.0 - float(_PHI[best]) ** 2)),
        degrees=degrees,
    )  # fmt: skip


def steps_of(n: int, cuts: Sequence[int]) -> FloatArray:
    """Return the columns of levels: a constant, and for each cut what begins there.

    >>> steps_of(4, [2]).tolist()
    [[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    """
    at = np.arange(n)[:, None]
    return np.concatenate([np.ones((n, 1)), (at >= np.asarray(cuts, dtype=np.int64)[None, :]).astype(np.float64)], 1)


def line_of(n: int) -> FloatArray:
    """Return the columns of a straight line: a constant, and what grows by one from result to result around its centre."""
    return np.stack([np.ones(n), np.arange(n) - (n - 1) / 2.0], axis=1)


def curve_of(n: int, degree: int) -> FloatArray:
    """Return the columns of a smooth curve: Legendre polynomials up to a degree over the series.

    >>> curve_of(3, 2)[:, 2].tolist()
    [1.0, -0.5, 1.0]
    """
    return np.asarray(np.polynomial.legendre.legvander(np.linspace(-1.0, 1.0, n), degree), dtype=np.float64)


def smoothest(y: FloatArray, floor: float) -> tuple[Fit, int] | None:
    """Return the curve that explains a series best for its number of parameters, and its degree; None for too few results.

    Args:
        y: The series [n].
        floor: Deviation that any noise has at least.

    From 2, which is a parabola, to 6 or a quarter of the results; by the Bayesian information criterion.
    """
    n = y.size
    found = [(fitted(y, curve_of(n, d), floor), d) for d in range(2, min(_MOST_DEGREE, n // 4) + 1)]
    return min(found, key=lambda f: information(f[0], f[1] + 1, n), default=None)


def information(fit: Fit, parameters: int, n: int) -> float:
    """Return the Bayesian information criterion of a fit: -2 log L + parameters x log(n); less is better."""
    return -2.0 * fit.log_likelihood + parameters * math.log(n)


def noise_of(y: FloatArray) -> float:
    """Return the deviation of a series from its differences, which a few steps or outliers do not move."""
    if y.size < 3:
        return 0.0
    return float(_MAD * np.median(np.abs(np.diff(y))) / math.sqrt(2.0))


def cuts_of(y: FloatArray, least: float) -> list[int]:
    """Return where the level changes: the first index of each level after the first, by at least `least`.

    Args:
        y: The series, of logarithms.
        least: The smallest step that matters.

    Raises:
        InputError: `ruptures` is not installed.
    """
    floor, limit = least / 10.0, step_limit(y.size)
    cuts = _kept(y, _proposed(y, least), least, floor, limit)
    while True:  # what the proposals missed, because independent noise was assumed for them
        more = _one_more(y, cuts, floor)
        if more is None:
            return cuts
        tried = _kept(y, sorted([*cuts, more]), least, floor, limit)
        if len(tried) <= len(cuts):
            return cuts
        cuts = tried


def _proposed(y: FloatArray, least: float) -> list[int]:
    """Return where levels of independent noise would change."""
    try:
        import ruptures
    except ImportError:
        raise InputError("change points need ruptures", hint=install("history")) from None
    sigma = max(noise_of(y), least / 4.0)  # below that a change would not matter anyway
    search = ruptures.Pelt(model="l2", min_size=LEAST_LEVEL, jump=1).fit(y / sigma)
    found = [int(c) for c in search.predict(pen=_PENALTY * math.log(y.size))[:-1]]
    most = max(1, (y.size - 4) // LEAST_LEVEL)
    if len(found) > most:  # as many levels as there are results explain everything
        found = [
            int(c) for c in ruptures.Dynp(model="l2", min_size=LEAST_LEVEL, jump=1).fit(y).predict(n_bkps=most)[:-1]
        ]
    return found


def _kept(y: FloatArray, cuts: Sequence[int], least: float, floor: float, limit: float) -> list[int]:
    """Return the cuts that matter and are sure, each at its likeliest place; the least sure goes first."""
    left = list(cuts)
    placed = False
    while left:
        fit = fitted(y, steps_of(y.size, left), floor)
        gains = np.where(np.abs(fit.values[1:]) > least, fit.gains[1:], 0.0)
        weakest = int(np.argmin(gains))
        if gains[weakest] <= limit:
            left.pop(weakest)
            placed = False
        elif placed:
            break
        else:
            left, placed = [place_of(y, left, i, fit.phi, floor)[0] for i in range(len(left))], True
    return left


def _gain_by_place(
    y: FloatArray, others: Sequence[int], places: npt.NDArray[np.int64], phi: float, floor: float
) -> FloatArray:
    """Return the log-likelihood with one more cut at each place, at a given phi."""
    n = y.size
    at = np.array([phi])
    base = _whitened(steps_of(n, others), at)[0]
    q, _ = np.linalg.qr(base)
    z = _whitened(y[:, None], at)[0, :, 0]
    z = z - q @ (q.T @ z)
    u = _whitened((np.arange(n)[:, None] >= places[None, :]).astype(np.float64), at)[0]
    u = u - q @ (q.T @ u)
    size = np.maximum((u**2).sum(axis=0), 1e-300)
    rss = float((z**2).sum()) - (u.T @ z) ** 2 / size + n * floor**2
    found: FloatArray = -0.5 * n * np.log(np.maximum(rss, 1e-300) / n) + 0.5 * math.log1p(-phi * phi)
    return found


def place_of(y: FloatArray, cuts: Sequence[int], i: int, phi: float, floor: float) -> tuple[int, int, int]:
    """Return the likeliest place of a cut between its neighbours, and the first and last of its 95 % set."""
    low = (cuts[i - 1] if i else 0) + LEAST_LEVEL
    high = (cuts[i + 1] if i + 1 < len(cuts) else y.size) - LEAST_LEVEL
    places = np.arange(low, high + 1)
    if places.size == 0:
        return cuts[i], cuts[i], cuts[i]
    gain = _gain_by_place(y, [*cuts[:i], *cuts[i + 1 :]], places, phi, floor)
    shrink = max(1, y.size - len(cuts) - 2) / y.size
    inside = places[2.0 * (gain.max() - gain) * shrink <= _PLACE_95]
    return int(places[int(np.argmax(gain))]), int(inside.min()), int(inside.max())


def _one_more(y: FloatArray, cuts: Sequence[int], floor: float) -> int | None:
    """Return the likeliest place of one more cut; None where no level can be divided."""
    edges = [0, *cuts, y.size]
    places = np.array([k for a, b in itertools.pairwise(edges) for k in range(a + LEAST_LEVEL, b - LEAST_LEVEL + 1)])
    if places.size == 0 or len(cuts) + 4 >= y.size:
        return None
    gains = np.stack([_gain_by_place(y, cuts, places, float(phi), floor) for phi in _PHI[::2]])
    return int(places[int(np.argmax(gains.max(axis=0)))])
