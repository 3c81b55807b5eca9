"""Arrays of a collective: their shapes as the published suite has them, the data, and the right result by numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.collectives import size_bytes
from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.core.errors import UsageError
from mansard.measure.points.benchmark import Check
from mansard.measure.points.inputs import ELEMENT_TOLERANCE, is_integer, random_input, rounded

LAYOUTS = ("auto", "rows", "buffer", "square", "even")
REDUCTIONS = ("sum", "mean", "max", "min")
MOST_CHECKED = 1 << 16  # elements of each device that are compared
LEAST_ROLLED = 1 << 16  # elements of an input, from which on devices share one drawn block
MOST_PLACES = 4099  # in that block where an input begins; a prime, so that chunks of it are nowhere the same
_REDUCES = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The arrays of one point.

    Args:
        operation: Canonical name of the collective.
        local: Input of one device.
        ranks: Devices in one group.
        dtype: Element type.
        layout: `rows`, `buffer`, `square` or `even`, and what it says of the size.
    """

    operation: str
    local: tuple[int, ...]
    ranks: int
    dtype: str
    layout: str

    @property
    def elements(self) -> int:
        """Elements of the input of one device."""
        return math.prod(self.local)

    @property
    def local_bytes(self) -> float:
        """Input of one device [B]."""
        return self.elements * dtype_bytes(self.dtype)

    @property
    def size_bytes(self) -> float:
        """S as NCCL defines it for this collective [B]."""
        return size_bytes(self.operation, local_bytes=self.local_bytes, ranks=self.ranks)

    @property
    def result_elements(self) -> int:
        """Elements of the result on one device."""
        if self.operation == "all_gather":
            return self.elements * self.ranks
        return self.elements // self.ranks if self.operation == "reduce_scatter" else self.elements

    @property
    def result_bytes(self) -> float:
        """Result on one device [B]."""
        return self.result_elements * dtype_bytes(self.dtype)


def layout_of(params: Mapping[str, Any]) -> str:
    """Return the layout of a point; `auto` is told by the parameters that only the suite's older files have.

    v2 files have neither `ici_size` nor `op_dimension`; the TPU7x tree of v1 has both and a mesh; its root tree has
    `ici_size` alone and squares.
    """
    written = str(params.get("layout", "auto"))
    if written != "auto":
        return written
    if not params.get("ici_size"):
        return "rows"
    return "buffer" if params.get("mesh_shape") else "square"


