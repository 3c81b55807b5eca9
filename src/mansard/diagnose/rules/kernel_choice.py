"""Another implementation of the same operation was measured to be faster on this machine.

Needs: points of `mansard measure --impl a,b` for the same operation: equal element type and FLOP (or bytes, where there is no matrix
work), and equal sizes for matrix products; of the program's own framework, or of the product that a recorded profile is of.
Promises: observed time of the calls less the upper end of the candidate's interval for as many, and not more than the headroom.
Source: docs/measuring.md, how points are measured; the comparison is of times, not of shares.
"""

from __future__ import annotations

from mansard.core import Grade, Unknown
from mansard.core.units import format_s
from mansard.diagnose.candidates import REFERENCES
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.facts import MeasuredPoint, operand_shapes, product_of
from mansard.diagnose.judge_operators import JudgedOperator

#: Words in the name of a benchmark and the category of operation that it measures.
_MEASURES = (
    ("attention", "attention"), ("gemm", "gemm"), ("matmul", "gemm"), ("rmsnorm", "norm"), ("layernorm", "norm"), ("softmax", "softmax"),
    ("conv", "convolution"), ("add", "elementwise"), ("silu", "elementwise"), ("gelu", "elementwise"), ("sigmoid", "elementwise"),
    ("moe", "moe"), ("expert", "moe"),
)  # fmt: skip
_SAME = 0.005


def measures(point: MeasuredPoint) -> str:
    """Return the category of operation that a point measures; empty where its name does not tell."""
    return next((category for word, category in _MEASURES if word in point.benchmark), "")


def same_operation(row: JudgedOperator, point: MeasuredPoint) -> bool:
    """Return whether a point measured the operation of `row`."""
    demand, product = row.operator.demand, product_of(row.operator)
    if isinstance(demand, Unknown) or measures(point) != row.operator.category:
        return False
    types = {kind for kind, _ in operand_shapes(row.operator.shapes)} or {kind for kind, _ in demand.flop}
    if point.dtype not in types:
        return False
    if product is not None and {"m", "k", "n"} <= set(point.params):
        return product.batch == 1 and all(point.params[name] == getattr(product, name) for name in "mkn")
    if float(demand.total_flop) > 0:
        return point.flop > 0 and abs(point.flop / float(demand.total_flop) - 1.0) <= _SAME
    return float(demand.bytes) > 0 and abs(point.bytes / float(demand.bytes) - 1.0) <= _SAME


def kernel_choice(case: Case) -> Proposal | None:
    """Advise on the operation for which another measured implementation saves most."""
    best: Proposal | None = None
    for row in case.judged:
        points = [p for p in case.facts.points if same_operation(row, p)]
        usable = [
            p for p in points
            if p.impl not in REFERENCES and case.trace.framework in (p.backend, "profile") and _same_device(case, p)
        ]  # fmt: skip
        if not usable:
            continue
        chosen = min(usable, key=lambda p: p.ci95_s[1])
        # The operation itself reaches its least time at best, whoever computes it.
        gain = min((row.call_s - chosen.ci95_s[1]) * case.calls([row]), _most(case, row))
        if gain <= 0 or (best is not None and gain <= best.gain_s):
            continue
        seen = ", ".join(f"{p.impl} {format_s(p.time_s)}" for p in sorted(points, key=lambda p: p.time_s)[:4])
        best = Proposal(
            rule="kernel_choice",
            change=Change.RATE,
            rows=(row.index,),
            gain_s=gain,
            grade=Grade.MEASURED,
            text=f"Compute {row.operator.name} {row.operator.shapes} with {chosen.label}: it was measured to be faster here.",
            evidence=f"a call takes {format_s(row.call_s)} in the run; measured alone: {seen}",
        )
    return best


def _same_device(case: Case, point: MeasuredPoint) -> bool:
    """Return whether a point was measured on the product that a profile is of; a run here is judged by points from here."""
    names = [n for n in case.trace.devices if n]
    return case.trace.framework != "profile" or not names or not point.device or point.device in names


def _most(case: Case, row: JudgedOperator) -> float:
    known = not isinstance(row.least.time_s, Unknown)
    return case.headroom_s([row]) if known else case.per_step_s([row])


RULE = kernel_choice
