"""Marks in the profile around what activation checkpointing executes again.

`torch.utils.checkpoint` without re-entrance runs the forward operations of a region again from inside the first backward
node that needs one of its tensors. In a profile they look like operations of that node, so a range is put around them.
The last operation is usually given up half way: once the last tensor is saved, an exception stops the repetition, and an
operator that saves its inputs alone has not computed anything by then.
"""

from __future__ import annotations

import sys
from typing import Any

#: Range around operations that are executed again.
RECOMPUTE = "mansard::recompute"
#: The repetition ends here; the operator around this mark may not have computed anything.
STOPPED = "mansard::recompute_stopped"


def mark_recompute() -> list[tuple[Any, str, Any]] | None:
    """Put the marks in place.

    Returns:
        What `unmark_recompute` needs; None where this build of torch has no such place.
    """
    import torch.utils.checkpoint as module

    hook = getattr(module, "_recomputation_hook", None)
    stop = getattr(module, "_StopRecomputationError", None)
    make = getattr(sys.modules.get("torch._C._profiler"), "_RecordFunctionFast", None)
    if not (isinstance(hook, type) and isinstance(stop, type) and make is not None):
        return None
    taken = [(module, "_recomputation_hook", hook), (module, "_StopRecomputationError", stop)]
    module._recomputation_hook = _marking(hook, make)
    module._StopRecomputationError = _announcing(stop, make)
    return taken


def unmark_recompute(taken: list[tuple[Any, str, Any]]) -> None:
    """Put back what was there. A range that is open at this moment closes itself."""
    for module, name, original in taken:
        setattr(module, name, original)


def _marking(hook: Any, make: Any) -> Any:
    class MarkedHook(hook):  # type: ignore[misc]
        def __enter__(self) -> Any:
            self._range = make(RECOMPUTE)
            self._range.__enter__()
            return super().__enter__()

        def __exit__(self, *error: Any) -> Any:
            try:
                return super().__exit__(*error)
            finally:
                self._range.__exit__(None, None, None)

    return _named(MarkedHook, hook)


def _announcing(stop: Any, make: Any) -> Any:
    class MarkedStop(stop):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            with make(STOPPED):
                pass

    return _named(MarkedStop, stop)


def _named(made: Any, original: Any) -> Any:
    """Give a class the name of the one it stands for: the program sees no difference."""
    made.__name__, made.__qualname__, made.__module__ = original.__name__, original.__qualname__, original.__module__
    return made
