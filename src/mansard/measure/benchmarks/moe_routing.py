"""Which tokens go to which experts, and what a mixture of experts must then do."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core import Demand
from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.core.errors import UsageError
from mansard.measure.points.benchmark import Params
from mansard.operators.elementwise import elementwise, fused_gate, fused_gate_backward
from mansard.operators.indexing import gather, scatter
from mansard.operators.matmul import grouped_matmul, grouped_matmul_weight_gradient

ROUTINGS = ("balanced", "uniform", "zipf", "one")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape:
    """One mixture of experts with gated feed-forward experts.

    Args:
        tokens, width, inner, experts, active: Tokens, their width, inner width of an expert, experts, experts per token.
        routing: How tokens choose, see `routed_experts`.
        exponent: Of `zipf`.
        seed: Of the choice.
        mode: `fwd` or `fwd_bwd`.
        dtype: Element type.
    """

    tokens: int
    width: int
    inner: int
    experts: int
    active: int
    routing: str
    exponent: float
    seed: int
    mode: str
    dtype: str

    def __post_init__(self) -> None:
        if not 1 <= self.active <= self.experts:
            raise UsageError(
                f"{self.active} experts per token of {self.experts}", hint="at least 1, at most all of them"
            )

    @property
    def rows(self) -> int:
        """Rows that experts work on."""
        return self.tokens * self.active

    def chosen(self) -> npt.NDArray[np.int32]:
        """Return the experts of each token [tokens, active]."""
        return routed_experts(
            self.tokens, self.experts, self.active, routing=self.routing, exponent=self.exponent, seed=self.seed
        )

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the rows of each expert [experts]."""
        return np.bincount(self.chosen().reshape(-1), minlength=self.experts)

    @property
    def weight_bytes(self) -> float:
        """All experts [B]."""
        return 3.0 * self.experts * self.width * float(self.inner) * dtype_bytes(self.dtype)

    def memory_bytes(self, largest: int, impl: str) -> float:
        """What an implementation holds at once, roughly [B]; `largest` is the most rows of one expert."""
        held = self.experts * float(largest) if impl == "padded" else float(self.rows)
        times = 2.5 if self.mode == "fwd_bwd" else 1.0
        rows = held * (2.0 * self.width + 3.0 * self.inner) * dtype_bytes(self.dtype)
        if impl == "ragged":  # XLA for the CPU masks the rows of every expert, in f32
            rows += self.experts * float(self.rows) * max(self.width, self.inner) * 4.0
        return times * (2.0 * self.weight_bytes + rows)


@functools.lru_cache(maxsize=4)
def routed_experts(
    tokens: int, experts: int, active: int, *, routing: str, exponent: float = 1.0, seed: int = 0
) -> npt.NDArray[np.int32]:
    """Return the experts of each token, no expert twice for one token [tokens, active].

    Args:
        tokens, experts, active: Dimensions.
        routing: `balanced`: all experts get equally many rows; `uniform`: each token draws distinct experts; `zipf`: the
            same with weights 1 / rank^exponent; `one`: every token goes to the first `active` experts.
        exponent: Of `zipf`.
        seed: Of the draws.

    >>> routed_experts(3, 4, 2, routing="balanced").tolist()
    [[0, 1], [2, 3], [0, 1]]
    """
    if routing == "balanced":
        return _kept((np.arange(tokens * active) % experts).reshape(tokens, active))
    if routing == "one":
        return _kept(np.tile(np.arange(active), (tokens, 1)))
    if routing not in ROUTINGS:
        raise UsageError(f"routing {routing!r} is not known", hint=", ".join(ROUTINGS))
    rng = np.random.default_rng([13, seed])
    ranks = np.arange(1, experts + 1, dtype=np.float64)
    logits = -exponent * np.log(ranks) if routing == "zipf" else np.zeros(experts)
    # Gumbel's trick: the largest of logit + noise are a draw without replacement with those weights.
    noisy = logits + rng.gumbel(size=(tokens, experts))
    return _kept(np.argsort(-noisy, axis=1)[:, :active])


def _kept(chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """What is remembered between calls must not be written to."""
    out = chosen.astype(np.int32)
    out.setflags(write=False)
    return out


def moe_shape(params: Params) -> MoeShape:
    """Return the shape that parameters describe."""
    return MoeShape(
        tokens=int(params["tokens"]),
        width=int(params["model_dim"]),
        inner=int(params["routed_ffn_dim"]),
        experts=int(params["num_experts"]),
        active=int(params["experts_activated"]),
        routing=str(params["routing"]),
        exponent=float(params["zipf_exponent"]),
        seed=int(params["seed"]),
        mode=str(params["mode"]),
        dtype=short_dtype(params["dtype"]),
    )


def moe_demand(shape: MoeShape, touched: int) -> Demand:
    """Return the demand of dispatch, gate and up products, activation, down product and weighted sum.

    Args:
        shape: The mixture.
        touched: Experts that get any row; only their weights are read.

    Returns: forward 6 rows width inner FLOP; with gradients three times that.

    >>> shape = MoeShape(tokens=4, width=8, inner=16, experts=4, active=2, routing="balanced", exponent=1.0, seed=0,
    ...                  mode="fwd", dtype="f32")
    >>> moe_demand(shape, 4).total_flop
    6144.0
    """
    rows, d, f, dtype = float(shape.rows), shape.width, shape.inner, shape.dtype
    wide = rows * d
    index = [(rows, "i32")]
    sum_inputs = [(wide, dtype), (rows, "f32")]
    total = (
        gather(elements=wide, dtype=dtype, indices=index, table=float(shape.tokens) * d)
        + grouped_matmul(rows=rows, n=2 * f, k=d, groups_touched=touched, dtype=dtype)
        + fused_gate(elements=rows * f, dtype=dtype)
        + grouped_matmul(rows=rows, n=d, k=f, groups_touched=touched, dtype=dtype)
        + elementwise(
            elements=float(shape.tokens) * d,
            inputs=sum_inputs,
            dtype=dtype,
            output=dtype,
            flop_per_element=2.0 * shape.active,
        )
    )
    if shape.mode == "fwd":
        return total
    return (
        total
        + elementwise(
            elements=wide, inputs=[(float(shape.tokens) * d, dtype), (rows, "f32")], dtype=dtype, output=dtype
        )
        + grouped_matmul(rows=rows, n=f, k=d, groups_touched=touched, dtype=dtype)
        + grouped_matmul_weight_gradient(rows=rows, n=d, k=f, groups=shape.experts, dtype=dtype)
        + fused_gate_backward(elements=rows * f, dtype=dtype)
        + grouped_matmul(rows=rows, n=d, k=2 * f, groups_touched=touched, dtype=dtype)
        + grouped_matmul_weight_gradient(rows=rows, n=2 * f, k=d, groups=shape.experts, dtype=dtype)
        + scatter(elements=float(shape.tokens) * d, dtype=dtype, indices=index, accumulate=True, source=(wide, dtype))
    )


def executed_factor(shape: MoeShape, impl: str, platform: str, largest: int) -> float:
    """Return how many times the needed products an implementation does.

    Args:
        shape: The mixture.
        impl: `ragged` on a CPU multiplies every row by every expert and masks (XLA has no grouped product there);
            `padded` fills every expert up to the fullest one; the others do what is needed.
        platform: Where.
        largest: The most rows of one expert.
    """
    if impl == "ragged" and platform == "cpu":
        return float(shape.experts)
    if impl == "padded":
        return shape.experts * float(largest) / shape.rows
    return 1.0
