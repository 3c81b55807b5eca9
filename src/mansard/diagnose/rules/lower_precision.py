"""Matrix work in a type that has a faster ceiling in another type."""

from __future__ import annotations

from mansard.core import Area, Bound, Ceiling
from mansard.core.units import format_flop_per_s, format_s
from mansard.diagnose.records import Advice
from mansard.diagnose.rules import Case

#: A type may be replaced by these without changing what the program means to compute, precision apart.
_FASTER = {"f64": ("f32",), "f32": ("bf16", "f16")}
_HOW = {
    "torch": "Run the matrix products in {} (torch.autocast), if the model allows it.",
    "jax": "Give the matrix products {} operands with preferred_element_type=float32, if the model allows it.",
}
#: A ceiling must be this much higher to be worth a change of type.
WORTH = 1.2


def _reached(case: Case, dtype: str, scope: str) -> Ceiling | None:
    """Return the best matrix rate that the program's own framework reaches; another framework's is no promise to it."""
    hits = case.ceilings.find(scope=scope, area=Area.COMPUTE, dtype=dtype, engine="matrix")
    return next((c for c in hits if c.conditions.get("backend", case.trace.framework) == case.trace.framework), None)


def lower_precision(case: Case) -> Advice | None:
    """Advise on a narrower matrix type where this framework's ceiling in it is at least 1.2 times as high."""
    best: Advice | None = None
    for wide, narrower in _FASTER.items():
        rows = [
            j
            for j in case.of_bound(Bound.COMPUTE)
            if j.judgement.limiting is not None
            and j.judgement.limiting.ceiling.resource.engine == "matrix"
            and j.judgement.limiting.ceiling.resource.dtype == wide
        ]
        if not rows:
            continue
        now = _reached(case, wide, rows[0].operator.scope)
        for narrow in narrower:
            then = _reached(case, narrow, rows[0].operator.scope)
            if now is None or then is None or then.value < WORTH * now.value:
                continue
            time_s = case.per_step_s(rows)
            gain = time_s * (1.0 - now.value / then.value)
            if best is None or gain > best.gain_s:
                best = Advice(
                    rule="lower_precision",
                    gain_s=gain,
                    text=_HOW[case.trace.framework].format(narrow),
                    evidence=f"{format_s(time_s)} a step are {wide} matrix work; {case.trace.framework} reaches "
                    f"{format_flop_per_s(now.value)} in {wide} and {format_flop_per_s(then.value)} in {narrow} "
                    f"({then.kind.value})",
                )
    return best


RULE = lower_precision
