"""PyTorch on the CPU."""

from __future__ import annotations

from typing import Any

from mansard.measure.backends.case import Case, gemm_error, random_matrices, special_error, special_inputs


class TorchBackend:
    """PyTorch: `torch.mm(out=)`, `torch._int_mm`, elementwise functions with `out=`."""

    name = "torch"

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._torch: Any = torch
        self._dtypes = {
            "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8,
        }  # fmt: skip

    def gemm(self, dtype: str, size: int) -> Case | None:
        """Return a product into existing memory; i8 goes through `torch._int_mm` where this version has it."""
        torch: Any = self._torch
        if dtype == "i8" and not hasattr(torch, "_int_mm"):
            return None
        x, y = (torch.from_numpy(m).to(self._dtypes[dtype]) for m in random_matrices(dtype, size))
        out = torch.empty((size, size), dtype=torch.int32 if dtype == "i8" else self._dtypes[dtype])
        product = torch._int_mm if dtype == "i8" else torch.mm

        def run(count: int) -> None:
            for _ in range(count):
                product(x, y, out=out)

        def error() -> float:
            wide = torch.int32 if dtype == "i8" else torch.float64
            return gemm_error(dtype, *(m.to(wide).numpy() for m in (x, y, out)))

        return Case(call="torch._int_mm(out=)" if dtype == "i8" else "torch.mm(out=)", run=run, error=error)

    def special(self, function: str, dtype: str, count: int) -> Case | None:
        """Return `torch.<function>(out=)`."""
        torch: Any = self._torch
        x = torch.from_numpy(special_inputs(dtype, count))
        out = torch.empty_like(x)
        call = getattr(torch, function)

        def run(repeats: int) -> None:
            for _ in range(repeats):
                call(x, out=out)

        return Case(
            call=f"torch.{function}(out=)",
            run=run,
            error=lambda: special_error(function, dtype, x.numpy(), out.numpy()),
        )

    def dispatch(self) -> dict[str, Case]:
        """Return an addition of two one-element tensors, result allocated."""
        torch: Any = self._torch
        x, y = torch.ones(1), torch.full((1,), 2.0)
        kept = [x]

        def run(count: int) -> None:
            last = x
            for _ in range(count):
                last = torch.add(x, y)
            kept[0] = last

        return {
            "back_to_back": Case(call="torch.add(x, y), 1 element", run=run, error=lambda: abs(float(kept[0]) - 3.0))
        }
