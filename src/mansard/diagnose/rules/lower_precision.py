"""Matrix work in a type that has a faster ceiling in another type.

Needs: compute-bound matrix work and ceilings of both types that the program's own framework reaches, 1.2 times apart or more.
Promises: the time of this work less the same work at the ratio of the two ceilings. Whether the model allows it is for its owner.
Source: docs/design.md, the peak key is (dtype, accumulate, engine).
"""

from __future__ import annotations

from mansard.core import Area, Bound, Ceiling
from mansard.core.units import format_flop_per_s, format_s
from mansard.diagnose.case import Case, Change, Proposal

#: A type may be replaced by these without changing what the program means to compute, precision apart.
_FASTER = {"f64": ("f32",), "f32": ("bf16", "f16")}
_HOW = {
    "torch": "Run the matrix products in {} (torch.autocast), if the model allows it.",
    "jax": "Give the matrix products {} operands with preferred_element_type=float32, if the model allows it.",
}
_OF_ANY = "Run the matrix products in {}, if the model allows it."
#: A ceiling must be this much higher to be worth a change of type.
WORTH = 1.2


def _reached(case: Case, dtype: str, scope: str) -> Ceiling | None:
    """Return the best matrix rate that the program's own framework reaches; another framework's is no promise to it."""
    hits = case.ceilings.find(scope=scope, area=Area.COMPUTE, dtype=dtype, engine="matrix")
    return next((c for c in hits if c.conditions.get("backend", case.trace.framework) == case.trace.framework), None)


def _who(case: Case) -> str:
    return "the device reaches" if case.trace.framework == "profile" else f"{case.trace.framework} reaches"


def lower_precision(case: Case) -> Proposal | None:
    """Advise on a narrower matrix type where this framework's ceiling in it is at least 1.2 times as high."""
    best: Proposal | None = None
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
                best = Proposal(
                    rule="lower_precision",
                    change=Change.WORK,
                    rows=tuple(r.index for r in rows),
                    gain_s=gain,
                    text=_HOW.get(case.trace.framework, _OF_ANY).format(narrow),
                    evidence=f"{format_s(time_s)} a step are {wide} matrix work; {_who(case)} "
                    f"{format_flop_per_s(now.value)} in {wide} and {format_flop_per_s(then.value)} in {narrow} "
                    f"({then.kind.value})",
                )
    return best


RULE = lower_precision
