"""One timed call of a backend, with what is needed to check its result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

SPECIAL = ("exp", "tanh", "erf")
MATRIX_DTYPES = ("f32", "f64", "bf16", "f16", "i8")
ACCUMULATE = {"f32": "f32", "f64": "f64", "bf16": "f32", "f16": "f32", "i8": "i32"}

# Largest error accepted, in units of the spread of a result element: round-off of the input type's product sums, and
# of the output type where a backend returns bf16 or f16. A TF32 or bf16 product inside an f32 GEMM is 100 times larger.
GEMM_TOLERANCE = {"f32": 2e-5, "f64": 1e-12, "bf16": 2e-2, "f16": 3e-3, "i8": 0.0}
SPECIAL_TOLERANCE = {"f32": 2e-5, "f64": 1e-9}
EXACT: dict[str, Callable[[float], float]] = {"exp": math.exp, "tanh": math.tanh, "erf": math.erf}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call that can be repeated.

    Args:
        call: The call in words, part of the conditions of its figure.
        run: Does `count` calls one after the other and returns when the last has finished.
        error: Error of the last result on a few elements, as a share of the tolerance; above 1 is wrong.
    """

    call: str
    run: Callable[[int], None]
    error: Callable[[], float]


class Backend(Protocol):
    """What a backend offers to the measurement; None means that it has no such call."""

    name: str

    def gemm(self, dtype: str, size: int) -> Case | None:
        """Return a square matrix product of `size`."""

    def special(self, function: str, dtype: str, count: int) -> Case | None:
        """Return an elementwise special function on `count` elements into existing memory."""

    def dispatch(self) -> dict[str, Case]:
        """Return the smallest operation, under `back_to_back` and where it differs `blocking`."""


def random_matrices(dtype: str, size: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return two random matrices: standard normal, or whole numbers from -64 to 63 for i8 [size, size]."""
    rng = np.random.default_rng(7)
    if dtype == "i8":
        return tuple(rng.integers(-64, 64, (size, size), dtype=np.int8) for _ in range(2))  # type: ignore[return-value]
    kind: Any = np.float64 if dtype == "f64" else np.float32
    return rng.standard_normal((size, size), dtype=kind), rng.standard_normal((size, size), dtype=kind)


def gemm_error(dtype: str, x: npt.NDArray[Any], y: npt.NDArray[Any], got: npt.NDArray[Any]) -> float:
    """Return the error of a product on a few elements, as a share of the tolerance.

    Args:
        dtype: Input type.
        x, y: The inputs as the backend held them, in a type numpy can widen [n, n].
        got: The result [n, n].
    """
    n = x.shape[0]
    rows, columns = [0, n // 3, n - 1], [n - 1, n // 2, 0]
    wide: Any = np.int64 if dtype == "i8" else np.float64
    want = x[rows].astype(wide) @ y[:, columns].astype(wide)
    wrong = np.abs(got[np.ix_(rows, columns)].astype(wide) - want).max()
    if dtype == "i8":
        return float(wrong) * 10.0
    return float(wrong) / (GEMM_TOLERANCE[dtype] * math.sqrt(n)) if np.isfinite(wrong) else math.inf


def special_inputs(dtype: str, count: int) -> npt.NDArray[Any]:
    """Return arguments between -3 and 3 [count]: no denormals, no saturation."""
    return np.random.default_rng(7).uniform(-3.0, 3.0, count).astype(np.float64 if dtype == "f64" else np.float32)


def special_error(function: str, dtype: str, x: npt.NDArray[Any], got: npt.NDArray[Any]) -> float:
    """Return the error of a special function on a few elements, as a share of the tolerance."""
    spots = [0, x.size // 3, x.size // 2, x.size - 1]
    worst = 0.0
    for i in spots:
        want = EXACT[function](float(x[i]))
        worst = max(worst, abs(float(got[i]) - want) / max(1.0, abs(want)))
    return worst / SPECIAL_TOLERANCE[dtype] if math.isfinite(worst) else math.inf
