"""Copies between host and device, as points: what they share whatever framework does them."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.dtypes import dtype_bytes
from mansard.core.errors import UndecidedError
from mansard.core.unknown import Unknown
from mansard.measure.links.shapes import positions
from mansard.measure.points.benchmark import Check, CompilerCount, Operand, Prepared
from mansard.measure.points.inputs import data_kind, random_input, rounded

DIRECTIONS = ("h2d", "d2h", "round_trip", "both")
ALIGNMENT = 64  # bytes; a runtime on the host may take memory aligned to this as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be copied.

    Args:
        direction: `h2d`, `d2h`, `round_trip` (there, then back) or `both` (both at the same time).
        elements, dtype: The data.
        pinned: Whether the host memory is locked for the device to reach.
        chunk_elements: Elements of one piece; 0 for all at once.
        device: Number of the device.
        seed: Seed of the data.
    """

    direction: str
    elements: int
    dtype: str
    pinned: bool
    chunk_elements: int = 0
    device: int = 0
    seed: int = 0

    @property
    def bytes(self) -> float:
        """Data of one direction [B]."""
        return self.elements * dtype_bytes(self.dtype)

    @property
    def pieces(self) -> list[slice]:
        """The pieces that are copied one by one."""
        step = self.chunk_elements or self.elements
        return [slice(i, min(i + step, self.elements)) for i in range(0, self.elements, step)]


class Copies(ABC):
    """Copies of one framework. `there` and `back` do one copy, wait for it, and return its time [s].

    What is not the copy (fresh arrays, checks of pointers) happens outside the time.
    """

    def __init__(self, wanted: Wanted, *, host_device: bool) -> None:
        self.wanted = wanted
        self.host_device = host_device
        self.times: dict[str, list[float]] = {"h2d": [], "d2h": []}
        self.fresh = False  # whether each copy goes into new memory
        self._copied_once = False

    @abstractmethod
    def there(self) -> float:
        """Copy from host to device."""

    @abstractmethod
    def back(self) -> float:
        """Copy from device to host."""

    def ready_for_back(self) -> None:  # noqa: B027 - most have nothing to make
        """Make what a copy from the device needs, before its time begins."""

    @abstractmethod
    def on_device(self) -> npt.NDArray[Any]:
        """Return what lies on the device, as numpy."""

    @abstractmethod
    def on_host(self) -> npt.NDArray[Any]:
        """Return what came back, as numpy."""

    @abstractmethod
    def sent(self) -> npt.NDArray[Any]:
        """Return what is sent, as numpy."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what a reader must know."""

    def timed(self, count: int) -> float:
        """Do `count` copies, or pairs of them, and return their time [s]."""
        return math.fsum(self._once() for _ in range(count))

    def run(self, count: int) -> None:
        """Do `count` copies, or pairs of them."""
        self.timed(count)

    def _once(self) -> float:
        direction = self.wanted.direction
        self._copied_once = True
        if direction == "both":
            return self.at_once()
        spent = 0.0
        if direction in ("h2d", "round_trip"):
            self.times["h2d"].append(self.there())
            spent += self.times["h2d"][-1]
        if direction in ("d2h", "round_trip"):
            self.times["d2h"].append(self.back())
            spent += self.times["d2h"][-1]
        return spent

    def at_once(self) -> float:
        """Copy in both directions at the same time by two threads; return the time until both are done [s]."""
        self.ready_for_back()
        return both_at_once(self.there, self.back)

    def moved(self, source: int, target: int) -> None:
        """Refuse a copy whose target is its source: a pointer was handed on, and nothing moved.

        Raises:
            UndecidedError: both addresses are the same.
        """
        if source == target:
            raise UndecidedError(
                f"the {self.wanted.direction} copy of {self.wanted.bytes:.0f} B shares the memory of its source: a pointer "
                "was handed on and nothing moved, so there is no bandwidth", code="aliased",
            )  # fmt: skip

    def verify(self) -> Check:
        """Compare what arrived with what was sent, bit by bit, at some positions and both ends."""
        if not self._copied_once:
            self.timed(1)
        at = positions(self.wanted.elements)
        want = _bits(self.sent().reshape(-1)[at])
        arrived = []
        if self.wanted.direction != "d2h":
            arrived.append(self.on_device())
        if self.wanted.direction != "h2d":
            arrived.append(self.on_host())
        wrong = any(not np.array_equal(_bits(a.reshape(-1)[at]), want) for a in arrived)
        return Check(error_ratio=math.inf if wrong else 0.0, against="the data that were sent, bit by bit")

    def operands(self) -> list[Operand]:
        """Return what is read and written: the data on the side they come from, and where they arrive."""
        sides = []
        if self.wanted.direction != "d2h":
            sides += [("host data", "input", self.sent()), ("device memory", "output", self.on_device())]
        if self.wanted.direction != "h2d":
            sides += [("device data", "input", self.sent()), ("host memory", "output", self.on_host())]
        return [
            Operand(name=name, role=role, bytes=self.wanted.bytes, values=_some(values)) for name, role, values in sides
        ]

    def after(self) -> dict[str, Any]:
        """Return the median time and rate of each direction."""
        found: dict[str, Any] = {}
        for direction, times in self.times.items():
            if times and self.wanted.direction == "round_trip":
                middle = float(np.median(times))
                found[f"{direction}_s"] = middle
                found[f"{direction}_bytes_per_s"] = self.wanted.bytes / middle
        return found

    def prepared(self, call: str) -> Prepared:
        """Return the copies as a point.

        Args:
            call: What does the copy.
        """
        none = Unknown("a copy by the runtime is no compiled program")
        count = CompilerCount(
            flop=none, bytes=none, operations=(call,), expected=(call,), source="called, data compared"
        )
        wanted = self.wanted
        facts: dict[str, Any] = {
            "data": data_kind(wanted.dtype), "direction": wanted.direction, "call": call,
            "host_memory": "pinned" if wanted.pinned else "pageable", "pieces": len(wanted.pieces),
            "device_is_host_memory": self.host_device, **self.facts(),
        }  # fmt: skip
        if self.host_device:
            facts["measures"] = (
                "a copy inside host memory: this device has none of its own, so there is no link to measure"
            )
        return Prepared(
            run=self.run, timed=self.timed, verify=self.verify, count_by_compiler=lambda: count, facts=facts,
            operands=self.operands, facts_after=self.after, output_is_fresh=self.fresh,
        )  # fmt: skip


