"""The line of a fit t = alpha + bytes / beta, drawn over the sizes that were measured, and the fit in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mansard.core.collectives import AlphaBeta, fit_alpha_beta
from mansard.core.units import format_bytes_per_s, format_ratio, format_s
from mansard.core.unknown import Unknown, is_known
from mansard.measure.points.conclusions import WORST_OF_LAW
from mansard.report.sections.blocks import Series

_LEAST_SIZES = 3


def fitted(samples: Mapping[float, Sequence[float]], *, name: str, per_size: float) -> tuple[Series | None, str]:
    """Return the line of a fit over message sizes, None where there is none, and the fit in words.

    Args:
        samples: Times [s] by bus bytes [B].
        name: What was measured.
        per_size: Bus bytes per byte of message size: the line is drawn over S = bus bytes / per_size [B].
    """
    if len(samples) < _LEAST_SIZES:
        return None, f"no fit: it needs {_LEAST_SIZES} sizes, there are {len(samples)}."
    fit = fit_alpha_beta(samples, resamples=200)
    if isinstance(fit, Unknown):
        return None, f"no fit: {fit.reason}."
    if isinstance(fit.beta_bytes_per_s, Unknown):
        return None, f"no fit: {fit.beta_bytes_per_s.reason}."
    return _line(fit, name, per_size), in_words(fit)


def _line(fit: AlphaBeta, name: str, per_size: float) -> Series | None:
    xs = np.geomspace(fit.bus_bytes[0], fit.bus_bytes[1], 60).tolist()
    pairs = [(x / per_size, y) for x in xs if is_known(y := fit.seconds(x)) and y > 0]
    if len(pairs) < 2:
        return None
    return Series(
        name=f"{name}: fit", x=[p[0] for p in pairs], y=[p[1] for p in pairs], mode="lines", dash="dash", quiet=True,
        text=[in_words(fit)] * len(pairs),
    )  # fmt: skip


def in_words(fit: AlphaBeta) -> str:
    """Return a fit as one sentence with its intervals."""
    low, high = fit.alpha_ci95_s
    beta = fit.beta_bytes_per_s
    rate = format_bytes_per_s(beta) if is_known(beta) else "an unknown rate"
    interval = fit.beta_ci95_bytes_per_s
    ends = (
        ""
        if isinstance(interval, Unknown)
        else f" ({format_bytes_per_s(interval[0])} to {format_bytes_per_s(interval[1])})"
    )
    doubt = "" if fit.error_ratio <= WORST_OF_LAW else ", so the law does not hold here"
    if fit.alpha_s < 0:
        doubt += "; a negative fixed time says nothing of latency"
    return (
        f"t = {format_s(fit.alpha_s)} ({format_s(low)} to {format_s(high)}) + bus bytes / {rate}{ends}; the farthest of "
        f"{fit.sizes} sizes is {format_ratio(fit.error_ratio)} off{doubt}."
    )
