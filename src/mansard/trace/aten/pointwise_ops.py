"""Costs of recorded element-by-element operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mansard.core import Demand
from mansard.operators.elementwise import ARITHMETIC, dropout, elementwise
from mansard.trace.aten.arguments import Arguments, NotRecordedError, Tensor, broadcast, category, result_type
from mansard.trace.aten.call import AtenCost
from mansard.trace.aten.making import Handler, by_grain, names, work, wrapper

ResultRule = Literal["promote", "bool", "real", "first"]


@dataclass(frozen=True, slots=True)
class Pointwise:
    """How an element-by-element operator is counted.

    Args:
        operands: How many leading arguments are operands; a tensor after them is `out=`.
        result: `promote`: the common type; `bool`; `real`: the common type, the default type for integers; `first`.
        skip: Operands that do not take part in the type, such as a condition.
    """

    operands: int
    result: ResultRule = "promote"
    skip: tuple[int, ...] = ()


_UNARY = names(
    "abs neg sign sgn square relu relu6 floor ceil round trunc positive bitwise_not nan_to_num hardtanh leaky_relu hardshrink "
    "softshrink threshold conj_physical frac"
)
_UNARY_REAL = names(
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal tanh sin cos tan asin acos atan sinh cosh asinh acosh atanh erf erfc "
    "erfinv sigmoid silu gelu softplus elu celu selu mish hardswish hardsigmoid lgamma digamma sinc logit i0 angle log_sigmoid_forward"
)
_UNARY_BOOL = names("isnan isinf isfinite isposinf isneginf logical_not signbit")
_BINARY = names(
    "add sub rsub subtract mul multiply maximum minimum fmax fmin remainder fmod floor_divide pow bitwise_and bitwise_or bitwise_xor "
    "bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ __iand__ __ior__ __ilshift__ __irshift__ "
    "copysign igamma igammac polygamma nextafter gcd lcm __ixor__ hypot heaviside xlogy logaddexp logaddexp2 clamp_min clamp_max prelu _prelu_kernel"
)
_BINARY_REAL = names("div divide true_divide atan2 float_power")
_BINARY_BOOL = names("eq ne lt le gt ge logical_and logical_or logical_xor isclose")
_GRADIENTS = names(
    "sigmoid_backward tanh_backward silu_backward gelu_backward threshold_backward leaky_relu_backward hardtanh_backward "
    "hardswish_backward hardsigmoid_backward softplus_backward elu_backward mish_backward hardshrink_backward softshrink_backward "
    "logit_backward"
)

POINTWISE: dict[str, Pointwise] = {
    **{name: Pointwise(1) for name in _UNARY},
    **{name: Pointwise(1, "real") for name in _UNARY_REAL},
    **{name: Pointwise(1, "bool") for name in _UNARY_BOOL},
    **{name: Pointwise(2) for name in _BINARY},
    **{name: Pointwise(2, "real") for name in _BINARY_REAL},
    **{name: Pointwise(2, "bool") for name in _BINARY_BOOL},
    **{name: Pointwise(2) for name in _GRADIENTS},
    "where": Pointwise(3, skip=(0,)),
    "masked_fill": Pointwise(3, "first", skip=(1, 2)),
    "clamp": Pointwise(3),
    "clip": Pointwise(3),
    "lerp": Pointwise(3),
    "addcmul": Pointwise(3),
    "addcdiv": Pointwise(3),
    "log_sigmoid_backward": Pointwise(3),
    "_prelu_kernel_backward": Pointwise(3),
    "rrelu_with_noise": Pointwise(2, "first"),
}

#: What the string arguments, which are not recorded, could change; the smaller count is used.
_EITHER = {"gelu": ("gelu", "gelu_tanh"), "gelu_backward": ("gelu_backward", "gelu_tanh_backward")}


def arithmetic(args: Arguments, name: str) -> tuple[float, float, str]:
    """Return vector FLOP and special functions per element of operator `name`, and the words for the receipt."""
    if name in _EITHER:
        counts = [ARITHMETIC[variant] for variant in _EITHER[name]]
        return (
            min(c[0] for c in counts),
            min(c[1] for c in counts),
            "; which approximation is not recorded, the least is counted",
        )
    if name == "pow":
        return _power(args)
    flop, special = ARITHMETIC.get(name, (1.0, 0.0))
    if name in ("add", "sub", "rsub") and args.text(2) not in ("", "1", "1.", "1.0"):
        flop += 1.0
    if name == "clamp":
        flop = float(sum(bool(args.text(i)) or args.is_tensor(i) for i in (1, 2)))
    return flop, special, ""


def _power(args: Arguments) -> tuple[float, float, str]:
    """Whole and half powers are products and roots; any other is a special function."""
    known = {"2": 1.0, "3": 2.0, "0.5": 1.0, "-0.5": 1.0, "-1": 1.0, "-2": 2.0, "1": 0.0, "0": 0.0}
    text = args.text(1).removesuffix(".")
    if args.kind(1) == "Scalar" and text in known:
        return known[text], 0.0, ""
    return 0.0, 1.0, ""


def pointwise(args: Arguments) -> AtenCost:
    """Return the cost of an element-by-element operator of the table."""
    name = args.base
    if name == "where" and args.count == 1:
        return wrapper("gather")
    rule = POINTWISE[name]
    positions = range(min(rule.operands, args.count))
    operands = [args.tensor(i) for i in positions if args.is_tensor(i)]
    if not operands:
        raise NotRecordedError(f"{args.call.name}: no tensor was recorded", "record_shapes=True")
    given = args.result_given(rule.operands)
    shape = operands[0].shape if args.in_place else broadcast([t.shape for t in operands])
    if given is not None and len(given.shape) >= len(shape):
        shape = given.shape
    computed = result_type(args, [i for i in positions if i not in rule.skip])
    dtype = _result(args, rule, operands, computed, given)
    flop, special, note = arithmetic(args, name)
    result = Tensor(shape, dtype)
    demand = elementwise(
        elements=result.elements,
        inputs=[t.operand for t in operands],
        dtype=computed,
        output=dtype,
        flop_per_element=flop,
        transcendental_per_element=special,
    )
    if category(computed) == 3:
        demand = replace(demand, uncounted=("complex arithmetic",))
    return work(
        "elementwise",
        demand,
        fresh=() if args.in_place or given is not None else ((result.elements, dtype),),
        scope=by_grain(result.elements),
        formula=f"each distinct operand element read once, {result.elements:.0f} results written{note}",
    )


def _result(args: Arguments, rule: Pointwise, operands: list[Tensor], computed: str, given: Tensor | None) -> str:
    """Element type of the result."""
    if args.in_place or rule.result == "first":
        return operands[0].dtype
    if given is not None:
        return given.dtype
    if rule.result == "bool":
        return "bool"
    if rule.result == "real" and category(computed) < 2:
        raise NotRecordedError(
            f"{args.call.name}: the real result of whole numbers takes the default type, which is not recorded",
            "torch.get_default_dtype()",
        )
    if args.base in ("abs", "angle") and computed in ("c64", "c128"):
        return {"c64": "f32", "c128": "f64"}[computed]
    return computed


def native_dropout(args: Arguments) -> AtenCost:
    """Dropout in one operator: result and mask."""
    x = args.tensor(0)
    training = args.text(2) != "False"
    return work(
        "random",
        dropout(elements=x.elements, dtype=x.dtype, training=training),
        fresh=((x.elements, x.dtype), (x.elements, "bool")),
        scope="core",
        formula="input read, result and mask written; drawing the mask is not counted",
    )


def native_dropout_backward(args: Arguments) -> AtenCost:
    """Gradient times mask times scale."""
    grad, mask = args.tensor(0), args.tensor(1)
    demand = elementwise(
        elements=grad.elements,
        inputs=[grad.operand, mask.operand],
        dtype=grad.dtype,
        output=grad.dtype,
        flop_per_element=2.0,
    )
    return work(
        "elementwise",
        demand,
        fresh=((grad.elements, grad.dtype),),
        scope=by_grain(grad.elements),
        formula="g * mask * scale",
    )


def split_heads(args: Arguments) -> AtenCost:
    """_transform_bias_rescale_qkv(qkv, bias, heads): a bias added, queries scaled, three tensors written."""
    x, bias = args.tensor(0), args.tensor(1)
    demand = elementwise(
        elements=x.elements, inputs=[x.operand, bias.operand], dtype=x.dtype, output=x.dtype, flop_per_element=4.0 / 3.0
    )
    return work(
        "elementwise",
        demand,
        fresh=((x.elements, x.dtype),),
        scope=by_grain(x.elements),
        formula="a bias added, a third scaled",
    )


def glu(args: Arguments) -> AtenCost:
    """glu(self, dim): the first half times the sigmoid of the second."""
    x = args.tensor(0)
    results = x.elements / 2.0
    flop, special = ARITHMETIC["glu"]
    demand = elementwise(
        elements=results,
        inputs=[x.operand],
        dtype=x.dtype,
        output=x.dtype,
        flop_per_element=flop,
        transcendental_per_element=special,
    )
    fresh = () if args.result_given(2) is not None else ((results, x.dtype),)
    return work("elementwise", demand, fresh=fresh, scope=by_grain(results), formula="a sigmoid(b)")


def glu_gradient(args: Arguments) -> AtenCost:
    """glu_backward(grad, self, dim)."""
    grad, x = args.tensor(0), args.tensor(1)
    flop, special = ARITHMETIC["glu_backward"]
    demand = elementwise(
        elements=x.elements, inputs=[grad.operand, x.operand], dtype=x.dtype, output=x.dtype, flop_per_element=flop / 2.0,
        transcendental_per_element=special / 2.0,
    )  # fmt: skip
    return work(
        "elementwise",
        demand,
        fresh=((x.elements, x.dtype),),
        scope=by_grain(grad.elements),
        formula="gradients of both halves",
    )


def _into(args: Arguments, dtype: str, flop: float, special: float, formula: str) -> AtenCost:
    """A one-to-one operator on broadcast tensors with a result of another type."""
    operands = args.tensors(0, 2)
    given = args.result_given(2)
    shape = broadcast([t.shape for t in operands])
    result = Tensor(shape, dtype)
    demand: Demand = elementwise(
        elements=result.elements,
        inputs=[t.operand for t in operands],
        dtype=operands[0].dtype,
        output=dtype,
        flop_per_element=flop,
        transcendental_per_element=special,
    )
    fresh = () if given is not None else ((result.elements, dtype),)
    return work("elementwise", demand, fresh=fresh, scope=by_grain(result.elements), formula=formula)


_COMPLEX = {"f32": "c64", "f64": "c128"}


def complex_of(args: Arguments) -> AtenCost:
    """Join real and imaginary parts."""
    return _into(args, _complex_type(args), 0.0, 0.0, "two real parts read, one complex number written")


def polar(args: Arguments) -> AtenCost:
    """Complex numbers from length and angle: two products, a sine and a cosine."""
    return _into(args, _complex_type(args), 2.0, 2.0, "length times cosine and sine of the angle")


def _complex_type(args: Arguments) -> str:
    dtype = args.tensor(0).dtype
    if dtype not in _COMPLEX:
        raise NotRecordedError(f"{args.call.name}: no complex type of {dtype} is known")
    return _COMPLEX[dtype]


def quantize(args: Arguments) -> AtenCost:
    """Scale, round and clamp to an 8-bit type."""
    x = args.tensor(0)
    dtype = args.scalar_type(args.count - 1)
    if dtype is None:
        raise NotRecordedError(f"{args.call.name}: the element type of the result was not recorded")
    demand = elementwise(elements=x.elements, inputs=[x.operand], dtype=x.dtype, output=dtype, flop_per_element=4.0)
    return work(
        "elementwise",
        demand,
        fresh=((x.elements, dtype),),
        scope=by_grain(x.elements),
        formula="x / scale + zero point",
    )


def dequantize(args: Arguments) -> AtenCost:
    """Back to f32: subtract and scale."""
    x = args.tensor(0)
    demand = elementwise(elements=x.elements, inputs=[x.operand], dtype="f32", output="f32", flop_per_element=2.0)
    return work(
        "elementwise",
        demand,
        fresh=((x.elements, "f32"),),
        scope=by_grain(x.elements),
        formula="(q - zero point) * scale",
    )


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(POINTWISE, pointwise),
    "native_dropout": native_dropout,
    "_fused_dropout": native_dropout,
    "native_dropout_backward": native_dropout_backward,
    "complex": complex_of,
    "polar": polar,
    "_transform_bias_rescale_qkv": split_heads,
    "glu": glu,
    "glu_backward": glu_gradient,
    "quantize_per_tensor": quantize,
    "dequantize": dequantize,
}
