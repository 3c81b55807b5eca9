"""Costs of recorded reductions, scans, softmax and losses."""

from __future__ import annotations

import math

from mansard.core import Demand
from mansard.operators.counting import Elements
from mansard.operators.counting import demand as make_demand
from mansard.operators.elementwise import elementwise
from mansard.operators.reduction import (
    PAIRWISE_LOSSES,
    REDUCTIONS,
    nll_loss,
    nll_loss_backward,
    pairwise_loss,
    pairwise_loss_backward,
    reduction,
    scan,
    softmax,
    softmax_backward,
)
from mansard.trace.aten.arguments import Arguments, NotRecordedError, Tensor, broadcast, category, result_type
from mansard.trace.aten.call import AtenCost
from mansard.trace.aten.making import GRAIN_SIZE, Handler, Scope, by_grain, work


def _axes(args: Arguments, i: int, x: Tensor) -> list[int]:
    """The dimensions that argument `i` names; all of them where it is empty."""
    text = args.text(i)
    if text in ("", "[]"):
        return list(range(len(x.shape)))
    return [d % len(x.shape) if x.shape else 0 for d in args.integers(i)]


def _kept(x: Tensor, axes: list[int]) -> float:
    return float(math.prod(d for i, d in enumerate(x.shape) if i not in axes))


def _reduced(
    args: Arguments, x: Tensor, outputs: float, dtype: str, *, name: str = "", indices: bool = False, results: int = 1
) -> AtenCost:
    """The cost of a reduction to `results` times `outputs` numbers of `dtype`."""
    flop, special = REDUCTIONS[name or args.base]
    allocates = not args.in_place and args.result_given(1) is None
    scope: Scope = by_grain(x.elements, GRAIN_SIZE - 1)
    if args.base in ("norm", "linalg_vector_norm", "argmax", "argmin") and outputs == 1:
        scope = "core"
    return work(
        "reduction",
        reduction(
            elements=x.elements, outputs=outputs * results, dtype=x.dtype, output=dtype, indices=indices, flop_per_element=flop,
            transcendental_per_element=special, stored=x.stored,
        ),
        fresh=((outputs * results, dtype), *(((outputs, "i64"),) if indices else ())) if allocates else (),
        scope=scope,
        formula=f"{x.elements:.0f} elements to {outputs:.0f}",
    )  # fmt: skip


def sum_like(args: Arguments) -> AtenCost:
    """sum, mean, prod and their kind: (self, dtype) or (self, dims, keepdim, dtype)."""
    x = args.tensor(0)
    whole = args.count < 3
    outputs = 1.0 if whole else _kept(x, _axes(args, 1, x))
    named = args.scalar_type(1 if whole else 3)
    given = args.result_given(1)
    dtype = named or (given.dtype if given is not None else x.dtype)
    if category(dtype) < 2 and named is None and given is None and args.base in ("sum", "nansum", "prod"):
        dtype = "i64"
    return _reduced(args, x, outputs, dtype)


def extreme(args: Arguments) -> AtenCost:
    """max and min: of everything, along a dimension with positions, or of two tensors."""
    x = args.tensor(0)
    if args.count == 1:
        return _reduced(args, x, 1.0, x.dtype)
    if args.is_tensor(1):
        if not args.tensor(1).shape and x.shape and args.count == 2:
            return _reduced(args, x, 1.0, x.dtype)
        return _pair(args, x)
    return _reduced(args, x, _kept(x, _axes(args, 1, x)), x.dtype, indices=True)


def _pair(args: Arguments, x: Tensor) -> AtenCost:
    """The larger or smaller of two tensors."""
    y = args.tensor(1)
    result = Tensor(broadcast([x.shape, y.shape]), result_type(args, (0, 1)))
    wanted = elementwise(
        elements=result.elements, inputs=[x.operand, y.operand], dtype=result.dtype, output=result.dtype
    )
    fresh = () if args.result_given(2) is not None else ((result.elements, result.dtype),)
    return work(
        "elementwise", wanted, fresh=fresh, scope=by_grain(result.elements), formula="one comparison per result"
    )


def arg_extreme(args: Arguments) -> AtenCost:
    """argmax and argmin."""
    x = args.tensor(0)
    return _reduced(args, x, _kept(x, _axes(args, 1, x)), "i64")


def along(args: Arguments) -> AtenCost:
    """Reductions that keep the type: (self, dims, ...)."""
    x = args.tensor(0)
    return _reduced(args, x, 1.0 if args.count == 1 else _kept(x, _axes(args, 1, x)), x.dtype)


def both_extremes(args: Arguments) -> AtenCost:
    """Minimum and maximum."""
    x = args.tensor(0)
    return _reduced(args, x, _kept(x, _axes(args, 1, x)), x.dtype, results=2)


def truth(args: Arguments) -> AtenCost:
    """any and all."""
    x = args.tensor(0)
    outputs = 1.0 if args.count == 1 or args.is_tensor(1) else _kept(x, _axes(args, 1, x))
    return _reduced(args, x, outputs, "bool")


