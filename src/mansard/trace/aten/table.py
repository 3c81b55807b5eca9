"""The table of PyTorch operators: from a name to the function that knows its cost."""

from __future__ import annotations

from mansard.core import Unknown
from mansard.trace.aten.call import AtenCall, AtenCost


def cost(call: AtenCall) -> AtenCost:
    """Return what `call` consumes.

    Args:
        call: One recorded call.

    An operator that is not in the table has kind `unknown`; one whose inputs were not recorded has an `Unknown` demand.
    """
    return AtenCost(
        kind="unknown",
        category="other",
        demand=Unknown(f"{call.name} is not in the table of operators", ("a cost function for it",)),
    )
