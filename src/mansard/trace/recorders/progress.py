"""How far a `for` loop has come, read from its iterator without tracing it."""

from __future__ import annotations

import ctypes
import dis
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

from mansard.trace.recorders.bytecode import Loop

_CONTAINERS: tuple[Any, ...] = (range(1), range(1 << 70), [], (), "", b"", {}, {}.values(), {}.items(), set())
_SIZED = {type(iter(x)) for x in _CONTAINERS}


class Progress:
    """A counter that rises by one with each round of one loop.

    Args:
        read: Returns the present count; only differences mean something.
        iterator: Returns the iterator it reads, None once that is gone.
    """

    def __init__(self, read: Callable[[], int], iterator: Callable[[], Any]) -> None:
        self._read = read
        self._iterator = iterator

    def same(self, other: Progress | None) -> bool:
        """Whether both count the same iterator; an inner loop has a new one each time it is entered."""
        mine = self._iterator()
        return other is not None and mine is not None and mine is other._iterator()

    def now(self) -> int | None:
        """Return the count, or None where it can no longer be told."""
        try:
            return int(self._read())
        except Exception:
            return None


def progress_of(frame: FrameType, loop: Loop) -> Progress | None:
    """Return a counter for the loop of a frame that stands at the loop's head, or None for a loop without one.

    Call it from the frame's own tracer at the head of the loop: there the iterator lies on top of the frame's value
    stack. Iterators of ranges and containers tell how many items remain, `enumerate` tells its index, a DataLoader's
    iterator how many batches it gave.
    """
    head = next((i for i in dis.get_instructions(frame.f_code) if i.offset == loop.heads[-1]), None)
    if head is None or head.opname != "FOR_ITER":
        return None
    iterator = _stack_top(frame)
    return None if iterator is None else _counter(iterator)


class _InterpreterFrame(ctypes.Structure):
    """`_PyInterpreterFrame` of CPython 3.11 (Include/internal/pycore_frame.h)."""

    _fields_: ClassVar = [
        ("f_func", ctypes.c_void_p),
        ("f_globals", ctypes.c_void_p),
        ("f_builtins", ctypes.c_void_p),
        ("f_locals", ctypes.c_void_p),
        ("f_code", ctypes.c_void_p),
        ("frame_obj", ctypes.c_void_p),
        ("previous", ctypes.c_void_p),
        ("prev_instr", ctypes.c_void_p),
        ("stacktop", ctypes.c_int),
        ("is_entry", ctypes.c_bool),
        ("owner", ctypes.c_char),
    ]


_FRAME_POINTER = object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)  # f_frame, behind the head and f_back


def _stack_top(frame: FrameType) -> Any:
    """Return the object on top of a frame's value stack; None where this interpreter's frames are not known.

    Only needed before Python 3.12, where tracing a loop all the time costs too much; so only 3.11 is known.
    """
    if sys.version_info[:2] != (3, 11) or sys.implementation.name != "cpython" or hasattr(sys, "gettotalrefcount"):
        return None
    address = ctypes.c_void_p.from_address(id(frame) + _FRAME_POINTER).value
    if not address:
        return None
    inner = _InterpreterFrame.from_address(address)
    if inner.f_code != id(frame.f_code) or inner.frame_obj != id(frame):
        return None  # not the layout we know
    code = frame.f_code
    fixed = code.co_nlocals + len(set(code.co_cellvars) - set(code.co_varnames)) + len(code.co_freevars)
    if not fixed < inner.stacktop <= fixed + code.co_stacksize:
        return None  # the stack pointer is not saved, or nothing is on the stack
    slot = address + ctypes.sizeof(_InterpreterFrame) + (inner.stacktop - 1) * ctypes.sizeof(ctypes.c_void_p)
    held = ctypes.py_object.from_address(slot)
    return held.value


def _counter(iterator: Any) -> Progress | None:
    if type(iterator) in _SIZED:
        return Progress(lambda: -iterator.__length_hint__(), lambda: iterator)
    if type(iterator) is enumerate:
        return Progress(lambda: int(iterator.__reduce__()[1][1]), lambda: iterator)
    if hasattr(type(iterator), "__next__") and isinstance(getattr(iterator, "_num_yielded", None), int):
        reference = weakref.ref(iterator)
        return Progress(lambda: int(reference()._num_yielded), reference)  # type: ignore[union-attr]
    return None
