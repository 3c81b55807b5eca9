"""Memory that a run of a compiled program touches first, worked out by hand and against XLA's own plan."""

from __future__ import annotations

import pytest

from mansard.trace.hlo import ModuleCosts, parse_module
from mansard.trace.hlo.memory import fresh_results

HEAD = "HloModule m, is_scheduled=true{alias}\n\n"
#: f32[1000] is 4000 B.
BODY = """ENTRY %main (p: f32[1000], q: f32[1000]) -> (f32[1000], f32[2000]) {
  %p = f32[1000]{0} parameter(0)
  %q = f32[1000]{0} parameter(1)
  %a = f32[1000]{0} reverse(%p), dimensions={0}
  %b = f32[1000]{0} reverse(%a), dimensions={0}
  %c = f32[3000]{0} concatenate(%b, %p, %q), dimensions={0}
  %view = f32[3000]{0} bitcast(%c)
  %d = f32[1000]{0} slice(%view), slice={[0:1000]}
  %e = f32[1000]{0} reverse(%d), dimensions={0}
  %r = f32[2000]{0} concatenate(%e, %p), dimensions={0}
  ROOT %out = (f32[1000]{0}, f32[2000]{0}) tuple(%q2, %r)
}
"""


def fresh(text: str, alias: str = "") -> dict[str, float]:
    return fresh_results(parse_module(HEAD.format(alias=alias) + text))


def test_first_touch_by_hand() -> None:
    body = BODY.replace("  ROOT", "  %q2 = f32[1000]{0} reverse(%q), dimensions={0}\n  ROOT")
    # a: 4000 live, peak 4000. b: a and b live, 8000. c: b and c live, 4000 + 12000 = 16000, 8000 above the peak.
    # d: c and d live (c through its view), 16000: nothing new. e: d and e. Results have memory of their own.
    assert fresh(body) == {"a": 4000.0, "b": 4000.0, "c": 8000.0, "r": 8000.0, "q2": 4000.0}


def test_a_donated_argument_takes_a_result() -> None:
    body = BODY.replace("  ROOT", "  %q2 = f32[1000]{0} reverse(%q), dimensions={0}\n  ROOT")
    found = fresh(body, alias=", input_output_alias={ {0}: (1, {}, may-alias) }")
    # q2 goes where q was.
    assert found == {"a": 4000.0, "b": 4000.0, "c": 8000.0, "r": 8000.0}


LOOP = """%fused (x: f32[1000]) -> f32[1000] {
  %x = f32[1000]{0} parameter(0)
  ROOT %n = f32[1000]{0} negate(%x)
}

ENTRY %main (p: f32[1000]) -> f32[1000] {
  %p = f32[1000]{0} parameter(0)
  %a = f32[1000]{0} reverse(%p), dimensions={0}
  %b = f32[1000]{0} fusion(%a), kind=KIND, calls=%fused
  %c = f32[1000]{0} fusion(%b), kind=KIND, calls=%fused
  ROOT %r = f32[1000]{0} reverse(%c), dimensions={0}
}
"""


def test_element_wise_work_writes_over_an_operand_that_nothing_reads_later() -> None:
    assert fresh(LOOP.replace("KIND", "kLoop")) == {"a": 4000.0, "r": 4000.0}
    # Other fusions need both at once: b is new, c goes where a was.
    assert fresh(LOOP.replace("KIND", "kCustom")) == {"a": 4000.0, "b": 4000.0, "r": 4000.0}


def test_temporary_memory_is_what_xla_plans() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def loss(weights: list[object], x: object) -> object:
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    step = jax.jit(lambda ws, x: [w - 0.1 * g for w, g in zip(ws, jax.grad(loss)(ws, x), strict=True)])
    compiled = step.lower([jnp.ones((256, 256))] * 4, jnp.ones((1024, 256))).compile()
    costs = ModuleCosts(parse_module(compiled.as_text()))
    entry = costs.module.computations[costs.module.entry]
    total = sum(costs.of(name).fresh_bytes for name in entry.instructions)
    planned = compiled.memory_analysis()
    assert total == pytest.approx(planned.temp_size_in_bytes + planned.output_size_in_bytes, rel=0.15)
