"""The small operators: operands, demand, an f64 reference of some rows, and the function in JAX and in PyTorch.

Frameworks are imported inside the functions. 16-bit and 8-bit operands are computed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import Demand
from mansard.core.errors import UsageError
from mansard.measure.benchmarks import block_parts
from mansard.measure.benchmarks.block_parts import EPSILON
from mansard.operators.elementwise import ARITHMETIC, elementwise, fused_gate, fused_gate_backward, rope
from mansard.operators.normalisation import rms_norm, rms_norm_backward
from mansard.operators.quantisation import quantise

Array = npt.NDArray[Any]
#: Largest finite magnitude of a type that values are scaled into. Source: OCP FP8 and Microscaling Formats specifications.
LARGEST: dict[str, float] = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0, "f4_e2m1": 6.0, "i8": 127.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One input: its name, shape and element type; `by_row` (`by_column`) if row i of the results needs row (column) i of it alone."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    by_row: bool = True
    by_column: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one result is compared: its type; `summed` over this many terms; `whole` if it is no matrix of rows."""

    dtype: str
    summed: int | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One small operator.

    Args:
        operands, results: What goes in and comes out.
        demand: Compulsory bytes and customary operations.
        reference: Results from operands in f64, of any rows of those that go by rows.
        in_jax, in_torch: Makers of the function.
        rows: Rows of what goes by rows.
        torch_out: Whether the PyTorch function takes `out=`, so that no new memory is touched.
        facts: What a reader must know.
    """

    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    demand: Demand
    reference: Callable[..., tuple[Array, ...]]
    in_jax: Callable[[], Callable[..., Any]]
    in_torch: Callable[[], Callable[..., Any]]
    rows: int
    torch_out: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


def _sigmoid(x: Array) -> Array:
    out: Array = 1.0 / (1.0 + np.exp(-x))
    return out


def gate(rows: int, width: int, dtype: str, *, packed: bool) -> Operator:
    """Return silu(a) * b; `packed` takes both halves from one (rows, 2 width) operand, as SwiGLU does."""

    def reference(*x: Array) -> tuple[Array, ...]:
        a, b = np.split(x[0], 2, axis=-1) if packed else x
        return (a * _sigmoid(a) * b,)

    def in_jax() -> Callable[..., Any]:
        import jax

        jnp: Any = jax.numpy

        def run(*x: Any) -> Any:
            a, b = jnp.split(x[0], 2, axis=-1) if packed else x
            return (jax.nn.silu(a.astype(jnp.float32)) * b.astype(jnp.float32)).astype(x[0].dtype)

        return run

    def in_torch() -> Callable[..., Any]:
        import torch

        def run(*x: Any) -> Any:
            a, b = x[0].chunk(2, dim=-1) if packed else x
            return torch.nn.functional.silu(a) * b

        return run

    shapes = [("x", (rows, 2 * width))] if packed else [("x", (rows, width)), ("y", (rows, width))]
    return Operator(
        operands=tuple(Operand(name=name, shape=shape, dtype=dtype) for name, shape in shapes),
        results=(Result(dtype=dtype),),
        demand=fused_gate(elements=float(rows) * width, dtype=dtype),
        reference=reference,
        in_jax=in_jax,
        in_torch=in_torch,
        rows=rows,
    )


def gate_backward(rows: int, width: int, dtype: str) -> Operator:
    """Return the gradient of silu(a) * b for a (rows, 2 width) operand."""

    def reference(x: Array, g: Array) -> tuple[Array, ...]:
        a, b = np.split(x, 2, axis=-1)
        s = _sigmoid(a)
        return (np.concatenate([g * b * s * (1.0 + a * (1.0 - s)), g * a * s], axis=-1),)

    forward = gate(rows, width, dtype, packed=True)
    return Operator(
        operands=(*forward.operands, Operand(name="gradient", shape=(rows, width), dtype=dtype)),
        results=(Result(dtype=dtype),),
        demand=fused_gate_backward(elements=float(rows) * width, dtype=dtype),
        reference=reference,
        in_jax=lambda: _jax_gradient(forward.in_jax(), 1),
        in_torch=lambda: _torch_gradient(forward.in_torch(), 1),
        rows=rows,
    )


def norm(rows: int, width: int, dtype: str) -> Operator:
    """Return x / rms(x) * w over rows."""

    def reference(x: Array, w: Array) -> tuple[Array, ...]:
        return (block_parts.norm(x, w),)

    def in_torch() -> Callable[..., Any]:
        import torch

        return lambda x, w: torch.nn.functional.rms_norm(x, (width,), w, EPSILON)

    return Operator(
        operands=(
            Operand(name="x", shape=(rows, width), dtype=dtype),
            Operand(name="weight", shape=(width,), dtype=dtype, by_row=False),
        ),
        results=(Result(dtype=dtype),),
        demand=rms_norm(rows=rows, columns=width, dtype=dtype),
        reference=reference,
        in_jax=lambda: block_parts.jax_norm,
        in_torch=in_torch,
        rows=rows,
    )


def norm_backward(rows: int, width: int, dtype: str) -> Operator:
    """Return the gradients of x / rms(x) * w by x and w; the second is a sum over rows."""

    def reference(x: Array, w: Array, g: Array) -> tuple[Array, ...]:
        r = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON)
        gw = g * w
        dx = r * (gw - x * r * r * np.mean(gw * x, axis=-1, keepdims=True))
        return dx, np.sum(g * x * r, axis=0)

    forward = norm(rows, width, dtype)
    return Operator(
        operands=(*forward.operands, Operand(name="gradient", shape=(rows, width), dtype=dtype)),
        results=(Result(dtype=dtype), Result(dtype=dtype, summed=rows, whole=True)),
        demand=rms_norm_backward(rows=rows, columns=width, dtype=dtype),
        reference=reference,
        in_jax=lambda: _jax_gradient(forward.in_jax(), 2),
        in_torch=lambda: _torch_gradient(forward.in_torch(), 2),
        rows=rows,
    )


def sigmoid(rows: int, width: int, dtype: str, *, backward: bool = False) -> Operator:
    """Return 1 / (1 + exp(-x)), or its gradient from x and the incoming one."""

    def reference(*x: Array) -> tuple[Array, ...]:
        s = _sigmoid(x[0])
        return (x[1] * s * (1.0 - s) if backward else s,)

    def forward_jax() -> Callable[..., Any]:
        import jax

        return lambda x: jax.nn.sigmoid(x.astype(jax.numpy.float32)).astype(x.dtype)

    def forward_torch() -> Callable[..., Any]:
        import torch

        function: Callable[..., Any] = torch.sigmoid
        return function

    elements = float(rows) * width
    flop, special = ARITHMETIC["sigmoid"]
    if backward:  # the sigmoid again, because x was kept and not the result
        flop += ARITHMETIC["sigmoid_backward"][0]
    names = ("x", "gradient") if backward else ("x",)
    return Operator(
        operands=tuple(Operand(name=name, shape=(rows, width), dtype=dtype) for name in names),
        results=(Result(dtype=dtype),),
        demand=elementwise(
            elements=elements,
            inputs=[(elements, dtype)] * len(names),
            dtype=dtype,
            output=dtype,
            flop_per_element=flop,
            transcendental_per_element=special,
        ),
        reference=reference,
        in_jax=(lambda: _jax_gradient(forward_jax(), 1)) if backward else forward_jax,
        in_torch=(lambda: _torch_gradient(forward_torch(), 1)) if backward else forward_torch,
        rows=rows,
        torch_out=not backward,
    )


def add(shape: tuple[int, ...], dtype: str) -> Operator:
    """Return x + y."""
    elements = float(np.prod(shape))

    def in_torch() -> Callable[..., Any]:
        import torch

        function: Callable[..., Any] = torch.add
        return function

    return Operator(
        operands=tuple(Operand(name=name, shape=shape, dtype=dtype) for name in "xy"),
        results=(Result(dtype=dtype),),
        demand=elementwise(elements=elements, inputs=[(elements, dtype)] * 2, dtype=dtype, output=dtype),
        reference=lambda x, y: (x + y,),
        in_jax=lambda: lambda x, y: x + y,
        in_torch=in_torch,
        rows=shape[0],
        torch_out=True,
    )


def quantisation(rows: int, width: int, dtype: str, output: str, *, static: bool, transposed: bool) -> Operator:
    """Return values in a narrow type and f32 scales with values * scale = x.

    Args:
        rows, width: Shape of the operand.
        dtype, output: Its type, and the narrow one.
        static: One scale is given (a sixtieth of the largest magnitude of the type, for data of standard deviation 1
            that no draw exceeds by more than sixfold: nothing is cut); else each row gets its own.
        transposed: The operand is transposed first, so the scales are those of its columns.

    Raises:
        UsageError: the narrow type is none of those known here.
    """
    if output not in LARGEST:
        raise UsageError(f"no range is known for quantisation to {output}", hint=", ".join(LARGEST))
    largest = LARGEST[output]
    fixed = 6.0 / largest
    whole = output == "i8"

    def reference(x: Array) -> tuple[Array, ...]:
        y = x.T if transposed else x
        if static:
            return (np.clip(y / fixed, -largest, largest),)
        scale = np.max(np.abs(y), axis=-1, keepdims=True) / largest
        return y / scale, scale

    def in_jax() -> Callable[..., Any]:
        import jax

        from mansard.measure.points import with_jax

        jnp: Any = jax.numpy
        narrow = with_jax.jax_dtype(output)

        def run(x: Any) -> Any:
            y = (x.T if transposed else x).astype(jnp.float32)
            scale = fixed if static else jnp.max(jnp.abs(y), axis=-1, keepdims=True) / largest
            scaled = jnp.clip(y * (1.0 / scale), -largest, largest)
            values = (jnp.round(scaled) if whole else scaled).astype(narrow)
            return values if static else (values, scale)

        return run

    def in_torch() -> Callable[..., Any]:
        import torch

        from mansard.measure.points import with_torch

        narrow = with_torch.torch_dtype(output)

        def run(x: Any) -> Any:
            y = (x.T.contiguous() if transposed else x).to(torch.float32)
            scale = fixed if static else y.abs().amax(dim=-1, keepdim=True) / largest
            scaled = (y * (1.0 / scale)).clamp(-largest, largest)
            values = (scaled.round() if whole else scaled).to(narrow)
            return values if static else (values, scale)

        return run

    size = (width, rows) if transposed else (rows, width)
    return Operator(
        operands=(Operand(name="x", shape=(rows, width), dtype=dtype, by_row=not transposed, by_column=transposed),),
        results=(Result(dtype=output), *(() if static else (Result(dtype="f32"),))),
        demand=quantise(rows=size[0], columns=size[1], dtype=dtype, output=output, static=static),
        reference=reference,
        in_jax=in_jax,
        in_torch=in_torch,
        rows=size[0],
        facts={"scale": f"given, {fixed:.3g}" if static else "largest magnitude of each row"},
    )


def rotary(batch: int, heads: int, length: int, head_dim: int, dtype: str, *, complex_form: bool) -> Operator:
    """Return queries rotated by their position: pairs as complex numbers, or the two halves of a head as real ones."""
    if head_dim % 2:
        raise UsageError(f"head_dim is {head_dim}; pairs are rotated, so it must be even")
    half = head_dim // 2
    lead = (batch * heads, length)

    def reference(x: Array, *table: Array) -> tuple[Array, ...]:
        if complex_form:
            return (x * table[0],)
        first, second = x[..., :half], x[..., half:]
        cosine, sine = table
        return (np.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1),)

    def in_jax() -> Callable[..., Any]:
        import jax

        jnp: Any = jax.numpy
        if complex_form:
            return lambda x, table: x * table

        def run(x: Any, cosine: Any, sine: Any) -> Any:
            first, second = (part.astype(jnp.float32) for part in jnp.split(x, 2, axis=-1))
            c, s = cosine.astype(jnp.float32), sine.astype(jnp.float32)
            return jnp.concatenate([first * c - second * s, first * s + second * c], axis=-1).astype(x.dtype)

        return run

    def in_torch() -> Callable[..., Any]:
        import torch

        function: Callable[..., Any] = torch.mul
        if complex_form:
            return function

        def run(x: Any, cosine: Any, sine: Any) -> Any:
            first, second = x.chunk(2, dim=-1)
            return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)

        return run

    kind = "c64" if complex_form else dtype
    tables = ("table",) if complex_form else ("cosine", "sine")
    return Operator(
        operands=(
            Operand(name="x", shape=(*lead, half if complex_form else head_dim), dtype=kind),
            *(Operand(name=name, shape=(length, half), dtype=kind, by_row=False) for name in tables),
        ),
        results=(Result(dtype="f32" if complex_form else dtype),),
        # The table is read once for all sequences and heads, so they count as heads of one sequence.
        demand=rope(
            tokens=length,
            heads=float(batch) * heads,
            kv_heads=0,
            head_dim=head_dim,
            dtype="f32" if complex_form else dtype,
        ),
        reference=reference,
        in_jax=in_jax,
        in_torch=in_torch,
        rows=lead[0],
        torch_out=complex_form,
        facts={"form": "complex pairs" if complex_form else "halves of a head"},
    )


def _jax_gradient(function: Callable[..., Any], inputs: int) -> Callable[..., Any]:
    """Gradients by the first `inputs` arguments; the last argument is the incoming gradient."""
    import jax

    def run(*x: Any) -> Any:
        out = jax.vjp(function, *x[:inputs])[1](x[-1])
        return out[0] if inputs == 1 else out

    return run


def _torch_gradient(function: Callable[..., Any], inputs: int) -> Callable[..., Any]:
    import torch

    def run(*x: Any) -> Any:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_(True) for t in x[:inputs]]
            out = torch.autograd.grad(function(*leaves), leaves, x[-1])
        return out[0] if inputs == 1 else tuple(out)

    return run