def _bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8)


def _some(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    flat = values.reshape(-1)
    return flat[positions(flat.size)[:4096]]


def both_at_once(one: Callable[[], float], other: Callable[[], float]) -> float:
    """Do two things at the same time and return the time from when both could begin until both are done [s].

    Raises:
        Exception: what either of them raised.
    """
    gate = threading.Barrier(2)
    ends = [0.0, 0.0]
    begins = [0.0, 0.0]
    failed: list[BaseException] = []

    def go(number: int, work: Callable[[], float]) -> None:
        try:
            gate.wait()
            begins[number] = time.perf_counter()
            work()
            ends[number] = time.perf_counter()
        except BaseException as error:  # handed to the caller
            failed.append(error)

    thread = threading.Thread(target=go, args=(1, other))
    thread.start()
    go(0, one)
    thread.join()
    if failed:
        raise failed[0]
    return max(ends) - max(begins)


def host_data(wanted: Wanted, *, aligned: bool) -> npt.NDArray[Any]:
    """Return random data in host memory, aligned to 64 bytes or, on purpose, not.

    Args:
        wanted: How much of what.
        aligned: A runtime whose device is the host takes aligned memory as it is; off, it has to copy.
    """
    values = rounded(random_input((wanted.elements,), wanted.dtype, seed=wanted.seed), wanted.dtype)
    size = values.dtype.itemsize
    room = np.empty(wanted.elements * size + 2 * ALIGNMENT, dtype=np.uint8)
    start = (-room.ctypes.data) % ALIGNMENT + (0 if aligned else size)
    placed = room[start : start + wanted.elements * size].view(values.dtype)
    placed[...] = values
    return placed
