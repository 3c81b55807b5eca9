"""Whether the work of a step is that of all of it: a sum over some of its operators is a lower limit, and is called one."""

from __future__ import annotations

import math

from mansard.core.unknown import is_known
from mansard.diagnose.records import Diagnosis

#: From this share of operator time on, work is that of the whole step and not of a part of it.
WHOLE_RATIO = 0.995
_FLOP = ("flop_per_step", "full_square_flop_per_step", "hardware_flop_per_step")


def whole_work(diagnosis: Diagnosis, *, flop: bool) -> bool:
    """Return whether the FLOP, or else the bytes, of a step are those of all of it.

    Args:
        diagnosis: The run.
        flop: Of the FLOP, which may also be stated.
    """
    if flop and "flop_source" in diagnosis.receipt:
        return True
    longest = max((r.time_s for r in diagnosis.operators), default=0.0) or 1.0
    rows = [(r.time_s / longest, r.flop if flop else r.bytes) for r in diagnosis.operators]
    lost = math.fsum(seconds for seconds, amount in rows if not is_known(amount))
    left = (1.0 - WHOLE_RATIO) * math.fsum(seconds for seconds, _ in rows)
    return diagnosis.attributed_ratio >= WHOLE_RATIO and lost <= left


def lower_limits(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the names of the figures of a diagnosis that are sums over a part of the step: what it did is at least that.

    Args:
        diagnosis: The run.
    """
    flop = () if whole_work(diagnosis, flop=True) else _FLOP
    size = () if whole_work(diagnosis, flop=False) else ("bytes_per_step",)
    return tuple(n for n in (*flop, *size) if is_known(getattr(diagnosis, n)))
