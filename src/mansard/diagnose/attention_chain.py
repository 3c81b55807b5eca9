"""Attention computed operation by operation: products around a softmax over matrices of scores that pass through memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mansard.core import Area, Demand
from mansard.diagnose.case import Case
from mansard.diagnose.judge_operators import JudgedOperator

_BETWEEN = ("elementwise", "copy", "random", "softmax", "reduction", "fill")
#: Operations between the two products at most: scale, mask, softmax, dropout, casts.
_LONGEST = 10
#: What lies between handles scores if it reads or writes at least this part of what the softmax reads.
_SCORES = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """All chains of one run.

    Args:
        products: Kinds of the products before and after.
        between: Kinds that only handle scores, softmax included.
        between_s: Time of these [s per step].
        arithmetic_s: What their arithmetic needs at least, which a fused kernel must still do [s per step].
        product_s: Time of the products [s per step].
        score_bytes: Bytes of scores that pass through memory between them [B per step].
        count: Chains per step.
    """

    products: tuple[int, ...]
    between: tuple[int, ...]
    between_s: float
    arithmetic_s: float
    product_s: float
    score_bytes: float
    count: float


def attention_chains(case: Case) -> Chain | None:
    """Return the chains product - softmax - product of the forward pass; None where there is none.

    A softmax belongs to a chain if the products nearest to it on its lane write and read as many bytes as it reads: scores. That of a
    loss is none: it is a logarithm of it, and the product after it is the first of the backward pass.
    """
    judged = {j.index: j for j in case.judged}
    if not {"softmax", "gemm"} <= {j.operator.category for j in case.judged}:
        return None
    order = case.order()
    products: set[int] = set()
    between: set[int] = set()
    seconds = arithmetic = product_s = size = 0.0
    count = 0
    for at, (_, kind) in enumerate(order):
        if kind not in judged or judged[kind].operator.category != "softmax" or _of_a_loss(judged[kind].operator.name):
            continue
        softmax = judged[kind].operator.demand
        if not isinstance(softmax, Demand) or float(softmax.read_bytes) <= 0:
            continue
        before, after = _product(case, order, at, -1), _product(case, order, at, 1)
        if before is None or after is None:
            continue
        if len({case.trace.operators[order[p][1]].part for p in (before, at, after)}) > 1:
            continue
        if not _holds_scores(case, order, before, after, float(softmax.read_bytes)):
            continue
        inner = [
            (p, k) for p, k in order[before + 1 : after]
            if k in judged and _touches(judged[k], float(softmax.read_bytes))
        ]  # fmt: skip
        for place, k in inner:
            seconds += float(case.duration_s[place])
            arithmetic += _arithmetic_s(judged[k])
            size += float(judged[k].operator.demand.bytes)  # type: ignore[union-attr]
            between.add(k)
        for place, k in (order[before], order[after]):
            product_s += float(case.duration_s[place])
            products.add(k)
        count += 1
    if not count:
        return None
    steps = case.windows.count
    return Chain(
        products=tuple(sorted(products)), between=tuple(sorted(between)), between_s=seconds / steps, arithmetic_s=arithmetic / steps,
        product_s=product_s / steps, score_bytes=size / steps, count=count / steps,
    )  # fmt: skip


def _of_a_loss(name: str) -> bool:
    """Return whether an operation or kernel is the logarithm of a softmax, forward or backward.

    >>> [_of_a_loss(n) for n in ("aten::_log_softmax", "cunn_SoftMaxForward<LogSoftMaxForwardEpilogue>", "aten::_softmax")]
    [True, True, False]
    """
    return "logsoftmax" in name.lower().replace("_", "")


def _product(case: Case, order: list[tuple[int, int]], at: int, way: int) -> int | None:
    """Return where the nearest product lies, with nothing but score handling on the way."""
    lane = case.trace.lane[order[at][0]]
    for step in range(1, _LONGEST + 1):
        place = at + way * step
        if not 0 <= place < len(order) or case.trace.lane[order[place][0]] != lane:
            return None
        category = case.trace.operators[order[place][1]].category
        if category == "gemm":
            return place
        if category not in _BETWEEN:
            return None
    return None


def _holds_scores(case: Case, order: list[tuple[int, int]], before: int, after: int, scores: float) -> bool:
    """Return whether the first product writes and the second one reads what the softmax handles."""
    first, second = (case.trace.operators[order[p][1]].demand for p in (before, after))
    if not isinstance(first, Demand) or not isinstance(second, Demand):
        return False
    return bool(
        np.isclose(float(first.write_bytes), scores, rtol=0.5, atol=0.0)
        and float(second.read_bytes) >= _SCORES * scores
    )


def _touches(row: JudgedOperator, scores: float) -> bool:
    demand = row.operator.demand
    return isinstance(demand, Demand) and float(demand.bytes) >= _SCORES * scores


def _arithmetic_s(row: JudgedOperator) -> float:
    return max((t.time_s for t in row.least.terms if t.area is Area.COMPUTE), default=0.0)
