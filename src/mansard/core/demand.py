"""What a piece of work must consume: FLOP by type, bytes, messages, launches.

A `Demand` is made by a cost function from shapes and element types, or from hardware counters. Its numbers may be
floats or numpy arrays of one shape; adding and scaling work on both, so a model, a benchmark and a profile share
the same cost functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Number = float | npt.NDArray[np.float64]


def _added(a: Mapping[Any, Number], b: Mapping[Any, Number]) -> dict[Any, Number]:
    out = dict(a)
    for key, value in b.items():
        out[key] = out[key] + value if key in out else value
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one operation, phase or step must consume.

    Args:
        flop: Matrix work [FLOP] by `(dtype, accumulate)`: matmul, convolution, attention core; a MAC is 2 FLOP.
        vector_flop: Other arithmetic [FLOP] by dtype: additions, products, comparisons, reductions.
        transcendental: Evaluations of exp, log, tanh, erf, sin, pow, ... [count] by dtype.
        read_bytes: Compulsory reads, each operand once [B].
        write_bytes: Compulsory writes, each result once [B].
        working_set_bytes: Bytes that must be at hand together [B]; None means reads + writes.
        level_bytes: Traffic at a named memory level [B], from counters; it replaces the compulsory traffic there.
        link_bytes: Bytes one device must send over a named link [B].
        launches: Separately dispatched operations [count].
        uncounted: What the demand leaves out, for the receipt.

    >>> a = Demand(flop={("f32", "f32"): 2.0 * 4 * 5 * 6}, read_bytes=200.0, write_bytes=80.0)
    >>> (a + a.scaled(2)).total_flop, (a + a).bytes, (a + a).launches
    (720.0, 560.0, 2.0)
    """

    flop: Mapping[tuple[str, str], Number] = field(default_factory=dict)
    vector_flop: Mapping[str, Number] = field(default_factory=dict)
    transcendental: Mapping[str, Number] = field(default_factory=dict)
    read_bytes: Number = 0.0
    write_bytes: Number = 0.0
    working_set_bytes: Number | None = None
    level_bytes: Mapping[str, Number] = field(default_factory=dict)
    link_bytes: Mapping[str, Number] = field(default_factory=dict)
    launches: Number = 1.0
    uncounted: tuple[str, ...] = ()

    @property
    def total_flop(self) -> Number:
        """Matrix work of all types [FLOP]; this is what MFU counts."""
        total: Number = 0.0
        for value in self.flop.values():
            total = total + value
        return total

    @property
    def bytes(self) -> Number:
        """Compulsory traffic, reads and writes [B]."""
        return self.read_bytes + self.write_bytes

    @property
    def working_set(self) -> Number:
        """Bytes that must be at hand together [B]."""
        return self.bytes if self.working_set_bytes is None else self.working_set_bytes

    @property
    def flop_per_byte(self) -> Number | None:
        """Arithmetic intensity of the matrix work [FLOP/B]; None where no bytes move."""
        size = self.bytes
        return self.total_flop / size if np.all(np.asarray(size) > 0) else None

    def __add__(self, other: Demand) -> Demand:
        """Return the demand of both pieces of work, one after the other."""
        return Demand(
            flop=_added(self.flop, other.flop),
            vector_flop=_added(self.vector_flop, other.vector_flop),
            transcendental=_added(self.transcendental, other.transcendental),
            read_bytes=self.read_bytes + other.read_bytes,
            write_bytes=self.write_bytes + other.write_bytes,
            working_set_bytes=np.maximum(self.working_set, other.working_set)
            if isinstance(self.working_set, np.ndarray) or isinstance(other.working_set, np.ndarray)
            else max(self.working_set, other.working_set),
            level_bytes=_added(self.level_bytes, other.level_bytes),
            link_bytes=_added(self.link_bytes, other.link_bytes),
            launches=self.launches + other.launches,
            uncounted=self.uncounted + tuple(u for u in other.uncounted if u not in self.uncounted),
        )

    def scaled(self, times: Number) -> Demand:
        """Return the demand of `times` repetitions; the working set of one stays the working set."""

        def all_of(values: Mapping[Any, Number]) -> dict[Any, Number]:
            return {key: value * times for key, value in values.items()}

        return Demand(
            flop=all_of(self.flop),
            vector_flop=all_of(self.vector_flop),
            transcendental=all_of(self.transcendental),
            read_bytes=self.read_bytes * times,
            write_bytes=self.write_bytes * times,
            working_set_bytes=self.working_set,
            level_bytes=all_of(self.level_bytes),
            link_bytes=all_of(self.link_bytes),
            launches=self.launches * times,
            uncounted=self.uncounted,
        )


NOTHING = Demand(launches=0.0)
