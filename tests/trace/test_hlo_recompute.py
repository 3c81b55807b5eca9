"""Activation checkpointing in compiled programs: counted by hand as executed, and without what is computed again."""

from __future__ import annotations

from typing import Any

import pytest

from mansard.core import Demand
from mansard.trace.hlo import ModuleCosts, parse_module
from mansard.trace.hlo.loops import trip_count
from mansard.trace.run import Part

ROWS, WIDTH, LAYERS = 32, 64, 4
#: One product of every layer: 2 x 32 x 64 x 64 x 4 FLOP.
FORWARD = 1_048_576


def matrix_work(costs: ModuleCosts) -> dict[tuple[Part, bool], float]:
    """FLOP of one run of the program by part and by whether they are recomputation, loop bodies times their passes."""
    found: dict[tuple[Part, bool], float] = {}

    def walk(name: str, times: float) -> None:
        home = costs.module.computations[name]
        for instruction in home.instructions.values():
            if instruction.opcode == "while":
                trips = trip_count(instruction, home, costs.module)
                assert isinstance(trips, int)
                walk(instruction.called["body"][0], times * trips)
                continue
            cost = costs.of(instruction.name)
            assert isinstance(cost.demand, Demand)
            flop = sum(cost.demand.flop.values()) * times
            if flop:
                key = (cost.part, cost.recompute)
                found[key] = found.get(key, 0.0) + flop

    walk(costs.module.entry, 1.0)
    return found


def of_training(body: Any, *, around: bool = False, unroll: int = 1) -> dict[tuple[Part, bool], float]:
    """Matrix work of one step of gradient descent on a scan over the layers."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def loss(weights: Any, x: Any) -> Any:
        return jnp.sum(jax.lax.scan(body, x, weights, unroll=unroll)[0] ** 2)

    inner = jax.checkpoint(loss) if around else loss
    step = jax.jit(lambda w, x: w - 0.1 * jax.grad(inner)(w, x))
    weights, x = jnp.ones((LAYERS, WIDTH, WIDTH)), jnp.ones((ROWS, WIDTH))
    return matrix_work(ModuleCosts(parse_module(step.lower(weights, x).compile().as_text())))


def layer(x: Any, w: Any) -> Any:
    import jax.numpy as jnp

    return jnp.tanh(x @ w), None


def test_without_checkpoint_a_step_is_three_times_the_forward() -> None:
    # 6 N tokens: 2 forward, 4 backward
    assert of_training(layer) == {(Part.FORWARD, False): FORWARD, (Part.BACKWARD, False): 2 * FORWARD}


@pytest.mark.parametrize("unroll", [1, 2])
def test_checkpoint_runs_the_forward_again(unroll: int) -> None:
    jax = pytest.importorskip("jax")
    # 8 N tokens executed, 6 N of them the model's
    assert of_training(jax.checkpoint(layer), unroll=unroll) == {
        (Part.FORWARD, False): FORWARD,
        (Part.BACKWARD, True): FORWARD,
        (Part.BACKWARD, False): 2 * FORWARD,
    }


def test_a_nested_checkpoint_runs_it_twice_again() -> None:
    jax = pytest.importorskip("jax")

    def pair(x: Any, ws: Any) -> Any:
        return jax.lax.scan(jax.checkpoint(layer), x, ws)[0], None

    def loss(weights: Any, x: Any) -> Any:
        return jax.numpy.sum(jax.lax.scan(jax.checkpoint(pair), x, weights)[0] ** 2)

    step = jax.jit(lambda w, x: w - 0.1 * jax.grad(loss)(w, x))
    weights = jax.numpy.ones((2, 2, WIDTH, WIDTH))
    text = step.lower(weights, jax.numpy.ones((ROWS, WIDTH))).compile().as_text()
    # 10 N tokens: the outer checkpoint runs the forward of its pair again, and in its backward the inner one does
    assert matrix_work(ModuleCosts(parse_module(text))) == {
        (Part.FORWARD, False): FORWARD,
        (Part.BACKWARD, True): 2 * FORWARD,
        (Part.BACKWARD, False): 2 * FORWARD,
    }


def test_what_is_saved_is_not_computed_again() -> None:
    jax = pytest.importorskip("jax")
    policy = jax.checkpoint_policies.dots_saveable
    found = of_training(jax.checkpoint(layer, policy=policy))
    assert found == {(Part.FORWARD, False): FORWARD, (Part.BACKWARD, False): 2 * FORWARD}


def test_a_recomputation_whose_original_is_gone_is_the_forward() -> None:
    # Only the gradient is asked for and the whole loss is checkpointed: the first forward is dead code, so the products
    # named after the recomputation are the only ones, 6 N tokens in all.
    found = of_training(layer, around=True)
    assert found == {(Part.FORWARD, False): FORWARD, (Part.BACKWARD, False): 2 * FORWARD}


def test_layers_that_xla_merged_again_count_once() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jax.checkpoint(lambda x, w: layer(x, w)[0])(x, w)
        return jnp.sum(x**2)

    step = jax.jit(lambda ws, x: [w - 0.1 * g for w, g in zip(ws, jax.grad(loss)(ws, x), strict=True)])
    weights = [jnp.full((WIDTH, WIDTH), i + 1.0) for i in range(LAYERS)]
    text = step.lower(weights, jnp.ones((ROWS, WIDTH))).compile().as_text()
    # 4 forward, 4 gradients of weights, 3 of inputs (none of x), each 2 x 32 x 64 x 64 = FORWARD / 4
    found = matrix_work(ModuleCosts(parse_module(text)))
    again = found.pop((Part.BACKWARD, True), 0.0)
    assert found == {(Part.FORWARD, False): FORWARD, (Part.BACKWARD, False): 1.75 * FORWARD}
    # XLA on a CPU takes the barriers away before it looks for common expressions; elsewhere it may keep them apart.
    assert again == 0.0


BARRIER = """HloModule m

