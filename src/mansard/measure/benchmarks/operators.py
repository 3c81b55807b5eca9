"""The small operators around the matrix products: what matters is the rate of bytes, never that of FLOP."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mansard.core.dtypes import short_dtype
from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown
from mansard.measure.benchmarks import operators_rows as rows
from mansard.measure.benchmarks.entry import Entry, integer, missing_memory, prepared_jax, prepared_torch
from mansard.measure.benchmarks.operators_rows import Operand, Operator
from mansard.measure.points.benchmark import Check, Parameter, Params, Prepared, Waived, Where, Work
from mansard.measure.points.inputs import checked, random_input, spots

IMPLEMENTATIONS: Mapping[str, str] = {"xla": "jax", "torch": "torch", "torch-compile": "torch"}
_CONVENTION = (
    "each operand read once, each result written once; element-wise operations per element are customs of the field, "
    "so the rate is bytes"
)
_ROWS_CHECKED = 8


_DTYPE = Parameter(name="dtype", kind="dtype", default="bf16", text="element type")
_MODE = Parameter(name="mode", kind="str", default="fwd", choices=("fwd", "bwd"), text="forward or gradients")
_BATCH_DIM = (integer("dim", 4096, "width of the result"), integer("batch", 1024, "rows"), _MODE, _DTYPE)
_M_N = (integer("m", 4096, "rows"), integer("n", 4096, "columns"), _DTYPE)
_QUANT = (
    *_M_N,
    Parameter(name="quant_dtype", kind="dtype", default="f8_e4m3", choices=tuple(rows.LARGEST), text="type written"),
)


def _entry(name: str, parameters: tuple[Parameter, ...], make: Callable[[Params], Operator], summary: str) -> Entry:
    def count(params: Params, _where: Where) -> Work:
        return Work(demand=make(params).demand, headline="bytes", convention=_CONVENTION)

    def excuse(params: Params, impl: str, where: Where) -> Waived | None:
        if impl == "torch-compile" and where.platform == "cpu" and not (shutil.which("g++") or shutil.which("c++")):
            return Waived(reason="torch.compile needs a C++ compiler; none was found", missing="implementation")
        operator = make(params)
        needed = float(operator.demand.bytes) * 2.0  # the chain works on copies of its operands
        return missing_memory(needed, f"{name} of this size", where)

    def prepare(params: Params, impl: str, where: Where) -> Prepared:
        if IMPLEMENTATIONS[impl] == "torch":
            return _in_torch(make(params), impl, params, where)
        return _in_jax(make(params), params)

    return Entry(
        name=name, area="operators", parameters=parameters, implementations=IMPLEMENTATIONS, summary=summary, count=count,
        make=prepare, excuse=excuse,
    )  # fmt: skip


def _in_jax(operator: Operator, params: Params) -> Prepared:
    from mansard.measure.points import with_jax

    inputs = [_made(o, seed, with_jax.array, _jax_complex) for seed, o in enumerate(operator.operands)]
    # XLA:CPU lays out a packed result of four bits otherwise than the argument that its memory would be given as.
    packed = params.get("quant_dtype") is not None and short_dtype(params["quant_dtype"]) == "f4_e2m1"
    call = with_jax.compiled(operator.in_jax(), inputs, reuse=not packed)
    names = [o.name for o in operator.operands]
    facts = {"implementation": "one XLA program", **operator.facts}
    return prepared_jax(
        call, lambda: check(operator, inputs, call.result, with_jax.values), params, names=names, facts=facts
    )


def _in_torch(operator: Operator, impl: str, params: Params, where: Where) -> Prepared:
    from mansard.measure.points import with_torch

    device = with_torch.device_of(where.platform)

    def plain(shape: tuple[int, ...], dtype: str, *, seed: int) -> Any:
        return with_torch.tensor(shape, dtype, seed=seed, device=device)

    def pairs(shape: tuple[int, ...], seed: int) -> Any:
        import torch

        return torch.from_numpy(_complex(shape, seed)).to(device)

    inputs = [_made(o, seed, plain, pairs) for seed, o in enumerate(operator.operands)]
    compiled = impl == "torch-compile"
    function, held = operator.in_torch(), operator.torch_out and not compiled
    if held:
        function = functools.partial(function, out=function(*inputs))
    call = with_torch.prepared(function, inputs, device=device, compile_it=compiled)
    what = (
        "fused by torch.compile"
        if compiled
        else "PyTorch operators one after the other; what is between them is memory traffic"
    )
    made = prepared_torch(
        call,
        lambda: check(operator, inputs, call.result, with_torch.values),
        params,
        shown={o.name: x for o, x in zip(operator.operands, inputs, strict=True)},
        fresh=not held,
        facts={"implementation": what, **operator.facts},
    )
    silent = Unknown("PyTorch counts matrix products alone")
    made.count_by_compiler = lambda: silent if compiled else replace(call.counts(), flop=silent)
    return made


def _made(operand: Operand, seed: int, plain: Callable[..., Any], pairs: Callable[..., Any]) -> Any:
    if operand.dtype == "c64":
        return pairs(operand.shape, seed)
    return plain(operand.shape, operand.dtype, seed=seed)


def _complex(shape: tuple[int, ...], seed: int) -> Any:
    real, imaginary = random_input(shape, seed=2 * seed), random_input(shape, seed=2 * seed + 1)
    return (real + 1j * imaginary).astype(np.complex64)


def _jax_complex(shape: tuple[int, ...], seed: int) -> Any:
    import jax

    return jax.block_until_ready(jax.device_put(_complex(shape, seed)))


def check(operator: Operator, inputs: list[Any], result: Any, values: Callable[[Any], Any]) -> Check:
    """Compare some rows of every result, and what is a sum over rows whole, with the operator in f64."""
    against = "the operator in f64, sampled rows"
    results = list(result) if isinstance(result, tuple | list) else [result]
    if len(results) != len(operator.results):
        return Check(error_ratio=float("inf"), against=f"{len(operator.results)} results; there are {len(results)}")
    chosen = spots(operator.rows, _ROWS_CHECKED)
    by_row = all(o.by_row for o in operator.operands if len(o.shape) > 1 and o.shape[0] == operator.rows)
    sampled = operator.operands[0].by_column or (operator.operands[0].by_row and by_row)

    def part(o: rows.Operand, x: Any) -> Any:
        if o.by_column:
            return values(x[:, chosen])
        return values(x[chosen]) if sampled and o.by_row else values(x)

    wanted = operator.reference(*(part(o, x) for o, x in zip(operator.operands, inputs, strict=True)))
    worst = 0.0
    for index, kind in enumerate(operator.results):
        if kind.whole:
            want = operator.reference(*(values(x) for x in inputs))[index]
            got = values(results[index])
        else:
            want = wanted[index] if sampled else wanted[index][chosen]
            got = values(results[index][chosen])
        worst = max(worst, _compared(got, want, kind, against))
    return Check(error_ratio=worst, against=against)


def _compared(got: Any, want: Any, kind: rows.Result, against: str) -> float:
    if kind.dtype == "i8":  # half a step of 127
        return checked(got / 127.0, want / 127.0, dtype="bf16", against=against).error_ratio
    parts = [(got.real, want.real), (got.imag, want.imag)] if np.iscomplexobj(want) else [(got, want)]
    return max(checked(g, w, dtype=kind.dtype, against=against, products=kind.summed).error_ratio for g, w in parts)


def _dtype(params: Params) -> str:
    return short_dtype(params["dtype"])


def _by_mode(
    forward: Callable[[int, int, str], Operator], backward: Callable[[int, int, str], Operator]
) -> Callable[[Params], Operator]:
    return lambda p: (backward if p["mode"] == "bwd" else forward)(int(p["batch"]), int(p["dim"]), _dtype(p))


def _m_n(make: Callable[[int, int, str], Operator]) -> Callable[[Params], Operator]:
    return lambda p: make(int(p["m"]), int(p["n"]), _dtype(p))


def _double_width(make: Callable[[int, int, str], Operator]) -> Callable[[Params], Operator]:
    """The older SwiGLU names give the width of the operand, twice that of the result."""

    def of(p: Params) -> Operator:
        if int(p["n"]) % 2:
            raise UsageError(f"n is {p['n']}; it is the width of two operands side by side, so it must be even")
        return make(int(p["m"]), int(p["n"]) // 2, _dtype(p))

    return of


def _packed(batch: int, dim: int, dtype: str) -> Operator:
    return rows.gate(batch, dim, dtype, packed=True)


def _apart(m: int, n: int, dtype: str) -> Operator:
    return rows.gate(m, n, dtype, packed=False)


def _sigmoid_backward(batch: int, dim: int, dtype: str) -> Operator:
    return rows.sigmoid(batch, dim, dtype, backward=True)


def _add(m: int, n: int, dtype: str) -> Operator:
    return rows.add((m, n), dtype)


def _quantisation(*, static: bool, transposed: bool) -> Callable[[Params], Operator]:
    return lambda p: rows.quantisation(
        int(p["m"]), int(p["n"]), _dtype(p), short_dtype(p["quant_dtype"]), static=static, transposed=transposed
    )


def _rotary(p: Params) -> Operator:
    return rows.rotary(
        int(p["batch"]), int(p["heads"]), int(p["seq_len"]), int(p["head_dim"]), _dtype(p),
        complex_form=p["form"] == "complex",
    )  # fmt: skip


_ROPE = (
    integer("seq_len", 1024, "positions"),
    integer("head_dim", 128, "length of a head"),
    integer("batch", 32, "sequences"),
    integer("heads", 32, "heads"),
    Parameter(
        name="form", kind="str", default="complex", choices=("complex", "real"),
        text="complex64 pairs as in the published suite, or two halves of a head in dtype",
    ),
    _DTYPE,
)  # fmt: skip

BENCHMARKS = (
    _entry("swiglu", _BATCH_DIM, _by_mode(_packed, rows.gate_backward), "silu(a) * b, forward or gradients"),
    _entry("swiglu_fwd", _M_N, _double_width(_packed), "silu(a) * b; n is the width of a and b side by side"),
    _entry("swiglu_bwd", _M_N, _double_width(rows.gate_backward), "gradients of silu(a) * b; n as in swiglu_fwd"),
    _entry("rmsnorm", _BATCH_DIM, _by_mode(rows.norm, rows.norm_backward), "x / rms(x) * w, forward or gradients"),
    _entry("rmsnorm_fwd", _M_N, _m_n(rows.norm), "x / rms(x) * w"),
    _entry("rmsnorm_bwd", _M_N, _m_n(rows.norm_backward), "gradients of x / rms(x) * w"),
    _entry("sigmoid", _BATCH_DIM, _by_mode(rows.sigmoid, _sigmoid_backward), "1 / (1 + exp(-x)), forward or gradient"),
    _entry("rope", _ROPE, _rotary, "rotary position embedding of queries"),
    _entry("quantization", _QUANT, _quantisation(static=False, transposed=False), "a scale per row, values narrowed"),
    _entry("quantization_static_scaling", _QUANT, _quantisation(static=True, transposed=False), "one scale that is given"),
    _entry("transpose_quantization", _QUANT, _quantisation(static=False, transposed=True), "transposed, then a scale per row"),
    _entry(
        "transpose_quantization_static_scaling", _QUANT, _quantisation(static=True, transposed=True),
        "transposed, one scale that is given",
    ),
    _entry("add", _M_N, _m_n(_add), "x + y of two matrices"),
    _entry("simple_add", (integer("size", 2**20, "elements"), _DTYPE), lambda p: rows.add((int(p["size"]),), _dtype(p)),
           "x + y of two vectors"),
    _entry("inference_add", _M_N, _m_n(_add), "x + y of two matrices"),
    _entry("inference_rmsnorm", _M_N, _m_n(rows.norm), "x / rms(x) * w"),
    _entry("inference_silu_mul", _M_N, _m_n(_apart), "silu(x) * y of two matrices"),
    _entry("inference_sigmoid", _M_N, _m_n(rows.sigmoid), "1 / (1 + exp(-x))"),
)  # fmt: skip
