"""One PyTorch call ready to be timed, on the CPU or on a CUDA device.

PyTorch is imported inside the functions. The function writes into memory that exists (`out=`), or its result is
fresh and the caller says so in `Prepared.output_is_fresh`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mansard.core.dtypes import short_dtype
from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown
from mansard.measure.points.benchmark import CompilerCount, Operand
from mansard.measure.points.inputs import LONG_NAMES, random_input


def torch_dtype(dtype: str) -> Any:
    """Return the type by PyTorch's name.

    Raises:
        UsageError: this PyTorch has no such type.
    """
    import torch

    name = LONG_NAMES.get(short_dtype(dtype), "")
    if not hasattr(torch, name):
        raise UsageError(f"PyTorch {torch.__version__} has no element type {dtype}")
    return getattr(torch, name)


def device_of(platform: str, index: int = 0) -> Any:
    """Return the device of a platform, `cpu` or `gpu`."""
    import torch

    if platform == "cpu":
        return torch.device("cpu")
    if platform == "gpu" and torch.cuda.is_available():
        return torch.device("cuda", index)
    raise UsageError(f"this PyTorch has no device for platform {platform!r}", hint="cpu, or gpu where CUDA or ROCm is")


def tensor(shape: tuple[int, ...], dtype: str, *, seed: int = 0, scale: float = 1.0, device: Any = None) -> Any:
    """Return a random tensor, `inputs.random_input` rounded to `dtype` on the device."""
    import torch

    made = torch.from_numpy(random_input(shape, dtype, seed=seed, scale=scale))
    return made.to(device=device or "cpu").to(torch_dtype(dtype))


def values(x: Any) -> Any:
    """Return a tensor as numpy on the host: f64 for floating types, i64 for whole numbers."""
    import torch

    kind = torch.float64 if x.dtype.is_floating_point else torch.complex128 if x.dtype.is_complex else torch.int64
    return x.detach().to("cpu").to(kind).numpy()


def operand(x: Any, name: str, role: str) -> Operand:
    """Return a tensor for the audit: about a thousand of its elements, and its address."""
    part = x.detach().reshape(-1)[:: max(1, x.numel() // 1009)]
    size = float(x.numel() * x.element_size())
    return Operand(name=name, role=role, bytes=size, values=values(part), address=int(x.data_ptr()))


@dataclass(slots=True)
class TorchCall:
    """A PyTorch function with its arguments.

    Args:
        function: The function, compiled if that was asked for.
        args: Its arguments.
        device: Device it runs on; a CUDA device is waited for.
        expected: Names of operations of which at least one must be seen when it runs.
        compile_s: Time of the first call of a compiled function [s]; 0 for an eager one.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    device: Any
    expected: tuple[str, ...]
    compile_s: float = 0.0
    grad: bool = False
    _last: Any = field(default=None)

    @property
    def result(self) -> Any:
        """Result of the last call; a call is made if there was none."""
        if self._last is None:
            self.run(1)
        return self._last

    def wait(self) -> None:
        """Return when the device has finished."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)

    def run(self, count: int) -> None:
        """Do `count` calls back to back and wait for the last one."""
        import torch

        call, args, last = self.function, self.args, self._last
        with torch.set_grad_enabled(self.grad):
            for _ in range(count):
                last = call(*args)
        self.wait()
        self._last = last

    def counts(self) -> CompilerCount:
        """Return the FLOP that PyTorch counts while the function runs once, and the operations the profiler saw."""
        names = self._operations()
        return CompilerCount(
            flop=self._flop(),
            bytes=Unknown("PyTorch counts no bytes"),
            operations=names,
            expected=self.expected,
            source="torch.utils.flop_counter, torch.profiler",
        )

    def _flop(self) -> float | Unknown:
        import torch
        from torch.utils import flop_counter

        sdpa = getattr(flop_counter, "sdpa_flop_count", None)
        backward = getattr(flop_counter, "sdpa_backward_flop_count", None)
        name = "_scaled_dot_product_flash_attention_for_cpu"
        aten: Any = torch.ops.aten
        # The counter has no formula for attention on the CPU and would count 0 (2.13).
        extra = {}
        if sdpa is not None and hasattr(aten, name):
            extra[getattr(aten, name)] = lambda q, k, v, *_a, **_k: sdpa(q, k, v)
        if backward is not None and hasattr(aten, name + "_backward"):
            extra[getattr(aten, name + "_backward")] = lambda g, q, k, v, *_a, **_k: backward(g, q, k, v)
        counter = flop_counter.FlopCounterMode(display=False, custom_mapping=extra)
        try:
            with torch.set_grad_enabled(self.grad), counter:
                self.function(*self.args)
        except Exception as error:  # compiled functions and custom operators may refuse a dispatch mode
            return Unknown(f"PyTorch's counter failed on this function: {str(error).splitlines()[0]}")
        self.wait()
        total = float(counter.get_total_flops())
        return total if total > 0.0 else Unknown("PyTorch's counter has no formula for the operations that ran")

    def _operations(self) -> tuple[str, ...]:
        import torch
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        with torch.set_grad_enabled(self.grad), profile(activities=kinds) as seen:
            self.function(*self.args)
            self.wait()
        return tuple(dict.fromkeys(e.key for e in seen.key_averages()))


def prepared(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    platform: str = "cpu",
    device: Any = None,
    expected: Sequence[str] = (),
    compile_it: bool = False,
    grad: bool = False,
) -> TorchCall:
    """Return `fn(*args)` ready to be timed.

    Args:
        fn: Function of tensors; it returns its result, best written into memory that exists.
        args: Its arguments, on their device.
        platform: `cpu` or `gpu`, for the first device of it.
        device: Another device.
        expected: Names of operations of which at least one must be seen, such as `aten::mm`.
        compile_it: Use `torch.compile`; the first call is made here and timed apart.
        grad: Whether gradients are recorded.
    """
    import torch

    where = device or device_of(platform)
    call = TorchCall(function=fn, args=tuple(args), device=where, expected=tuple(expected), grad=grad)
    if compile_it:
        call.function = torch.compile(fn)
        begin = time.perf_counter()
        call.run(1)
        call.compile_s = time.perf_counter() - begin
    return call