ENTRY %main (x: f32[32,64], w: f32[64,64]) -> (f32[32,64], f32[32,64]) {
  %x = f32[32,64]{1,0} parameter(0)
  %w = f32[64,64]{1,0} parameter(1)
  %first = f32[32,64]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp()/dot_general"}
  %pair = (f32[32,64]{1,0}, f32[64,64]{1,0}) tuple(%x, %w)
  %held = (f32[32,64]{1,0}, f32[64,64]{1,0}) opt-barrier(%pair)
  %x2 = f32[32,64]{1,0} get-tuple-element(%held), index=0
  %w2 = f32[64,64]{1,0} get-tuple-element(%held), index=1
  %again = f32[32,64]{1,0} dot(%x2, %w2), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/transpose(jvp())/checkpoint/rematted_computation/dot_general"}
  %other = f32[32,64]{1,0} dot(%first, %w2), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/transpose(jvp())/checkpoint/rematted_computation/dot_general"}
  ROOT %both = (f32[32,64]{1,0}, f32[32,64]{1,0}) tuple(%again, %other)
}
"""


@pytest.mark.parametrize("barrier", ["opt-barrier", "optimization-barrier"])
def test_a_barrier_does_not_hide_the_original(barrier: str) -> None:
    costs = ModuleCosts(parse_module(BARRIER.replace("opt-barrier", barrier)))
    assert costs.of("again").recompute
    assert costs.of("again").part is Part.BACKWARD
    # The same name on a product with another operand: the one execution of a second layer.
    assert not costs.of("other").recompute
    assert costs.of("other").part is Part.FORWARD
    assert not costs.of("first").recompute


def test_xla_names_its_own_clones() -> None:
    text = BARRIER.replace("again", "first.remat").replace("/checkpoint/rematted_computation", "")
    costs = ModuleCosts(parse_module(text))
    assert costs.of("first.remat").recompute
    assert not costs.of("other").recompute
