"""Run something on the program's main thread soon, between two bytecodes of what runs there.

With no tracer on, the interpreter's pending calls do it. Under `sys.settrace` they must not: CPython 3.11 enters a
function under a tracer by checking for pending calls first and starting over if there are any, and from inside a
pending call it never takes another one, so two of them at the wrong moment hang the program. While our tracer is on, its
own events run what is queued; and a pending call that turns the tracer on does so as its last act, calling no Python
function afterwards.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_kept: list[Any] = []  # the callback that the interpreter has yet to call, kept alive

#: What waits to run on the main thread.
queue: deque[Callable[[], object]] = deque()


def soon(function: Callable[[], object], *, tracing: bool = False) -> None:
    """Have `function` run on the main thread.

    Args:
        function: What to run; its exceptions are swallowed, as it is a guest in someone else's program.
        tracing: Our tracer is on and will run the queue.
    """
    queue.append(function)
    if not tracing:
        ask()


def ask() -> None:
    """Have the interpreter call us if something is queued and it has not been asked yet."""
    if not queue or _kept:
        return
    holder = _CALLBACK(_called)
    _kept.append(holder)
    if ctypes.pythonapi.Py_AddPendingCall(holder, None) != 0:
        _kept.clear()


def _called(_argument: object) -> int:
    # No `with` and no call of a Python function after one that may have put the tracer on.
    while queue:
        function = queue.popleft()
        try:  # noqa: SIM105
            function()
        except Exception:
            pass
        if sys.gettrace() is not None:
            break
    _kept.clear()
    return 0


def run_queue() -> None:
    """Run what is queued now; for the tracer's own events, which are on the main thread."""
    while queue:
        function = queue.popleft()
        try:  # noqa: SIM105
            function()
        except Exception:
            pass
