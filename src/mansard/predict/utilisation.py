"""MFU, HFU and their cross-checks from a measured time; every one is `share_of` with another numerator."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.core.bound import SUSPECTS, share_of
from mansard.core.errors import UsageError
from mansard.core.unknown import Implausible, Unknown

#: What a utilisation above 1 usually means, the most likely first.
UTILISATION_SUSPECTS = (
    "a rate was given where a total was meant (total vs rate)",
    "the FLOP and the time belong to different work (wrong region)",
    "a sparse peak or the peak of another element type (wrong peak)",
    "one device counted against the work of several (wrong device count)",
    *SUSPECTS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """How much of the dense peak a measured time used.

    Args:
        mfu_ratio: Model FLOP over wall time x devices x dense peak; `Implausible` above 1.
        hfu_ratio: The same with executed FLOP, recomputation counted.
        achieved_flop_per_s: Model FLOP per second of all devices [FLOP/s]; valid whether or not a peak is known.
        achieved_flop_per_s_per_device: The same over the devices [FLOP/s].
    """

    mfu_ratio: float | Unknown | Implausible
    hfu_ratio: float | Unknown | Implausible
    achieved_flop_per_s: float
    achieved_flop_per_s_per_device: float


def utilisation(
    *,
    model_flop: float,
    wall_s: float,
    peak_flop_per_s: float | Unknown,
    devices: int = 1,
    executed_flop: float | Unknown | None = None,
) -> Utilisation:
    """Return MFU and HFU of work that took `wall_s`.

    Args:
        model_flop: Model FLOP of the work on all devices; recomputation is never in it [FLOP].
        wall_s: Wall time [s].
        peak_flop_per_s: Dense peak of one device, in the element type and accumulator of the work [FLOP/s]. `Unknown`
            stays unknown: the achieved rate is valid without it.
        devices: Devices the work ran on.
        executed_flop: FLOP that were executed, recomputation counted; None where there is none [FLOP].

    Raises:
        UsageError: a time, a count or a peak that is not positive.

    Source: Chowdhery et al., PaLM, arXiv:2204.02311, appendix B (MFU and HFU).

    7e9 matrix parameters, 3000 token/s on a 312 TFLOP/s device, full recomputation: 6 and 8 FLOP per parameter.

    >>> u = utilisation(model_flop=6 * 7e9 * 3000, executed_flop=8 * 7e9 * 3000, wall_s=1.0, peak_flop_per_s=312e12)
    >>> round(u.mfu_ratio, 5), round(u.hfu_ratio, 5)
    (0.40385, 0.53846)
    """
    for name, value in (("wall_s", wall_s), ("devices", devices), ("model_flop", model_flop)):
        if not 0.0 < value < float("inf"):
            raise UsageError(f"{name} is {value}, expected a positive number")
    rate = model_flop / wall_s

    def ratio(flop: float | Unknown) -> float | Unknown | Implausible:
        if isinstance(peak_flop_per_s, Unknown):
            return peak_flop_per_s
        if isinstance(flop, Unknown):
            return flop
        if not 0.0 < peak_flop_per_s < float("inf"):
            raise UsageError(f"the peak is {peak_flop_per_s}, expected a positive rate")
        share = share_of(flop / (devices * peak_flop_per_s), wall_s)
        return Implausible(share.value, UTILISATION_SUSPECTS) if isinstance(share, Implausible) else share

    return Utilisation(
        mfu_ratio=ratio(model_flop),
        hfu_ratio=ratio(model_flop if executed_flop is None else executed_flop),
        achieved_flop_per_s=rate,
        achieved_flop_per_s_per_device=rate / devices,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SixND:
    """6 N D beside the count it stands in for.

    Args:
        flop: 6 x parameters x tokens [FLOP].
        error_ratio: (6 N D - counted) / counted; below 0 where attention was left out.
        why: What the shorthand leaves out or counts that it should not.
    """

    flop: float
    error_ratio: float
    why: str


def six_nd(*, params: float, tokens: float, counted_flop: float) -> SixND:
    """Return the 6 N D shorthand with its error against the exact count.

    Args:
        params: Parameters N that the shorthand is given.
        tokens: Tokens D.
        counted_flop: The exact training FLOP of the same tokens [FLOP].

    Source: Kaplan et al., arXiv:2001.08361, section 2.1, which leaves attention out on purpose.

    8e9 parameters, 8192 tokens: 393.2e12.

    >>> s = six_nd(params=8e9, tokens=8192, counted_flop=421.6e12)
    >>> s.flop, round(s.error_ratio, 3)
    (393216000000000.0, -0.067)
    """
    flop = 6.0 * params * tokens
    error = flop / counted_flop - 1.0
    why = (
        "6 N D leaves out the attention core, which grows with the sequence"
        if error < 0
        else "6 N D counts parameters that do no matrix work for a token (embedding table, experts that were not chosen)"
    )
    return SixND(flop=flop, error_ratio=error, why=why)
