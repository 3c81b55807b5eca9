"""Mixture of experts: dispatch, grouped products and weighted sum, for several ways in which tokens choose experts."""

from __future__ import annotations

from collections.abc import Mapping

from mansard.measure.benchmarks.entry import Entry, chosen, integer, matrix_peak, missing_memory
from mansard.measure.benchmarks.moe_routing import ROUTINGS, executed_factor, moe_demand, moe_shape
from mansard.measure.points.benchmark import Parameter, Params, Prepared, Waived, Where, Work

IMPLEMENTATIONS: Mapping[str, str] = {
    "ragged": "jax", "padded": "jax", "torch-loop": "torch", "torch-grouped": "torch",
}  # fmt: skip


PARAMETERS = (
    integer("tokens", 1024, "tokens"),
    integer("model_dim", 1024, "width of a token"),
    integer("routed_ffn_dim", 512, "inner width of an expert"),
    integer("num_experts", 16, "experts"),
    Parameter(
        name="experts_activated", kind="int", default=2, minimum=1, aliases=("top_k",), text="experts that a token goes to"
    ),
    Parameter(
        name="routing", kind="str", default="uniform", choices=ROUTINGS,
        text="balanced, uniform draws, draws by 1 / rank^zipf_exponent, or all tokens to the same experts",
    ),
    Parameter(name="zipf_exponent", kind="float", default=1.0, minimum=0.0, text="skew of zipf"),
    integer("seed", 0, "of the draws", minimum=0),
    Parameter(name="mode", kind="str", default="fwd", choices=("fwd", "fwd_bwd"), text="forward, or with gradients"),
    Parameter(name="dtype", kind="dtype", default="bf16", text="element type"),
)  # fmt: skip


def _count(params: Params, where: Where) -> Work:
    shape = moe_shape(params)
    sizes = shape.sizes()
    demand = moe_demand(shape, int((sizes > 0).sum()))
    factor = executed_factor(shape, chosen(params, IMPLEMENTATIONS), where.platform, int(sizes.max()))
    return Work(
        demand=demand,
        executed_flop=float(demand.total_flop) * factor,
        headline="flop",
        composite=True,
        peak=matrix_peak(shape.dtype),
        convention=(
            "6 rows width inner FLOP forward, three times that with gradients; weights of experts that get a row are read "
            "once; what is between two products passes through memory"
        ),
    )


def _excuse(params: Params, impl: str, where: Where) -> Waived | None:
    shape = moe_shape(params)
    if impl == "torch-grouped" and shape.dtype not in ("bf16", "f32"):
        return Waived(reason=f"PyTorch's grouped product takes bf16 and f32, not {shape.dtype}", missing="dtype")
    needed = shape.memory_bytes(int(shape.sizes().max()), impl)
    return missing_memory(needed, f"{impl} mixture of this size", where)


def _prepare(params: Params, impl: str, where: Where) -> Prepared:
    from mansard.measure.benchmarks import moe_calls

    shape = moe_shape(params)
    factor = executed_factor(shape, impl, where.platform, int(shape.sizes().max()))
    if IMPLEMENTATIONS[impl] == "torch":
        return moe_calls.in_torch(shape, impl, params, where, factor)
    return moe_calls.in_jax(shape, impl, params, factor)


BENCHMARKS = (
    Entry(
        name="moe",
        area="operators",
        parameters=PARAMETERS,
        implementations=IMPLEMENTATIONS,
        summary="mixture of experts: dispatch, grouped gate, up and down products, weighted sum",
        count=_count,
        make=_prepare,
        excuse=_excuse,
        aliases=("moe_grouped_matmul",),
    ),
)
