"""The communication kernels of one profile as columns: thousands of profiles with thousands of collectives fit into memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.unknown import MaybeFloat
from mansard.trace.collectives_of import CollectiveCall

Kind = tuple[str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Communication kernels by start, 20 B each.

    Args:
        kinds: Group, ranks and operation of each kind.
        sizes: Their message sizes, each once [B].
        kind: Kind of each kernel, an index into `kinds`.
        size: Size of each kernel, an index into `sizes`.
        start_ns, end_ns: Its interval [ns].
    """

    kinds: tuple[Kind, ...]
    sizes: tuple[MaybeFloat, ...]
    kind: array[int]
    size: array[int]
    start_ns: array[int]
    end_ns: array[int]

    @classmethod
    def of(cls, calls: Sequence[CollectiveCall]) -> Calls:
        """Return the columns of some kernels.

        Args:
            calls: The kernels, by start.
        """
        kinds: dict[Kind, int] = {}
        sizes: dict[MaybeFloat, int] = {}
        kind, size = array("i"), array("i")
        for call in calls:
            kind.append(kinds.setdefault((call.group, call.ranks, call.operation), len(kinds)))
            size.append(sizes.setdefault(call.message_bytes, len(sizes)))
        return cls(
            kinds=tuple(kinds), sizes=tuple(sizes), kind=kind, size=size,
            start_ns=array("q", [c.start_ns for c in calls]), end_ns=array("q", [c.end_ns for c in calls]),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.kind)

    def rows(self, kind: Kind) -> npt.NDArray[np.int64]:
        """Return which kernels are of a kind, by start."""
        if kind not in self.kinds:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(np.frombuffer(self.kind, dtype=np.intc) == self.kinds.index(kind))

    def times_ns(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return start and end of some kernels [ns]."""
        start, end = (np.frombuffer(column, dtype=np.int64) for column in (self.start_ns, self.end_ns))
        return start[rows], end[rows]
