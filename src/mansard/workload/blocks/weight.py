"""Stored tensors, affine maps and norms: the smallest pieces blocks are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Role = Literal["matmul", "embedding", "norm", "bias", "conv", "other", "buffer"]
"""What a tensor is used for: `matmul` multiplies every token, `embedding` is looked up, `buffer` is stored, not learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One stored tensor, or several of one shape.

    Args:
        name: Module path inside its layer, such as `self_attn.q_proj`; biases end in `.bias`.
        shape: `(out, in)` for a matrix.
        role: What it is used for.
        block: The part of the model it is reported under: `attention`, `mlp`, `experts`, `router`, `norm`, ...
        copies: How many such tensors there are (the experts of a layer).
        active: How many of the copies one token uses; all, unless the block routes.
        tied: The tensor is stored elsewhere (a tied head): it multiplies, but is not counted or stored again.
        keep: Quantisation never touches it (a router that is a bare parameter), whatever the exclusion list says.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    block: str
    copies: int = 1
    active: int | None = None
    tied: bool = False
    keep: bool = False

    @property
    def elements(self) -> int:
        """Elements of one copy."""
        return math.prod(self.shape)

    @property
    def params(self) -> int:
        """Learned parameters stored here: 0 for a tied tensor and for a buffer."""
        return 0 if self.tied or self.role == "buffer" else self.elements * self.copies

    @property
    def active_params(self) -> int:
        """The same for the copies that one token uses."""
        copies = self.copies if self.active is None else self.active
        return 0 if self.tied or self.role == "buffer" else self.elements * copies

    @property
    def matmul_params(self) -> int:
        """Elements that multiply: a tied head counts, a look-up does not."""
        return self.elements * self.copies if self.role == "matmul" else 0

    @property
    def active_matmul_params(self) -> int:
        """The same for the copies that one token uses; 2 FLOP each per token."""
        copies = self.copies if self.active is None else self.active
        return self.elements * copies if self.role == "matmul" else 0


def linear(
    name: str, out: int, into: int, block: str, *, bias: bool = False, copies: int = 1, active: int | None = None
) -> tuple[Weight, ...]:
    """Return the tensors of one affine map, `(out, into)` and its bias.

    >>> sum(w.params for w in linear("q_proj", 4, 3, "attention", bias=True))
    16
    """
    matrix = Weight(name=name, shape=(out, into), role="matmul", block=block, copies=copies, active=active)
    if not bias:
        return (matrix,)
    return (matrix, Weight(name=f"{name}.bias", shape=(out,), role="bias", block=block, copies=copies, active=active))


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A normalisation over `width` elements.

    Args:
        kind: `rms` or `layer`.
        bias: Whether it adds a learned bias.
        scale: Whether it has a learned scale at all.
    """

    width: int
    path: str = "norm"
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False
    scale: bool = True

    def weights(self) -> tuple[Weight, ...]:
        """Return the scale and the bias, where there are any."""
        out: tuple[Weight, ...] = ()
        if self.scale:
            out += (Weight(name=self.path, shape=(self.width,), role="norm", block="norm"),)
        if self.bias:
            out += (Weight(name=f"{self.path}.bias", shape=(self.width,), role="norm", block="norm"),)
        return out


def named(weights: tuple[Weight, ...], *parts: str) -> list[Weight]:
    """Return the tensors whose module path ends in one of `parts`, biases included."""
    return [w for w in weights if w.name.removesuffix(".bias").rsplit(".", 1)[-1] in parts]
