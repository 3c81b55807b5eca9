"""NumPy: its BLAS for matrix products, its ufuncs for special functions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mansard.measure.backends.case import Case, gemm_error, random_matrices, special_error, special_inputs


class NumpyBackend:
    """NumPy. Products of f32 and f64 go to its BLAS; a special function is one thread's work, so each thread gets a slice."""

    name = "numpy"

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)

    def gemm(self, dtype: str, size: int) -> Case | None:
        """Return `numpy.matmul(out=)`; other types than f32 and f64 have no BLAS behind them."""
        if dtype not in ("f32", "f64"):
            return None
        x, y = random_matrices(dtype, size)
        out = np.empty_like(x)

        def run(count: int) -> None:
            for _ in range(count):
                np.matmul(x, y, out=out)

        return Case(call="numpy.matmul(out=)", run=run, error=lambda: gemm_error(dtype, x, y, out))

    def special(self, function: str, dtype: str, count: int) -> Case | None:
        """Return a ufunc with `out=`, one slice per thread (it runs without the interpreter lock); there is no erf."""
        if function == "erf":
            return None
        x = special_inputs(dtype, count)
        out = np.empty_like(x)
        ufunc = getattr(np, function)
        each = -(-count // self._threads)
        slices = [slice(start, start + each) for start in range(0, count, each)]

        def work(part: slice, repeats: int) -> None:
            mine, into = x[part], out[part]
            for _ in range(repeats):
                ufunc(mine, out=into)

        def run(repeats: int) -> None:
            if len(slices) == 1:
                work(slices[0], repeats)
                return
            for done in [self._pool.submit(work, part, repeats) for part in slices]:
                done.result()

        name = f"numpy.{function}(out=)" + (", one slice per thread" if len(slices) > 1 else "")
        return Case(call=name, run=run, error=lambda: special_error(function, dtype, x, out))

    def dispatch(self) -> dict[str, Case]:
        """Return an addition of two one-element arrays."""
        x, y = np.ones(1, np.float32), np.full(1, 2.0, np.float32)
        kept = [x]

        def run(count: int) -> None:
            last = x
            for _ in range(count):
                last = np.add(x, y)
            kept[0] = last

        return {
            "back_to_back": Case(call="numpy.add(x, y), 1 element", run=run, error=lambda: abs(float(kept[0][0]) - 3.0))
        }
