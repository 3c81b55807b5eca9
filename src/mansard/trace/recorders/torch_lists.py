"""The lists of tensors that PyTorch's profile leaves incomplete. Standard library only: the guest uses it too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Where the recorder puts them, beside the profile.
LISTS_FILE = "lists.json"


def tensor_lists(event_tree: Iterable[Any]) -> dict[int, dict[str, list[Any]]]:
    """Return the lists of tensors of recorded calls, which the profiler's JSON leaves incomplete.

    The JSON has no element types of lists, and nothing at all of lists of more than 30 tensors; the event tree has both.

    Args:
        event_tree: `profile.profiler.kineto_results.experimental_event_tree()`, with shapes recorded.

    Returns:
        By the event's `External id`, by the position of the argument (as text, so that it can be written as JSON): the
        dimensions, strides and element type of each tensor.
    """
    found: dict[int, dict[str, list[Any]]] = {}
    pending = list(event_tree)
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if not takes_lists(event.name):
            continue
        inputs = getattr(event.extra_fields, "inputs", ())
        lists = {
            str(i): [[list(t.sizes), list(t.strides), str(t.dtype).removeprefix("torch.")] for t in value]
            for i, value in enumerate(inputs)
            if isinstance(value, list) and value and all(hasattr(t, "sizes") for t in value)
        }
        if lists:
            found[int(event.correlation_id)] = lists
    return found


def takes_lists(name: str) -> bool:
    """Return whether operator `name` takes lists of tensors that decide its cost.

    >>> takes_lists("aten::cat"), takes_lists("aten::_fused_adamw_"), takes_lists("aten::mm")
    (True, True, False)
    """
    short = name.removeprefix("aten::")
    return short in (
        "cat",
        "stack",
        "_stack",
        "_cudnn_rnn",
        "_amp_foreach_non_finite_check_and_unscale_",
    ) or short.startswith(("_foreach_", "_fused_"))
