"""Costs of recorded matrix products: dense, batched, matrix-vector, grouped, quantised, and the fused ones of compilers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mansard.core import Demand
from mansard.operators.counting import Elements
from mansard.operators.matmul import grouped_matmul, grouped_matmul_weight_gradient, matmul
from mansard.trace.aten.arguments import Arguments, NotRecordedError, Tensor
from mansard.trace.aten.call import AtenCall, AtenCost, Dims
from mansard.trace.aten.making import Handler, not_known, work


def _product(
    args: Arguments, a: Tensor, b: Tensor, *, addend: Tensor | None = None, after: int, dtype_out: str | None = None
) -> AtenCost:
    """C = A B (+ addend) for tensors of two or three dimensions; `after` is where `out=` would stand."""
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise NotRecordedError(f"{args.call.name}: shapes {list(a.shape)} and {list(b.shape)} do not fit a product")
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    batch = math.prod(a.shape[:-2])
    out = dtype_out or a.dtype
    demand = matmul(
        m=m, n=n, k=k, batch=batch, dtype=a.dtype, dtype_b=b.dtype, dtype_out=out,
        a_elements=a.stored, b_elements=b.stored, addend=addend.operand if addend is not None else None,
    )  # fmt: skip
    allocates = not args.in_place and args.result_given(after) is None
    return work(
        "gemm",
        demand,
        fresh=((float(m * n * batch), out),) if allocates else (),
        formula=f"2mnk, m={m} n={n} k={k}" + (f" batch={batch}" if batch != 1 else ""),
    )


def _with_type(args: Arguments, operands: int) -> str | None:
    """The result type of the variants that name one right after their operands."""
    names_type = args.count in (operands + 1, operands + 3) and args.kind(operands) == "Scalar"
    if not names_type or (operands > 2 and args.count == operands + 2):
        return None
    return args.scalar_type(operands)


def mm(args: Arguments) -> AtenCost:
    """mm and bmm."""
    return _product(args, args.tensor(0), args.tensor(1), after=2, dtype_out=_with_type(args, 2))


def addmm(args: Arguments) -> AtenCost:
    """addmm and baddbmm: the first argument is added, unless beta is 0."""
    typed = _with_type(args, 3)
    beta = args.text(4 if typed else 3)
    addend = None if beta in ("0", "0.", "0.0") else args.tensor(0)
    return _product(args, args.tensor(1), args.tensor(2), addend=addend, after=3, dtype_out=typed)


def addmm_activation(args: Arguments) -> AtenCost:
    """addmm with an activation in its epilogue."""
    return _product(args, args.tensor(1), args.tensor(2), addend=args.tensor(0), after=6)


def addbmm(args: Arguments) -> AtenCost:
    """The sum of a batch of products, one matrix as result."""
    c, a, b = (args.tensor(i) for i in range(3))
    batch, m, k = a.shape
    n = b.shape[-1]
    demand = matmul(m=m, n=n, k=k * batch, dtype=a.dtype, a_elements=a.stored, b_elements=b.stored, addend=c.operand)
    fresh = () if args.in_place else ((float(m * n), a.dtype),)
    return work("gemm", demand, fresh=fresh, formula=f"2mnk, m={m} n={n} k={k}, {batch} products summed")


def mv(args: Arguments) -> AtenCost:
    """Matrix times vector."""
    return _matrix_vector(args, args.tensor(0), args.tensor(1), None, after=2)


def addmv(args: Arguments) -> AtenCost:
    """Matrix times vector plus vector."""
    addend = None if args.text(3) in ("0", "0.", "0.0") else args.tensor(0)
    return _matrix_vector(args, args.tensor(1), args.tensor(2), addend, after=3)


def _matrix_vector(args: Arguments, a: Tensor, x: Tensor, addend: Tensor | None, *, after: int) -> AtenCost:
    m, k = a.shape
    demand = matmul(
        m=m,
        n=1,
        k=k,
        dtype=a.dtype,
        a_elements=a.stored,
        b_elements=x.stored,
        addend=addend.operand if addend else None,
    )
    allocates = not args.in_place and args.result_given(after) is None
    return work("gemm", demand, fresh=((float(m), a.dtype),) if allocates else (), formula=f"2mk, m={m} k={k}")


def dot(args: Arguments) -> AtenCost:
    """Inner product of two vectors."""
    x, y = args.tensor(0), args.tensor(1)
    demand = matmul(m=1, n=1, k=x.elements, dtype=x.dtype, a_elements=x.stored, b_elements=y.stored)
    fresh = () if args.result_given(2) is not None else ((1.0, x.dtype),)
    return work("gemm", demand, fresh=fresh, formula=f"2k, k={x.elements:.0f}")


def addr(args: Arguments) -> AtenCost:
    """Outer product of two vectors plus a matrix."""
    c, x, y = (args.tensor(i) for i in range(3))
    m, n = int(x.elements), int(y.elements)
    demand = matmul(m=m, n=n, k=1, dtype=x.dtype, addend=c.operand)
    return work("gemm", demand, fresh=() if args.in_place else ((float(m * n), x.dtype),), formula=f"2mn, m={m} n={n}")


def ger(args: Arguments) -> AtenCost:
    """Outer product of two vectors."""
    x, y = args.tensor(0), args.tensor(1)
    m, n = int(x.elements), int(y.elements)
    return work(
        "gemm", matmul(m=m, n=n, k=1, dtype=x.dtype), fresh=((float(m * n), x.dtype),), formula=f"2mn, m={m} n={n}"
    )


def int_mm(args: Arguments) -> AtenCost:
    """8-bit integers into 32-bit ones."""
    return _product(args, args.tensor(0), args.tensor(1), after=2, dtype_out="i32")


def scaled_mm(args: Arguments) -> AtenCost:
    """8-bit floats with a scale for each operand."""
    a, b = args.tensor(0), args.tensor(1)
    return _product(args, a, b, addend=args.maybe(4), after=8, dtype_out=args.scalar_type(6) or a.dtype)


def weight_int8pack_mm(args: Arguments) -> AtenCost:
    """Activations (m, k) with an 8-bit weight (n, k) and one scale per output."""
    x, w, scales = (args.tensor(i) for i in range(3))
    m, k, n = math.prod(x.shape[:-1]), x.shape[-1], w.shape[0]
    demand = matmul(m=m, n=n, k=k, dtype=x.dtype, dtype_b=w.dtype, b_elements=w.stored, scale_elements=scales.operand)
    return work(
        "gemm",
        demand,
        fresh=((float(m * n), x.dtype),),
        formula=f"2mnk, m={m} n={n} k={k}, 8-bit weight read as stored",
    )


def weight_int4pack_mm(args: Arguments) -> AtenCost:
    """Activations (m, k) with a packed 4-bit weight; scales and zeros are (k / group, n, 2)."""
    x, w, scales = args.tensor(0), args.tensor(1), args.tensor(3)
    if len(scales.shape) != 3:
        raise NotRecordedError(
            f"{args.call.name}: scales of shape {list(scales.shape)} do not tell the width of the result"
        )
    m, k, n = math.prod(x.shape[:-1]), x.shape[-1], scales.shape[1]
    demand = matmul(m=m, n=n, k=k, dtype=x.dtype, dtype_b=w.dtype, b_elements=w.stored, scale_elements=scales.operand)
    return work(
        "gemm", demand, fresh=((float(m * n), x.dtype),), formula=f"2mnk, m={m} n={n} k={k}, packed weight as stored"
    )


def linear_pointwise(args: Arguments) -> AtenCost:
    """Linear layers with an epilogue: X (..., k), weight (n, k), bias."""
    return _linear(args, args.tensor(0), args.tensor(1), args.maybe(2))


def mkl_linear(args: Arguments) -> AtenCost:
    """The same with a packed copy of the weight before the weight."""
    return _linear(args, args.tensor(0), args.tensor(2), args.maybe(3))


def _linear(args: Arguments, x: Tensor, w: Tensor, bias: Tensor | None) -> AtenCost:
    m, k, n = math.prod(x.shape[:-1]), x.shape[-1], w.shape[0]
    if len(w.shape) != 2 or w.shape[1] != k:
        raise NotRecordedError(f"{args.call.name}: a weight of shape {list(w.shape)} does not fit {list(x.shape)}")
    demand = matmul(m=m, n=n, k=k, dtype=x.dtype, b_elements=w.stored, addend=bias.operand if bias else None)
    return work(
        "gemm",
        demand,
        fresh=((float(m * n), x.dtype),),
        formula=f"2mnk, m={m} n={n} k={k}; a fused epilogue is not counted",
    )


def packed_weight(args: Arguments) -> AtenCost:
    """Quantised layers whose weight is an opaque packed object."""
    return not_known(
        "convolution" if args.base.startswith("conv") else "gemm",
        f"{args.call.name}: the shape of the packed weight is not recorded",
        "the shape of the layer",
    )


def grouped_mm(args: Arguments) -> AtenCost:
    """Products of row blocks with one matrix per block (experts), and their gradients."""
    offsets_at = 4 if args.base.startswith("_scaled") else 2
    a, b = args.tensor(0), args.tensor(1)
    offsets = args.maybe(offsets_at)
    out = args.scalar_type(args.count - 1 if args.base.startswith("_scaled") is False else 7) or a.dtype
    if len(a.shape) == 3 and len(b.shape) == 3:
        return _product(args, a, b, after=99, dtype_out=out)
    if offsets is None:
        raise NotRecordedError(f"{args.call.name}: the offsets of the groups were not recorded")
    groups = offsets.shape[0]
    blocks = _blocks(args.inner)
    note = ""
    if len(a.shape) == 2 and len(b.shape) == 3:
        k, n = b.shape[1], b.shape[2]
        rows, touched, note = _rows(blocks, 0, a.shape[0], groups)
        demand = grouped_matmul(rows=rows, n=n, k=k, groups_touched=touched, dtype=a.dtype, groups=offsets.operand)
        results, text = (
            float(a.shape[0] * n),
            f"2 rows n k, rows={rows} n={n} k={k}, {touched} of {groups} groups read{note}",
        )
    elif len(a.shape) == 3 and len(b.shape) == 2:
        m, k = a.shape[1], a.shape[2]
        rows, touched, note = _rows(blocks, 2, b.shape[1], groups)
        demand = grouped_matmul(rows=rows, n=m, k=k, groups_touched=touched, dtype=a.dtype, groups=offsets.operand)
        results, text = (
            float(m * b.shape[1]),
            f"2 m columns k, m={m} columns={rows} k={k}, {touched} of {groups} groups read{note}",
        )
    else:
        m, n = a.shape[0], b.shape[1]
        rows, _, note = _rows(blocks, 1, a.shape[1], groups)
        demand = grouped_matmul_weight_gradient(
            rows=rows, n=n, k=m, groups=groups, dtype=a.dtype, offsets=offsets.operand
        )
        results, text = float(groups * m * n), f"2 m n rows, m={m} n={n} rows={rows}, {groups} results{note}"
    return work("gemm", demand, fresh=((results, out),), formula=text)


def _blocks(inner: Sequence[AtenCall] | None) -> list[tuple[Dims, Dims]] | None:
    """Shapes of the products that were recorded beneath, one per group, or None."""
    if inner is None:
        return None
    calls = [c for c in inner if c.name == "aten::mm"]
    return [(tuple(c.shapes[0]), tuple(c.shapes[1])) for c in calls] or None  # type: ignore[arg-type]


def _rows(blocks: list[tuple[Dims, Dims]] | None, which: int, length: int, groups: int) -> tuple[int, int, str]:
    """Rows that took part, and groups that have some: from the products beneath, else every row and at most one group per row."""
    if blocks is None:
        return length, min(groups, length), "; offsets are not recorded, every row counted"
    sizes = [(a[0], a[1], b[1])[which] for a, b in blocks]
    return sum(sizes), sum(s > 0 for s in sizes), ""


def trilinear(args: Arguments) -> AtenCost:
    """Sum of products of three tensors over named dimensions."""
    return not_known("gemm", f"{args.call.name}: no cost function for a product of three tensors")


def decomposition(args: Arguments) -> AtenCost:
    """Factorisations and solvers."""
    return not_known(
        "other", f"{args.call.name}: no cost function for a matrix factorisation, whose work depends on the driver"
    )


def quantised_product(args: Arguments) -> AtenCost:
    """oneDNN's quantised linear layer: activations first, then the weight among the next tensors."""
    x = args.tensor(0)
    k = x.shape[-1]
    weight = next((t for t in args.tensors(1) if len(t.shape) == 2 and k in t.shape), None)
    if weight is None:
        return packed_weight(args)
    n = int(weight.elements) // k
    m = math.prod(x.shape[:-1])
    demand: Demand = matmul(
        m=m, n=n, k=k, dtype=x.dtype, dtype_b=weight.dtype, dtype_out=x.dtype, b_elements=weight.stored
    )
    fresh: tuple[Elements, ...] = ((float(m * n), x.dtype),)
    return work(
        "gemm",
        demand,
        fresh=fresh,
        formula=f"2mnk, m={m} n={n} k={k}; the result is taken to have the type of the input",
    )


