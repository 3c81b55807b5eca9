"""Count the matrix FLOP of a JAX function from its jaxpr: products, convolutions, and loops as often as they run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def jaxpr_flop(jaxpr: Any) -> int:
    """Return the FLOP of dot_general and conv_general_dilated, scan bodies times their length.

    Raises:
        ValueError: a `while` with a product inside, whose trip count a jaxpr does not tell.
    """
    total = 0
    for equation in jaxpr.eqns:
        name, shapes = (
            equation.primitive.name,
            [var.aval.shape for var in equation.invars if hasattr(var.aval, "shape")],
        )
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(shapes[0][i] for i in contracted)
        elif name == "conv_general_dilated":
            numbers = equation.params["dimension_numbers"]
            window = math.prod(shapes[1][i] for i in numbers.rhs_spec[1:])
            total += 2 * math.prod(equation.outvars[0].aval.shape) * window
        inner = sum(jaxpr_flop(sub) for sub in inner_jaxprs(equation.params))
        if name == "while" and inner:
            raise ValueError("a while loop with a product inside")
        total += inner * (equation.params["length"] if name == "scan" else 1)
    return total


def inner_jaxprs(params: dict[str, Any]) -> list[Any]:
    found = []
    for value in params.values():
        for item in value if isinstance(value, list | tuple) else [value]:
            item = getattr(item, "jaxpr", item)
            if hasattr(item, "eqns"):
                found.append(item)
    return found


def function_flop(function: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Trace a function and count it."""
    import jax

    return jaxpr_flop(jax.make_jaxpr(lambda *a: function(*a, **kwargs))(*args).jaxpr)
