"""How far a `for` loop has come, read from its iterator without tracing it."""

from __future__ import annotations

import ctypes
import dis
import itertools
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType, GeneratorType
from typing import Any, ClassVar

from mansard.trace.recorders.bytecode import Loop, loops_of

_CONTAINERS: tuple[Any, ...] = (range(1), range(1 << 70), [], (), "", b"", {}, {}.values(), {}.items(), set())
_SIZED = {type(iter(x)) for x in _CONTAINERS}


class Progress:
    """A counter that rises by one with each round of one loop.

    Args:
        read: Returns the present count; only differences mean something.
        iterator: Returns the iterator it reads, None once that is gone.
    """

    def __init__(self, read: Callable[[], int], iterator: Callable[[], Any]) -> None:
        self.read = read
        self._iterator = iterator

    def same(self, other: Progress | None) -> bool:
        """Whether both count the same iterator; an inner loop has a new one each time it is entered."""
        mine = self._iterator()
        return other is not None and mine is not None and mine is other._iterator()

    def now(self) -> int | None:
        """Return the count, or None where it can no longer be told."""
        try:
            return int(self.read())
        except Exception:
            return None


def progress_of(frame: FrameType, loop: Loop) -> Progress | None:
    """Return a counter for the loop of a frame that stands at the loop's head, or None for a loop without one.

    Call it from the frame's own tracer at the head of the loop: there the iterator lies on top of the frame's value
    stack. Iterators of ranges and containers tell how many items remain, `enumerate` tells its index, a DataLoader's
    iterator how many batches it gave; `zip`, `map` and simple generators what lies below them tells.
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


def _index_of(iterator: itertools.count[Any]) -> float:
    """Rounds of an `itertools.count` from an origin of its own; its present value where it goes up by one."""
    state: Any = iterator.__reduce__()[1]
    return float(state[0]) / float(state[1] if len(state) > 1 else 1)


def _counter(iterator: Any) -> Progress | None:
    if type(iterator) in _SIZED:
        return Progress(lambda: -iterator.__length_hint__(), lambda: iterator)
    if type(iterator) is enumerate:
        return Progress(lambda: int(iterator.__reduce__()[1][1]), lambda: iterator)
    if type(iterator) is itertools.count:
        return Progress(lambda: int(_index_of(iterator)), lambda: iterator)
    if type(iterator) in (zip, map):
        # All of its iterators move on together: the first that can be counted tells.
        inner = iterator.__reduce__()[1]
        found = (_counter(i) for i in (inner[1:] if type(iterator) is map else inner))
        counted = next((c for c in found if c is not None), None)
        return None if counted is None else Progress(counted.read, lambda: iterator)
    if type(iterator) is GeneratorType:
        return _of_generator(iterator)
    if hasattr(type(iterator), "__next__") and isinstance(getattr(iterator, "_num_yielded", None), int):
        reference = weakref.ref(iterator)
        return Progress(lambda: int(reference()._num_yielded), reference)  # type: ignore[union-attr]
    return None


def _of_generator(generator: GeneratorType[Any, Any, Any]) -> Progress | None:
    """Count a generator by the loop in which it stands, where each pass of that loop yields once (as in `tqdm`)."""
    frame = generator.gi_frame
    if frame is None or generator.gi_running:
        return None
    loops = [loop for loop in loops_of(frame.f_code) if loop.holds(frame.f_lasti)]
    if not loops or not _yields_once(frame.f_code, loops[-1]):
        return None
    inner = _stack_top(frame)
    return None if inner is None or inner is generator else _counter(inner)


def _yields_once(code: CodeType, loop: Loop) -> bool:
    """Whether every pass of a `for` loop that does not end it yields exactly once: no way leads around the yield."""
    inside = [i for i in dis.get_instructions(code) if loop.heads[-1] < i.offset <= loop.end]
    head = next((i for i in dis.get_instructions(code) if i.offset == loop.heads[-1]), None)
    yields = [i.offset for i in inside if i.opname == "YIELD_VALUE"]
    if head is None or head.opname != "FOR_ITER" or len(yields) != 1:
        return False
    jumps = [i for i in inside if i.opcode in dis.hasjrel or i.opcode in dis.hasjabs]
    # A jump back into an inner loop that holds the yield would take it again.
    return all(loop.heads[-1] < int(i.argval) <= yields[0] for i in jumps if i.offset < yields[0]) and all(
        int(i.argval) > yields[0] or int(i.argval) <= loop.heads[-1] for i in jumps if i.offset > yields[0]
    )