def counted(args: Arguments) -> AtenCost:
    """count_nonzero."""
    x = args.tensor(0)
    return _reduced(args, x, _kept(x, _axes(args, 1, x)), "i64")


def spread(args: Arguments) -> AtenCost:
    """Variance and standard deviation, with or without the mean."""
    x = args.tensor(0)
    whole = args.count < 3
    outputs = 1.0 if whole else _kept(x, _axes(args, 1, x))
    return _reduced(args, x, outputs, x.dtype, results=2 if args.base.endswith("_mean") else 1)


def vector_norm(args: Arguments) -> AtenCost:
    """linalg_vector_norm(self, ord, dims, keepdim, dtype) and norm(self, p, dims, keepdim)."""
    x = args.tensor(0)
    outputs = 1.0 if args.count < 3 else _kept(x, _axes(args, 2, x))
    return _reduced(args, x, outputs, args.scalar_type(4) or x.dtype, name="norm")


def selected(args: Arguments) -> AtenCost:
    """median, mode and kthvalue along a dimension, with positions; the median of everything without."""
    x = args.tensor(0)
    if args.count == 1:
        return _reduced(args, x, 1.0, x.dtype)
    return _reduced(args, x, _kept(x, _axes(args, 2 if args.base == "kthvalue" else 1, x)), x.dtype, indices=True)


def equal(args: Arguments) -> AtenCost:
    """Whether two tensors are equal."""
    x, y = args.tensor(0), args.tensor(1)
    wanted = make_demand(reads=[x.operand, y.operand], vector=(x.elements, x.dtype))
    return work("reduction", wanted, scope=by_grain(x.elements), formula="two operands compared")


def cumulative(args: Arguments) -> AtenCost:
    """cumsum, cumprod and logcumsumexp."""
    x = args.tensor(0)
    dtype = args.scalar_type(2) or ("i64" if category(x.dtype) < 2 and args.base != "logcumsumexp" else x.dtype)
    wanted = scan(elements=x.elements, dtype=x.dtype, output=dtype, transcendental=args.base == "logcumsumexp")
    return _scan(args, x, wanted, ((x.elements, dtype),))


def cumulative_extreme(args: Arguments) -> AtenCost:
    """cummax and cummin, with positions."""
    x = args.tensor(0)
    wanted = scan(elements=x.elements, dtype=x.dtype, indices=True)
    return _scan(args, x, wanted, ((x.elements, x.dtype), (x.elements, "i64")))


def _scan(args: Arguments, x: Tensor, wanted: Demand, fresh: tuple[Elements, ...]) -> AtenCost:
    lines = x.elements / x.shape[args.integer(1)] if x.shape and x.elements else 1.0
    allocates = not args.in_place and args.result_given(2) is None
    return work(
        "reduction", wanted, fresh=fresh if allocates else (), scope=by_grain(x.elements),
        formula=f"{lines:.0f} scans of {x.elements / max(lines, 1.0):.0f}",
    )  # fmt: skip


def _rows(args: Arguments, x: Tensor, i: int) -> tuple[float, float]:
    """Rows and columns of a softmax along the dimension that argument `i` names."""
    if not x.shape:
        return 1.0, 1.0
    columns = float(x.shape[args.integer(i)])
    return (x.elements / columns if columns else 0.0), columns