HANDLERS: dict[str, Handler] = {
    "mm": mm, "bmm": mm, "addmm": addmm, "baddbmm": addmm, "addbmm": addbmm, "mv": mv, "addmv": addmv, "dot": dot, "vdot": dot,
    "addr": addr, "ger": ger, "_int_mm": int_mm, "_scaled_mm": scaled_mm, "_addmm_activation": addmm_activation,
    "_weight_int8pack_mm": weight_int8pack_mm, "_weight_int4pack_mm": weight_int4pack_mm,
    "_weight_int4pack_mm_for_cpu": weight_int4pack_mm, "mkldnn_linear": linear_pointwise, "_linear_pointwise": linear_pointwise,
    "_mkl_linear": mkl_linear, "_grouped_mm": grouped_mm, "_scaled_grouped_mm": grouped_mm, "_trilinear": trilinear,
    "_dyn_quant_matmul_4bit": packed_weight,
    **dict.fromkeys(("qlinear_pointwise", "qlinear_prepack"), quantised_product),
    **dict.fromkeys(
        ("linalg_qr", "_linalg_svd", "linalg_svd", "_linalg_eigh", "linalg_eigh", "linalg_eig", "linalg_lu", "linalg_lu_factor_ex",
         "linalg_cholesky_ex", "linalg_inv_ex", "linalg_inv", "_linalg_solve_ex", "linalg_solve", "linalg_solve_triangular", "linalg_lstsq",
         "cholesky_solve", "triangular_solve", "_linalg_det", "linalg_matrix_exp", "lu_unpack", "geqrf", "orgqr"), decomposition),
}  # fmt: skip
