"""Matrix work in a type that has a faster ceiling in another type."""

from __future__ import annotations

from mansard.core import Area, Bound, Unknown
from mansard.core.units import format_flop_per_s, format_s
from mansard.diagnose.records import Advice
from mansard.diagnose.rules import Case

#: A type may be replaced by these without changing what the program means to compute, precision apart.
_FASTER = {"f64": ("f32",), "f32": ("bf16", "f16")}


def lower_precision(case: Case) -> Advice | None:
    """Advise on a narrower matrix type where its ceiling is at least 1.2 times as high."""
    best: Advice | None = None
    for wide, narrower in _FASTER.items():
        rows = [
            j
            for j in case.of_bound(Bound.COMPUTE)
            if j.judgement.limiting is not None
            and j.judgement.limiting.area is Area.COMPUTE
            and j.judgement.limiting.ceiling.resource.engine == "matrix"
            and j.judgement.limiting.ceiling.resource.dtype == wide
        ]
        if not rows:
            continue
        now = case.ceilings.peak(wide, scope=rows[0].operator.scope)
        for narrow in narrower:
            then = case.ceilings.peak(narrow, scope=rows[0].operator.scope)
            if isinstance(now, Unknown) or isinstance(then, Unknown) or then.value < 1.2 * now.value:
                continue
            time_s = case.per_step_s(rows)
            gain = time_s * (1.0 - now.value / then.value)
            if best is None or gain > best.gain_s:
                best = Advice(
                    rule="lower_precision",
                    gain_s=gain,
                    text=f"Run the matrix products in {narrow} (automatic mixed precision), if the model allows it.",
                    evidence=f"{format_s(time_s)} a step are {wide} matrix work; the ceiling is "
                    f"{format_flop_per_s(now.value)} in {wide} and {format_flop_per_s(then.value)} in {narrow} "
                    f"({then.kind.value})",
                )
    return best


RULE = lower_precision
