"""What compiled programs consume: counted by hand, and against the compiler's own count where that is right."""

from __future__ import annotations

from typing import Any

import pytest

from mansard.core import Demand, Unknown
from mansard.trace.hlo import ModuleCosts, parse_module
from mansard.trace.run import Part

HEAD = "HloModule m, num_partitions=2\n\n"
ADD = "%add (x: f32[], y: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n  ROOT %s = f32[] add(%x, %y)\n}\n\n"


def entry(body: str, before: str = "") -> ModuleCosts:
    return ModuleCosts(parse_module(HEAD + ADD + before + "ENTRY %main () -> f32[] {\n" + body + "\n}\n"))


def demand(costs: ModuleCosts, name: str) -> Demand:
    found = costs.of(name).demand
    assert isinstance(found, Demand), found
    return found


P = "  %a = f32[8,64,128]{2,1,0} parameter(0)\n  %b = f32[8,128,32]{2,1,0} parameter(1)\n"


def test_batched_dot() -> None:
    d = demand(
        entry(
            P
            + "  ROOT %d = f32[8,64,32]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
        ),
        "d",
    )
    # 2 x 8 x 64 x 32 x 128
    assert dict(d.flop) == {("f32", "f32"): 4_194_304}
    assert d.read_bytes == 4 * (8 * 64 * 128 + 8 * 128 * 32)
    assert d.write_bytes == 4 * 8 * 64 * 32


