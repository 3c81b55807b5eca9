"""The HLO parser on what XLA prints, the awkward parts in particular."""

from __future__ import annotations

import pytest

from mansard.core import InputError
from mansard.trace.hlo import parse_module
from mansard.trace.hlo.shapes import parse_shape

TEXT = r"""HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }, entry_computation_layout={(f32[8,16]{1,0})->(f32[8,16]{1,0}, s32[])}, num_partitions=4

FileNames
1 "dir with space/train.py"
2 "site-packages/optax/_src/update.py"

FunctionNames
1 "step"
2 "apply_updates"

FileLocations
1 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=8 end_column=36}
2 {file_name_id=2 function_name_id=2 line=44 end_line=44 column=8 end_column=36}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}


%add.1 (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%fused (param_0: f32[8,16]) -> f32[8] {
  %param_0 = f32[8,16]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %zero = f32[] constant(0)
  ROOT %r.2 = f32[8]{0} reduce(%param_0, /*index=1*/%zero), dimensions={1}, to_apply=%add.1
}

ENTRY %main.9 (a.1: f32[8,16]) -> (f32[8,16], s32[]) {
  %a.1 = f32[8,16]{1,0} parameter(0), sharding={devices=[4,1]<=[4]}, metadata={op_name="a"}
  %big = f32[2,2]{1,0} constant({ { 1, 2 }, { 3, 4 } })
  %f = f32[8]{0} fusion(f32[8,16]{1,0} %a.1), kind=kLoop, calls=%fused, metadata={op_name="jit(step)/\"quoted, {brace\"/reduce_sum" stack_frame_id=2}, backend_config={"outer_dimension_partitions":["2"],"note":"a } in text"}
  %call.3 = (f32[8,16]{1,0}, /*index=1*/s32[]) custom-call(%a.1, %f), custom_call_target="some$target", called_computations={%add.1}, api_version=API_VERSION_TYPED_FFI, frontend_attributes={xla.sdy.sharding_rule="#sdy.op_sharding_rule<([i, j])->([k, l], []) {i=8, j=16}, custom>"}, backend_config="{\"n\": 3}"
  %start = ((f32[8,16]{1,0}), f32[32,16]{1,0}) all-gather-start(%a.1), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, use_global_device_ids=true
  %done = f32[32,16]{1,0} all-gather-done(%start)
  %dyn = f32[<=8,16]{1,0} bitcast(%a.1)
  ROOT %out = (f32[8,16]{1,0}, s32[]) tuple(%a.1, %big)
}

"""


def test_structure() -> None:
    module = parse_module(TEXT)
    assert module.name == "jit_step"
    assert module.entry == "main.9"
    assert set(module.computations) == {"add.1", "fused", "main.9"}
    assert module.header["num_partitions"] == "4"
    entry = module.computations["main.9"]
    assert entry.root.name == "out"
    assert list(entry.parameters) == [0]


def test_attributes_with_braces_and_quotes() -> None:
    entry = parse_module(TEXT).computations["main.9"].instructions
    fusion = entry["f"]
    assert fusion.operands == ("a.1",)
    assert fusion.called == {"calls": ("fused",)}
    assert fusion.backend_config == {"outer_dimension_partitions": ["2"], "note": "a } in text"}
    assert fusion.op_name.endswith("/reduce_sum")
    call = entry["call.3"]
    assert call.target == "some$target"
    assert call.backend_config == {"n": 3}
    assert call.called == {"called_computations": ("add.1",)}
    assert call.operands == ("a.1", "f")
    assert entry["big"].argument == "{ { 1, 2 }, { 3, 4 } }"
    assert entry["start"].attributes["replica_groups"] == "[1,4]<=[4]"


def test_comments_layouts_tuples_and_dynamic_shapes() -> None:
    module = parse_module(TEXT)
    assert module.computations["fused"].root.operands == ("param_0", "zero")
    assert module.computations["fused"].root.ints("dimensions") == (1,)
    call = module.computations["main.9"].instructions["call.3"]
    assert call.shape.size_bytes == 8 * 16 * 4 + 4
    dynamic = module.computations["main.9"].instructions["dyn"].shape
    assert (dynamic.dims, dynamic.any_dynamic) == ((8, 16), True)
    nested = module.computations["main.9"].instructions["start"].shape
    assert [str(leaf) for leaf in nested.leaves] == ["f32[8,16]", "f32[32,16]"]


def test_source_positions_follow_the_frame_tables() -> None:
    module = parse_module(TEXT)
    fusion = module.computations["main.9"].instructions["f"]
    assert module.location(fusion) == "site-packages/optax/_src/update.py:44"
    assert [f[1] for f in module.frames_of(fusion)] == ["apply_updates", "step"]


def test_source_position_in_the_metadata_itself() -> None:
    text = 'HloModule m\n\nENTRY e {\n  ROOT p = f32[] parameter(0), metadata={op_name="x" source_file="a.py" source_line=7}\n}\n'
    module = parse_module(text)
    assert module.location(module.computations["e"].root) == "a.py:7"


@pytest.mark.parametrize(
    ("text", "size"),
    [("pred[3]", 3), ("s4[10]{0:E(4)}", 5), ("bf16[2,3]{1,0}", 12), ("c128[]", 16), ("token[]", 0), ("f8e4m3fn[7]", 7),
     ("()", 0), ("(f32[2], (s8[3], u16[]))", 8 + 3 + 2)],
)  # fmt: skip
def test_sizes(text: str, size: float) -> None:
    assert parse_shape(text).size_bytes == size


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "expected 'HloModule'"),
        ("module @jit_f", "expected 'HloModule'"),
        ("HloModule m\n", "no computation"),
        (TEXT[: TEXT.index("ROOT %out")], "ends inside computation"),
        (TEXT.replace("f32[8]{0} fusion(", "zz9[8]{0} fusion("), "line 35 of the HLO text: not an HLO shape"),
        (TEXT.replace("reduce(%param_0, /*index=1*/%zero)", "reduce(%param_0, %zero"), "line 29"),
    ],
)
def test_damage_is_named(text: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_module(text)
    assert what in caught.value.message


def test_every_kind_of_program_that_jax_compiles_is_read() -> None:
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    from jax import lax

    x = jnp.ones((16, 32))
    programs = [
        (lambda a: jnp.sort(a), (x,)),
        (lambda a: lax.top_k(a, 3), (x,)),
        (lambda a: jnp.linalg.solve(a @ a.T + jnp.eye(16), a), (x,)),
        (lambda a: jnp.fft.rfft(a), (x,)),
        (lambda a: lax.cond(a[0, 0] > 0, lambda b: b @ b.T, lambda b: b[:, :16] * 2, a), (x,)),
        (lambda a: lax.while_loop(lambda b: b.sum() < 100, lambda b: b * 2, a), (x,)),
        (lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (2, 2), (2, 2), "SAME"), (x,)),
        (lambda a: jax.random.normal(jax.random.key(0), a.shape), (x,)),
        (lambda a: a.at[jnp.arange(4)].add(1.0), (x,)),
        (lambda a: jnp.cumsum(a, 1)[::-1], (x,)),
        (lambda a: jax.pure_callback(lambda b: b, jax.ShapeDtypeStruct(a.shape, a.dtype), a), (x,)),
    ]
    for function, arguments in programs:
        compiled = jax.jit(function).lower(*arguments).compile()
        module = parse_module(compiled.as_text())
        results = compiled.out_info
        assert module.computations[module.entry].root.shape.size_bytes >= 4 * len(jax.tree.leaves(results))
