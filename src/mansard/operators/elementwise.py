"""Element-by-element operations: arithmetic, activations and their gradients, dropout, rotary embedding."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.core import Demand
from mansard.operators.counting import Count, Elements, demand, number

#: Vector FLOP and special functions per element. Gradients take the incoming gradient and what the forward kept.
#: Worked from the formulas in the PyTorch documentation of each function; derivations of the longer ones:
#: gelu x/2 (1 + erf(x c)): 4 + erf; its gradient g (cdf + x pdf): cdf 3 + erf, pdf 3 + exp, 3 more.
#: gelu_tanh x/2 (1 + tanh(k (x + c x^3))): 8 + tanh; its gradient 17 + tanh.
#: sigmoid 1/(1 + exp(-x)): 3 + exp; silu x/(1 + exp(-x)): 3 + exp; its gradient g s (1 + x (1 - s)): 3 + 5 + exp.
ARITHMETIC: dict[str, tuple[float, float]] = {
    # one operation
    **dict.fromkeys(
        ("add", "sub", "rsub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide", "neg", "abs", "sqrt",
         "rsqrt", "reciprocal", "square", "relu", "relu6", "maximum", "minimum", "fmax", "fmin", "floor", "ceil", "round", "trunc",
         "sign", "sgn", "threshold", "threshold_backward", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isposinf",
         "isneginf", "clamp_min", "clamp_max", "heaviside", "signbit", "hardtanh_backward", "frac", "nextafter", "gcd", "lcm"), (1.0, 0.0)),
    # selection, bits and copies: no arithmetic
    **dict.fromkeys(
        ("where", "masked_fill", "logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not",
         "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__",
         "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__", "copysign", "conj_physical", "real", "imag", "view_as_real_copy"), (0.0, 0.0)),
    # one special function
    **dict.fromkeys(
        ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "erfc", "erfinv", "sin", "cos", "tan", "asin", "acos",
         "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "pow", "float_power", "lgamma", "digamma", "sinc", "i0", "logaddexp",
         "logaddexp2", "hypot", "polygamma", "igamma", "igammac", "mvlgamma", "angle"), (0.0, 1.0)),
    "clamp": (2.0, 0.0), "clip": (2.0, 0.0), "hardtanh": (2.0, 0.0), "nan_to_num": (3.0, 0.0), "remainder": (3.0, 0.0),
    "fmod": (3.0, 0.0), "leaky_relu": (2.0, 0.0), "leaky_relu_backward": (2.0, 0.0), "prelu": (2.0, 0.0), "_prelu_kernel": (2.0, 0.0),
    "_prelu_kernel_backward": (4.0, 0.0), "rrelu_with_noise": (2.0, 0.0), "softshrink": (3.0, 0.0), "hardshrink": (2.0, 0.0),
    "lerp": (3.0, 0.0), "addcmul": (3.0, 0.0), "addcdiv": (3.0, 0.0), "logit": (3.0, 1.0), "xlogy": (1.0, 1.0),
    "sigmoid": (3.0, 1.0), "sigmoid_backward": (3.0, 0.0), "tanh_backward": (3.0, 0.0), "silu": (3.0, 1.0), "silu_backward": (8.0, 1.0),
    "gelu": (4.0, 1.0), "gelu_backward": (9.0, 2.0), "gelu_tanh": (8.0, 1.0), "gelu_tanh_backward": (17.0, 1.0),
    "softplus": (3.0, 2.0), "softplus_backward": (4.0, 1.0), "log_sigmoid_forward": (3.0, 2.0), "log_sigmoid_backward": (6.0, 0.0),
    "elu": (3.0, 1.0), "elu_backward": (3.0, 1.0), "celu": (4.0, 1.0), "selu": (4.0, 1.0), "mish": (3.0, 3.0), "mish_backward": (9.0, 3.0),
    "hardswish": (5.0, 0.0), "hardswish_backward": (5.0, 0.0), "hardsigmoid": (4.0, 0.0), "hardsigmoid_backward": (3.0, 0.0),
    "isclose": (4.0, 0.0), "hardshrink_backward": (2.0, 0.0), "softshrink_backward": (2.0, 0.0), "logit_backward": (3.0, 0.0),
    "rrelu_with_noise_backward": (1.0, 0.0), "glu": (4.0, 1.0), "glu_backward": (7.0, 1.0),
}  # fmt: skip


def elementwise(
    *,
    elements: Count,
    inputs: Sequence[Elements],
    dtype: str,
    output: str | None,
    flop_per_element: float = 1.0,
    transcendental_per_element: float = 0.0,
) -> Demand:
    """Return the demand of an operation on each of `elements` results.

    Args:
        elements: Number of results, after broadcasting.
        inputs: Distinct elements and type of each operand; a broadcast operand is smaller than the result.
        dtype: Type the operation computes in; 16-bit floats are computed in f32.
        output: Type of the result; None where nothing is written.
        flop_per_element: Vector FLOP per result, see `ARITHMETIC`.
        transcendental_per_element: Special functions per result.

    Source: Williams et al., CACM 52(4), 2009 (compulsory traffic); conventions at the top of `counting`.

    A (4, 8) f32 matrix plus a row of 8: 32 + 8 numbers read, 32 written, 32 additions.

    >>> d = elementwise(elements=32, inputs=[(32, "f32"), (8, "f32")], dtype="f32", output="f32")
    >>> d.read_bytes, d.write_bytes, d.vector_flop
    (160.0, 128.0, {'f32': 32.0})
    """
    return demand(
        reads=inputs,
        writes=[] if output is None else [(elements, output)],
        vector=(number(elements) * flop_per_element, dtype),
        transcendental=(number(elements) * transcendental_per_element, dtype),
    )


def dropout(*, elements: Count, dtype: str, mask: str = "bool", training: bool = True) -> Demand:
    """Return the demand of dropout in one pass: draw a mask, scale what is kept.

    Args:
        elements: Number of elements.
        dtype: Element type.
        mask: Type in which the mask is kept for the backward pass.
        training: False for the identity copy of inference.

    Source: Srivastava et al., JMLR 15, 2014; a comparison, a scaling and a product per element. Drawing random numbers
    is integer work and not counted.

    >>> d = dropout(elements=100, dtype="f32")
    >>> d.read_bytes, d.write_bytes, d.vector_flop
    (400.0, 500.0, {'f32': 300.0})
    """
    if not training:
        return demand(reads=[(elements, dtype)], writes=[(elements, dtype)])
    return demand(
        reads=[(elements, dtype)],
        writes=[(elements, dtype), (elements, mask)],
        vector=(3.0 * number(elements), dtype),
        uncounted=("random numbers",),
    )


def rope(
    *, tokens: Count, heads: Count, kv_heads: Count, head_dim: Count, dtype: str, rotary_ratio: float = 1.0
) -> Demand:
    """Return the demand of a fused rotary position embedding on queries and keys, in place.

    Args:
        tokens: Positions, over all sequences.
        heads, kv_heads: Query and key heads.
        head_dim: Length of a head.
        dtype: Element type; sines and cosines are read in the same type.
        rotary_ratio: Share of `head_dim` that is rotated.

    Returns:
        3 vector FLOP per rotated element (two products and an addition); what is rotated is read and written once, one
        sine and one cosine per position and pair is read.

    Source: Su et al., RoFormer, arXiv:2104.09864, equation 34.

    2 tokens, 1 + 1 heads of 4: 16 elements, 48 FLOP; 16 * 4 B + 2 * 4 * 4 B read, 64 B written.

    >>> d = rope(tokens=2, heads=1, kv_heads=1, head_dim=4, dtype="f32")
    >>> d.vector_flop, d.read_bytes, d.write_bytes
    ({'f32': 48.0}, 96.0, 64.0)
    """
    width = number(head_dim) * rotary_ratio
    rotated = number(tokens) * (number(heads) + number(kv_heads)) * width
    return demand(
        reads=[(rotated, dtype), (number(tokens) * width, dtype)],
        writes=[(rotated, dtype)],
        vector=(3.0 * rotated, dtype),
    )


def fused_gate(*, elements: Count, dtype: str, activation: str = "silu") -> Demand:
    """Return the demand of act(a) * b in one pass, as in SwiGLU and GeGLU between their matrix products.

    Args:
        elements: Elements of the result.
        dtype: Element type.
        activation: A name of `ARITHMETIC`.

    Source: Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202.

    >>> fused_gate(elements=10, dtype="bf16").bytes
    60.0
    """
    flop, special = ARITHMETIC[activation]
    return elementwise(
        elements=elements, inputs=[(elements, dtype)] * 2, dtype=dtype, output=dtype,
        flop_per_element=flop + 1.0, transcendental_per_element=special,
    )  # fmt: skip


def fused_gate_backward(*, elements: Count, dtype: str, activation: str = "silu") -> Demand:
    """Return the demand of the gradients of act(a) * b in one pass.

    Args:
        elements: Elements of the forward result.
        dtype: Element type.
        activation: A name of `ARITHMETIC` whose gradient is there too (`silu`, `gelu`, `sigmoid`, ...).

    Returns:
        Reads a, b and the gradient, writes two gradients: the activation again, its gradient, and two products.

    Source: Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202; the chain rule.

    Five operands of 10 bf16; silu 3, its gradient 8, two products: 13 FLOP and 2 special functions each.

    >>> d = fused_gate_backward(elements=10, dtype="bf16")
    >>> d.read_bytes, d.write_bytes, d.vector_flop, d.transcendental
    (60.0, 40.0, {'f32': 130.0}, {'f32': 20.0})
    """
    flop, special = ARITHMETIC[activation]
    gradient_flop, gradient_special = ARITHMETIC[f"{activation}_backward"]
    return demand(
        reads=[(3.0 * number(elements), dtype)],
        writes=[(2.0 * number(elements), dtype)],
        vector=(number(elements) * (flop + gradient_flop + 2.0), dtype),
        transcendental=(number(elements) * (special + gradient_special), dtype),
    )