def _row_scope(rows: float, columns: float) -> Scope:
    """Rows are shared among threads in pieces. Source: aten/src/ATen/native/cpu/SoftMaxKernel.cpp, grain size."""
    return by_grain(rows, max(1.0, GRAIN_SIZE // (16 * max(columns, 1.0))))


def softmax_forward(args: Arguments) -> AtenCost:
    """_softmax and _log_softmax (self, dim, half_to_float)."""
    x = args.tensor(0)
    rows, columns = _rows(args, x, 1)
    dtype = "f32" if args.text(2) == "True" else x.dtype
    wanted = softmax(
        rows=rows, columns=columns, dtype=x.dtype, output=dtype, log=args.base == "_log_softmax", stored=x.stored
    )
    fresh = () if args.result_given(3) is not None else ((x.elements, dtype),)
    return work(
        "softmax", wanted, fresh=fresh, scope=_row_scope(rows, columns), formula=f"{rows:.0f} rows of {columns:.0f}"
    )


def masked_softmax(args: Arguments) -> AtenCost:
    """_masked_softmax(self, mask, dim, type)."""
    x, mask = args.tensor(0), args.tensor(1)
    rows, columns = _rows(args, x, 2) if args.text(2) else (x.elements / x.shape[-1], float(x.shape[-1]))
    wanted = softmax(rows=rows, columns=columns, dtype=x.dtype) + make_demand(reads=[mask.operand])
    return work(
        "softmax",
        wanted,
        fresh=((x.elements, x.dtype),),
        scope=_row_scope(rows, columns),
        formula=f"{rows:.0f} rows of {columns:.0f}",
    )


def softmax_gradient(args: Arguments) -> AtenCost:
    """_softmax_backward_data and _log_softmax_backward_data (grad, output, dim, type)."""
    grad, y = args.tensor(0), args.tensor(1)
    rows, columns = _rows(args, y, 2)
    dtype = args.scalar_type(3) or y.dtype
    wanted = softmax_backward(
        rows=rows, columns=columns, dtype=grad.dtype, output=dtype, log=args.base.startswith("_log")
    )
    fresh = () if args.result_given(4) is not None else ((y.elements, dtype),)
    return work(
        "softmax", wanted, fresh=fresh, scope=_row_scope(rows, columns), formula=f"{rows:.0f} rows of {columns:.0f}"
    )


def nll_forward(args: Arguments) -> AtenCost:
    """nll_loss_forward and nll_loss2d_forward (self, target, weight, reduction, ignored)."""
    x, target = args.tensor(0), args.tensor(1)
    reduced = args.text(3) != "0"
    wanted = nll_loss(rows=target.elements, dtype=x.dtype, reduced=reduced, weighted=args.is_tensor(2))
    fresh = ((1.0 if reduced else target.elements, x.dtype), (1.0, x.dtype))
    return work(
        "reduction", wanted, fresh=fresh, scope="core", formula=f"one number of each of {target.elements:.0f} rows read"
    )


def nll_gradient(args: Arguments) -> AtenCost:
    """nll_loss_backward and nll_loss2d_backward (grad, self, target, ...)."""
    x, target = args.tensor(1), args.tensor(2)
    classes = x.elements / target.elements if target.elements else 0.0
    wanted = nll_loss_backward(rows=target.elements, classes=classes, dtype=x.dtype)
    return work(
        "elementwise",
        wanted,
        fresh=((x.elements, x.dtype),),
        scope=by_grain(x.elements),
        formula="zeros, one number per row",
    )


def loss_forward(args: Arguments) -> AtenCost:
    """Losses between two tensors (self, target, [weight,] reduction, ...)."""
    x = args.tensor(0)
    weighted = args.base == "binary_cross_entropy"
    reduced = args.text(3 if weighted else 2) != "0"
    wanted = pairwise_loss(
        elements=x.elements, dtype=x.dtype, name=args.base, reduced=reduced, weighted=weighted and args.is_tensor(2)
    )
    fresh = ((1.0 if reduced else x.elements, x.dtype),)
    return work(
        "reduction", wanted, fresh=fresh, scope=by_grain(x.elements), formula="predictions and targets read once"
    )


def loss_gradient(args: Arguments) -> AtenCost:
    """Their gradients (grad, self, target, ...)."""
    grad, x = args.tensor(0), args.tensor(1)
    name = args.base.removesuffix("_backward")
    if name not in PAIRWISE_LOSSES:
        raise NotRecordedError(f"{args.call.name}: no cost function for this loss")
    wanted = pairwise_loss_backward(elements=x.elements, dtype=x.dtype, name=name, gradients=grad.stored)
    fresh = () if args.result_given(3) is not None else ((x.elements, x.dtype),)
    return work(
        "elementwise", wanted, fresh=fresh, scope=by_grain(x.elements), formula="predictions and targets read once"
    )


def diagonal_sum(args: Arguments) -> AtenCost:
    """trace(self): the sum of the diagonal."""
    x = args.tensor(0)
    elements = float(min(x.shape))
    wanted = reduction(elements=elements, outputs=1.0, dtype=x.dtype)
    return work("reduction", wanted, fresh=((1.0, x.dtype),), scope="core", formula=f"{elements:.0f} elements to 1")


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("sum", "nansum", "mean", "nanmean", "prod"), sum_like),
    **dict.fromkeys(("max", "min"), extreme),
    **dict.fromkeys(("argmax", "argmin"), arg_extreme),
    **dict.fromkeys(("amax", "amin", "logsumexp"), along),
    **dict.fromkeys(("any", "all"), truth),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), spread),
    **dict.fromkeys(("norm", "linalg_vector_norm"), vector_norm),
    **dict.fromkeys(("median", "nanmedian", "mode", "kthvalue"), selected),
    "aminmax": both_extremes, "count_nonzero": counted, "equal": equal, "trace": diagonal_sum,
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), cumulative),
    **dict.fromkeys(("cummax", "cummin"), cumulative_extreme),
    **dict.fromkeys(("_softmax", "_log_softmax"), softmax_forward),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), softmax_gradient),
    "_masked_softmax": masked_softmax,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), nll_forward),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), nll_gradient),
    **dict.fromkeys((n for n in PAIRWISE_LOSSES if n != "l1_loss"), loss_forward),
    **dict.fromkeys((f"{n}_backward" for n in PAIRWISE_LOSSES if n != "l1_loss"), loss_gradient),
}  # fmt: skip