def shapes_of(operation: str, params: Mapping[str, Any], ranks: int) -> Shapes:
    """Return the arrays of a point.

    Args:
        operation: Canonical name.
        params: `matrix_dim`, `dtype`, `layout` and what `layout_of` reads.
        ranks: Devices in one group.

    Returns: `rows`: (matrix_dim, 8, 128) per device, for a reduce-scatter (n, matrix_dim, 256); `buffer`:
    (matrix_dim, 8, 128) for all; `even`: as `buffer`, with rows added where a reduce-scatter or an all-to-all could not divide
    them; `square`: S is matrix_dim^2 elements, so the shard of an all-gather is an n-th of it.

    Raises:
        UsageError: the buffer cannot be divided by n.

    >>> shapes_of("all_gather", {"matrix_dim": 1024, "dtype": "bf16"}, 8).size_bytes / 2**20
    16.0
    >>> shapes_of("reduce_scatter", {"matrix_dim": 1024, "dtype": "bf16"}, 8).local
    (8, 1024, 256)
    >>> shapes_of("all_to_all", {"matrix_dim": 512, "dtype": "f32", "layout": "even"}, 72).local
    (576, 8, 128)
    """
    layout, rows = layout_of(params), int(params["matrix_dim"])
    if layout == "square":
        local: tuple[int, ...] = (rows, rows)
        if operation == "all_gather":
            if rows % ranks:
                raise UsageError(f"{rows} rows cannot be divided over {ranks} devices")
            local = (rows // ranks, rows)
    elif layout == "rows" and operation == "reduce_scatter":
        local = (ranks, rows, 256)
    else:
        if layout == "even" and operation in ("reduce_scatter", "all_to_all"):
            rows = -(-rows // ranks) * ranks
        local = (rows, 8, 128)
    made = Shapes(operation=operation, local=local, ranks=ranks, dtype=short_dtype(str(params["dtype"])), layout=layout)
    if operation in ("reduce_scatter", "all_to_all") and made.elements % ranks:
        raise UsageError(f"a buffer of {made.elements} elements cannot be divided over {ranks} devices")
    return made


def local_input(shapes: Shapes, device: int, seed: int) -> npt.NDArray[Any]:
    """Return the input of a device, another one for each, in a type numpy or ml_dtypes has."""
    return local_inputs(shapes, seed)(device)


def local_inputs(shapes: Shapes, seed: int) -> Callable[[int], npt.NDArray[Any]]:
    """Return what makes the input of each device, which is another one for each.

    Small ones are drawn each on its own. Of a large one a block is drawn once, and each device has it from another place
    on: drawing 4 GB for 128 devices takes half a minute, copying them some seconds.
    """
    if shapes.elements < LEAST_ROLLED:
        return lambda device: rounded(random_input(shapes.local, shapes.dtype, seed=1000 * seed + device), shapes.dtype)
    block = rounded(random_input(shapes.local, shapes.dtype, seed=1000 * seed), shapes.dtype).reshape(-1)
    step = shapes.elements // MOST_PLACES | 1
    return lambda device: np.roll(block, device * step).reshape(shapes.local)


def positions(count: int, seed: int = 0, most: int = MOST_CHECKED) -> npt.NDArray[np.int64]:
    """Return the elements of a result that are compared: all of a small one, else both ends and random ones."""
    if count <= most:
        return np.arange(count)
    ends = np.arange(256)
    inner = np.random.default_rng([13, seed]).integers(0, count, most - 512)
    return np.unique(np.concatenate([ends, inner, count - 1 - ends]))


def most_checked(ranks: int) -> int:
    """Return how many elements of each device are compared: the work of a reference grows with the square of the group.

    >>> most_checked(8), most_checked(32), most_checked(128)
    (65536, 8192, 1024)
    """
    return max(1024, min(MOST_CHECKED, (1 << 23) // ranks**2))


Fetch = Callable[[int, npt.NDArray[np.int64]], npt.NDArray[Any]]


def expected(
    shapes: Shapes,
    index: int,
    at: npt.NDArray[np.int64],
    fetch: Fetch,
    *,
    reduce_op: str = "sum",
    sender: int | None = None,
) -> npt.NDArray[np.float64]:
    """Return the right result of a device at some positions, worked out by numpy in f64.

    Args:
        shapes: The arrays.
        index: Index of the device in its group.
        at: Positions in its flat result.
        fetch: Returns elements of the flat input of the device with an index in the group.
        reduce_op: `sum`, `mean`, `max` or `min`.
        sender: Index of the device a message comes from; None for the neighbour before.
    """
    n, size = shapes.ranks, shapes.elements
    out = np.empty(at.size, dtype=np.float64)
    if shapes.operation in _REDUCES:
        where = at + (index * (size // n) if shapes.operation == "reduce_scatter" else 0)
        parts = np.stack([_wide(fetch(i, where)) for i in range(n)])
        return np.asarray(getattr(parts, reduce_op)(axis=0), dtype=np.float64)
    if shapes.operation in ("all_gather", "all_to_all"):
        step = size if shapes.operation == "all_gather" else size // n
        offset = 0 if shapes.operation == "all_gather" else index * step
        for i in range(n):
            mine = at // step == i
            out[mine] = _wide(fetch(i, offset + at[mine] % step))
        return out
    if shapes.operation in ("ppermute", "send_recv"):
        return _wide(fetch((index - 1) % n if sender is None else sender, at))
    if shapes.operation == "broadcast":
        return _wide(fetch(0, at))
    raise UsageError(f"no reference for {shapes.operation}")


def _wide(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray(x).astype(np.float64)


def error_ratio(got: Any, want: npt.NDArray[np.float64], shapes: Shapes, *, reduce_op: str = "sum") -> float:
    """Return the largest error over its tolerance; what is only moved, or compared, must be equal.

    A sum of n terms is allowed the rounding of one operation times sqrt(n): a missing or doubled contribution is off
    by about 1 in the units of the data and is found for any n.
    """
    seen = _wide(np.asarray(got).ravel())
    if seen.shape != want.shape or not bool(np.isfinite(seen).all()):
        return math.inf
    wrong = np.abs(seen - want)
    exact = shapes.operation not in _REDUCES or reduce_op in ("max", "min") or is_integer(shapes.dtype)
    if exact:
        return 0.0 if not wrong.any() else math.inf
    allowed = ELEMENT_TOLERANCE[shapes.dtype] * math.sqrt(shapes.ranks) * np.maximum(1.0, np.abs(want))
    return float((wrong / allowed).max(initial=0.0))


def worst(ratios: Mapping[int, float], what: str = "devices") -> Check:
    """Return the check of all devices, with the worst named."""
    device = max(ratios, key=lambda d: ratios[d])
    text = f"numpy in f64 on all {len(ratios)} {what}"
    return Check(error_ratio=ratios[device], against=text if ratios[device] <= 1.0 else f"{text}; worst: {device}")