@pytest.mark.parametrize(
    ("lhs", "out", "key", "flop"),
    [("bf16", "f32", ("bf16", "f32"), 240), ("bf16", "bf16", ("bf16", "f32"), 240), ("s8", "s32", ("i8", "i32"), 240),
     ("f64", "f64", ("f64", "f64"), 240), ("c64", "c64", ("f32", "f32"), 960), ("f8e4m3fn", "f32", ("f8_e4m3", "f32"), 240)],
)  # fmt: skip
def test_dot_by_type(lhs: str, out: str, key: tuple[str, str], flop: float) -> None:
    body = (
        f"  %a = {lhs}[4,6]{{1,0}} parameter(0)\n  %b = {lhs}[6,5]{{1,0}} parameter(1)\n"
        f"  ROOT %d = {out}[4,5]{{1,0}} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    )
    # 2 x 4 x 5 x 6 = 240; a complex product is 4 real ones
    assert dict(demand(entry(body), "d").flop) == {key: flop}


CONV = "  %x = f32[4,32,32,16]{3,2,1,0} parameter(0)\n  %k = f32[3,3,16,32]{3,2,1,0} parameter(1)\n  %g = f32[4,16,16,32]{3,2,1,0} parameter(2)\n"


def test_convolution_and_its_gradients_count_the_same() -> None:
    forward = (
        CONV
        + "  ROOT %c = f32[4,16,16,32]{3,2,1,0} convolution(%x, %k), window={size=3x3 stride=2x2 pad=0_1x0_1}, dim_labels=b01f_01io->b01f"
    )
    data = (
        CONV
        + "  ROOT %c = f32[4,32,32,16]{3,2,1,0} convolution(%g, %k), window={size=3x3 pad=2_1x2_1 lhs_dilate=2x2 rhs_reversal=1x1}, dim_labels=b01f_01oi->b01f"
    )
    filter_ = (
        CONV
        + "  ROOT %c = f32[3,3,16,32]{3,2,1,0} convolution(%x, %g), window={size=16x16 pad=0_1x0_1 rhs_dilate=2x2}, dim_labels=f01b_i01o->01bf"
    )
    # 2 x 4 x 16 x 16 outputs x 32 channels x 9 taps x 16 channels
    for body in (forward, data, filter_):
        assert demand(entry(body), "c").total_flop == 2 * 4 * 16 * 16 * 32 * 9 * 16


def test_grouped_convolution() -> None:
    body = (
        "  %x = f32[4,32,32,16]{3,2,1,0} parameter(0)\n  %k = f32[3,3,1,32]{3,2,1,0} parameter(1)\n"
        "  ROOT %c = f32[4,32,32,32]{3,2,1,0} convolution(%x, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=16"
    )
    assert demand(entry(body), "c").total_flop == 2 * 4 * 32 * 32 * 32 * 9


def test_a_fusion_is_what_it_contains() -> None:
    fused = (
        "%f (p: f32[16,32], q: f32[32,8]) -> f32[16,8] {\n  %p = f32[16,32]{1,0} parameter(0)\n  %q = f32[32,8]{1,0} parameter(1)\n"
        "  %d = f32[16,8]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  %t = f32[16,8]{1,0} tanh(%d)\n  ROOT %m = f32[16,8]{1,0} multiply(%t, %d)\n}\n\n"
    )
    body = "  %a = f32[16,32]{1,0} parameter(0)\n  %b = f32[32,8]{1,0} parameter(1)\n  ROOT %ynn_fusion = f32[16,8]{1,0} fusion(%a, %b), kind=kCustom, calls=%f"
    cost = entry(body, fused).of("ynn_fusion")
    assert isinstance(cost.demand, Demand)
    assert cost.category == "gemm"
    assert cost.demand.total_flop == 2 * 16 * 8 * 32
    assert dict(cost.demand.vector_flop) == {"f32": 128}
    assert dict(cost.demand.transcendental) == {"f32": 128}
    assert (cost.demand.read_bytes, cost.demand.write_bytes) == (4 * (512 + 256), 4 * 128)


def test_a_fused_slice_reads_the_slice_and_an_update_moves_the_update() -> None:
    fused = (
        "%s (p: f32[64,1024], i: s32[]) -> f32[1024] {\n  %p = f32[64,1024]{1,0} parameter(0)\n  %i = s32[] parameter(1)\n"
        "  %c = bf16[64,1024]{1,0} convert(%p)\n  %z = s32[] constant(0)\n"
        "  %d = bf16[1,1024]{1,0} dynamic-slice(%c, %i, %z), dynamic_slice_sizes={1,1024}\n  ROOT %r = bf16[1024]{0} bitcast(%d)\n}\n\n"
        "%u (p: f32[64,1024], v: f32[1024], i: s32[]) -> f32[64,1024] {\n  %p = f32[64,1024]{1,0} parameter(0)\n"
        "  %v = f32[1024]{0} parameter(1)\n  %i = s32[] parameter(2)\n  %z = s32[] constant(0)\n  %n = f32[1024]{0} negate(%v)\n"
        "  %b = f32[1,1024]{1,0} bitcast(%n)\n  ROOT %d = f32[64,1024]{1,0} dynamic-update-slice(%p, %b, %i, %z)\n}\n\n"
    )
    body = (
        "  %a = f32[64,1024]{1,0} parameter(0)\n  %v = f32[1024]{0} parameter(1)\n  %i = s32[] parameter(2)\n"
        "  %slice = bf16[1024]{0} fusion(%a, %i), kind=kLoop, calls=%s\n"
        "  ROOT %update = f32[64,1024]{1,0} fusion(%a, %v, %i), kind=kLoop, calls=%u"
    )
    costs = entry(body, fused)
    one = demand(costs, "slice")
    assert (one.read_bytes, one.write_bytes) == (
        4 * 1024 + 4,
        2 * 1024,
    )  # one row of f32 and the index; one row of bf16
    other = demand(costs, "update")
    assert (other.read_bytes, other.write_bytes) == (4 * 1024 + 4, 4 * 1024)  # the new row and the index; the row


def test_an_update_that_is_not_in_place_moves_everything() -> None:
    fused = (
        "%u (p: f32[64,16], v: f32[1,16], i: s32[]) -> f32[64,16] {\n  %p = f32[64,16]{1,0} parameter(0)\n"
        "  %v = f32[1,16]{1,0} parameter(1)\n  %i = s32[] parameter(2)\n  %z = s32[] constant(0)\n"
        "  %d = f32[64,16]{1,0} dynamic-update-slice(%p, %v, %i, %z)\n  ROOT %n = f32[64,16]{1,0} negate(%d)\n}\n\n"
    )
    body = "  %a = f32[64,16]{1,0} parameter(0)\n  %v = f32[1,16]{1,0} parameter(1)\n  %i = s32[] parameter(2)\n  ROOT %n = f32[64,16]{1,0} fusion(%a, %v, %i), kind=kLoop, calls=%u"
    d = demand(entry(body, fused), "n")
    assert (d.read_bytes, d.write_bytes) == (4 * (1024 + 16 + 1), 4 * 1024)


def test_gather_and_scatter_touch_rows() -> None:
    gather = (
        "  %t = f32[1000,64]{1,0} parameter(0)\n  %i = s32[10,1]{1,0} parameter(1)\n"
        "  ROOT %g = f32[10,64]{1,0} gather(%t, %i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,64}"
    )
    d = demand(entry(gather), "g")
    assert (d.read_bytes, d.write_bytes) == (4 * 640 + 40, 4 * 640)
    scatter = (
        "  %t = f32[1000,64]{1,0} parameter(0)\n  %i = s32[10,1]{1,0} parameter(1)\n  %u = f32[10,64]{1,0} parameter(2)\n"
        "  ROOT %s = f32[1000,64]{1,0} scatter(%t, %i, %u), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%add"
    )
    d = demand(entry(scatter), "s")
    # read: indices, updates, and the old rows to add to; written: the rows
    assert (d.read_bytes, d.write_bytes) == (40 + 2 * 4 * 640, 4 * 640)
    assert dict(d.vector_flop) == {"f32": 640}


def test_reductions_and_sort() -> None:
    body = (
        "  %a = f32[64,128]{1,0} parameter(0)\n  %z = f32[] constant(0)\n"
        "  %r = f32[64]{0} reduce(%a, %z), dimensions={1}, to_apply=%add\n"
        "  %w = f32[64,64]{1,0} reduce-window(%a, %z), window={size=1x2 stride=1x2}, to_apply=%add\n"
        "  ROOT %s = f32[64,128]{1,0} sort(%a), dimensions={1}, to_apply=%add"
    )
    costs = entry(body)
    assert dict(demand(costs, "r").vector_flop) == {"f32": 64 * 127}
    assert dict(demand(costs, "w").vector_flop) == {"f32": 64 * 64}
    assert dict(demand(costs, "s").vector_flop) == {"f32": 64 * 128 * 7}  # log2(128) = 7
    assert [costs.of(n).category for n in ("r", "w", "s")] == ["reduction", "reduction", "sort"]


def test_integer_and_mask_arithmetic_is_named_and_not_counted() -> None:
    body = "  %a = s32[64]{0} parameter(0)\n  %b = s32[64]{0} add(%a, %a)\n  %c = pred[64]{0} compare(%a, %b), direction=LT\n  ROOT %d = pred[64]{0} and(%c, %c)"
    costs = entry(body)
    assert dict(demand(costs, "b").vector_flop) == {}
    assert demand(costs, "b").uncounted == ("integer element arithmetic",)
    assert demand(costs, "d").uncounted == ("logical operations on masks",)


@pytest.mark.parametrize(
    ("text", "sent", "adds"),
    [
        ("f32[1024]{0} all-reduce(%a), replica_groups={{0,1,2,3}}, to_apply=%add", 2 * 3 / 4 * 4096, 768),
        ("f32[4096]{0} all-gather(%a), replica_groups=[1,4]<=[4], dimensions={0}", 3 * 4096, 0),
        (
            "f32[256]{0} reduce-scatter(%a), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add",
            3 / 4 * 4096,
            768,
        ),
        ("f32[1024]{0} all-to-all(%a), replica_groups={{0,1,2,3}}, dimensions={0}", 3 / 4 * 4096, 0),
        ("f32[1024]{0} collective-permute(%a), source_target_pairs={{0,1},{1,0}}", 4096, 0),
        ("f32[1024]{0} all-reduce(%a), replica_groups={}, to_apply=%add", 4096, 512),  # both devices of the program
    ],
)
def test_collectives(text: str, sent: float, adds: float) -> None:
    cost = entry(f"  %a = f32[1024]{{0}} parameter(0)\n  ROOT %c = {text}").of("c")
    assert isinstance(cost.demand, Demand)
    assert cost.category == "collective"
    assert sum(cost.demand.link_bytes.values()) == sent
    assert sum(cost.demand.vector_flop.values()) == adds


@pytest.mark.parametrize(
    ("text", "flop"),
    [
        ('f32[4,5]{1,0} custom-call(%a, %b), custom_call_target="__onednn$matmul"', 240),
        ('(f32[4,5]{1,0}, s8[1024]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", '
         'backend_config={"gemm_backend_config":{"alpha_real":1,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}', 240),
        ('f32[4,6]{1,0} custom-call(%a, %a), custom_call_target="__something_new"', None),
    ],
)  # fmt: skip
def test_library_calls(text: str, flop: float | None) -> None:
    body = f"  %a = f32[4,6]{{1,0}} parameter(0)\n  %b = f32[6,5]{{1,0}} parameter(1)\n  ROOT %c = {text}"
    found = entry(body).of("c").demand
    if flop is None:
        assert isinstance(found, Unknown)
        assert "__something_new" in found.reason
    else:
        assert isinstance(found, Demand)
        assert found.total_flop == flop


def loop(condition: str, step: str, config: str = "") -> str:
    return (
        "%body (s: (s32[], f32[16,16])) -> (s32[], f32[16,16]) {\n  %s.1 = (s32[], f32[16,16]{1,0}) parameter(0)\n"
        "  %i = s32[] get-tuple-element(%s.1), index=0\n  %x = f32[16,16]{1,0} get-tuple-element(%s.1), index=1\n"
        f"  %one = s32[] constant(2)\n  %n = s32[] {step}\n"
        "  %y = f32[16,16]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  ROOT %t = (s32[], f32[16,16]{1,0}) tuple(%n, %y)\n}\n\n"
        "%cond (s: (s32[], f32[16,16])) -> pred[] {\n  %s.2 = (s32[], f32[16,16]{1,0}) parameter(0)\n"
        f"  %j = s32[] get-tuple-element(%s.2), index=0\n  %limit = s32[] constant(20)\n  ROOT %c = pred[] {condition}\n}}\n\n"
        "ENTRY %main (a: f32[16,16]) -> (s32[], f32[16,16]) {\n  %a = f32[16,16]{1,0} parameter(0)\n  %zero = s32[] constant(0)\n"
        "  %init = (s32[], f32[16,16]{1,0}) tuple(%zero, %a)\n"
        f"  ROOT %w = (s32[], f32[16,16]{{1,0}}) while(%init), condition=%cond, body=%body{config}\n}}\n"
    )


@pytest.mark.parametrize(
    ("condition", "step", "config", "trips"),
    [
        ("compare(%j, %limit), direction=LT", "add(%i, %one)", "", 10),
        ("compare(%j, %limit), direction=LE", "add(%i, %one)", "", 11),
        ("compare(%limit, %j), direction=GT", "add(%one, %i)", "", 10),
        ("compare(%j, %limit), direction=NE", "add(%i, %one)", "", 10),
        ("compare(%j, %limit), direction=LT", "multiply(%i, %one)", "", None),
        ("compare(%j, %j), direction=LT", "add(%i, %one)", "", None),
        ("compare(%j, %j), direction=LT", "add(%i, %one)", ', backend_config={"known_trip_count":{"n":"7"}}', 7),
    ],
)
def test_a_loop_counts_all_its_passes(condition: str, step: str, config: str, trips: int | None) -> None:
    costs = ModuleCosts(parse_module(HEAD + loop(condition, step, config)))
    total = costs.of("w").demand
    if trips is None:
        assert isinstance(total, Unknown)
        assert isinstance(costs.total(), Unknown)
    else:
        assert isinstance(total, Demand)
        assert total.total_flop == trips * 2 * 16**3
        assert costs.inside("w") >= {"y", "c"}


def test_branches() -> None:
    def program(second: str) -> ModuleCosts:
        branch = "%b{} (x: f32[16,16]) -> f32[16,16] {{\n  %x{} = f32[16,16]{{1,0}} parameter(0)\n  ROOT %r{} = f32[16,16]{{1,0}} {}\n}}\n\n"
        texts = branch.format(1, 1, 1, "negate(%x1)") + branch.format(2, 2, 2, second)
        body = "  %p = s32[] parameter(0)\n  %a = f32[16,16]{1,0} parameter(1)\n  ROOT %c = f32[16,16]{1,0} conditional(%p, %a, %a), branch_computations={%b1, %b2}"
        return entry(body, texts)

    assert dict(demand(program("negate(%x2)"), "c").vector_flop) == {"f32": 256}
    assert isinstance(program("tanh(%x2)").of("c").demand, Unknown)
    assert not program("tanh(%x2)").of("c").may_be_idle
    assert program("copy(%x2)").of("c").may_be_idle is False
    assert program("bitcast(%x2)").of("c").may_be_idle


def test_a_donated_result_is_not_fresh() -> None:
    text = "HloModule m{}\n\nENTRY %main (a: f32[8]) -> (f32[8], f32[8]) {{\n  %a = f32[8]{{0}} parameter(0)\n  %x = f32[8]{{0}} negate(%a)\n  %y = f32[8]{{0}} exponential(%a)\n  ROOT %t = (f32[8]{{0}}, f32[8]{{0}}) tuple(%x, %y)\n}}\n"
    fresh = ModuleCosts(parse_module(text.format("")))
    assert [fresh.of(n).fresh_bytes for n in "xy"] == [32, 32]
    donated = ModuleCosts(parse_module(text.format(", input_output_alias={ {1}: (0, {}, may-alias) }")))
    assert [donated.of(n).fresh_bytes for n in "xy"] == [32, 0]


def compiled(function: Any, *arguments: Any) -> tuple[ModuleCosts, dict[str, float]]:
    jax = pytest.importorskip("jax")
    program = jax.jit(function).lower(*arguments).compile()
    return ModuleCosts(parse_module(program.as_text())), program.cost_analysis()


def test_against_the_compiler_where_it_is_right() -> None:
    jnp = pytest.importorskip("jax.numpy")
    x, w = jnp.ones((64, 128)), jnp.ones((128, 256))
    for function, arguments in [
        (lambda a, b: a @ b, (x, w)),
        (lambda a, b: jnp.tanh(a @ b) @ b.T, (x, w)),
        (lambda a: (a - a.mean(-1, keepdims=True)) * 2.0, (x,)),
        (lambda a: jnp.exp(a - a.max(-1, keepdims=True)), (x,)),
    ]:
        costs, theirs = compiled(function, *arguments)
        total = costs.total()
        assert isinstance(total, Demand)
        ours = float(total.total_flop) + sum(float(v) for v in total.vector_flop.values())
        assert ours == pytest.approx(theirs["flops"], rel=0.01)
        assert sum(float(v) for v in total.transcendental.values()) == theirs.get("transcendentals", 0)


def test_a_scan_of_ten_products_is_ten_products() -> None:
    pytest.importorskip("jax")
    import jax.numpy as jnp
    from jax import lax

    costs, theirs = compiled(lambda x, w: lax.scan(lambda h, _: (h @ w, None), x, None, length=10)[0],
                             jnp.ones((512, 512)), jnp.ones((512, 512)))  # fmt: skip
    total = costs.total()
    assert isinstance(total, Demand)
    # 10 x 2 x 512^3; the compiler counts the body once
    assert total.total_flop == 2_684_354_560
    assert theirs["flops"] == pytest.approx(268_435_456, rel=0.01)


def test_parts_of_a_training_step() -> None:
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    import optax

    optimizer = optax.adam(1e-3)
    w, x = jnp.ones((64, 32)), jnp.ones((128, 64))

    def step(w: Any, state: Any, x: Any) -> Any:
        loss, grad = jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
        updates, state = optimizer.update(grad, state)
        return optax.apply_updates(w, updates), state, loss

    costs, _ = compiled(step, w, optimizer.init(w), x)
    flop = dict.fromkeys(Part, 0.0)
    parts = set()
    for name in costs.module.computations[costs.module.entry].instructions:
        cost = costs.of(name)
        if isinstance(cost.demand, Demand) and cost.demand.bytes:
            flop[cost.part] += float(cost.demand.total_flop)
            parts.add(cost.part)
    # forward x @ w, backward x.T @ grad: 2 x 128 x 64 x 32 each
    assert flop[Part.FORWARD] == flop[Part.BACKWARD] == 2 * 128 * 64 * 32
    assert Part.OPTIMIZER in parts
    assert flop[Part.OPTIMIZER] == flop[Part.OTHER] == 0


def test_without_a_backward_pass_nothing_is_called_forward() -> None:
    jnp = pytest.importorskip("jax.numpy")
    costs, _ = compiled(lambda a: a @ a, jnp.ones((16, 16)))
    root = costs.module.computations[costs.module.entry].root
    assert costs.of(root.name).part is Part.OTHER
    assert costs.of(root.name).label == "dot_general"
