"""Copies that only change the layout of data.

Needs: copies on the device or in host memory that keep the element type: contiguous, clone, transposes, changes of channel order.
Promises: their time. A copy that the program wants for its own sake, such as a snapshot, is not told apart: at most.
Source: PyTorch tutorial, Channels Last Memory Format; a transposed operand needs no copy for a product.
"""

from __future__ import annotations

import re

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.judge_operators import HOST_COPY_NAMES, JudgedOperator

_LAYOUT = re.compile(
    r"contiguous|clone|transpose|nchw.*nhwc|nhwc.*nchw|permute|^copy(\.\d+)?$|aten::copy_", re.IGNORECASE
)
_CAST = re.compile(r"^(\w+) to (\w+)$")
_HOW = {
    "torch": "Keep one layout: avoid .contiguous() and .clone() between operations, let products take transposed operands, and use "
    "channels_last throughout.",
    "jax": "Keep one layout: avoid transposes between operations, and name contracted dimensions with dot_general instead.",
}


def _only_layout(row: JudgedOperator) -> bool:
    operator = row.operator
    if operator.name.startswith(HOST_COPY_NAMES) or not _LAYOUT.search(operator.name):
        return False
    cast = _CAST.match(operator.formula)
    return cast is None or cast.group(1) == cast.group(2)


def layout_copies(case: Case) -> Proposal | None:
    """Advise on keeping one layout where copies between layouts take time."""
    rows = [r for r in case.of_category("copy", "convolution") if _only_layout(r)]
    time_s = case.per_step_s(rows)
    if time_s <= 0:
        return None
    names = ", ".join(dict.fromkeys(r.operator.name for r in sorted(rows, key=lambda r: -r.total_s)[:3]))
    return Proposal(
        rule="layout_copies",
        change=Change.WORK,
        rows=tuple(r.index for r in rows),
        gain_s=time_s,
        text=_HOW.get(case.trace.framework, "Keep one layout: these copies only move data to another order."),
        evidence=f"copies ({names}; {case.calls(rows):.0f} in a step) take {format_s(time_s)}, {format_ratio(time_s / case.account.step_s)} "
        "of the step, and change nothing but the order",
    )


RULE = layout_copies
