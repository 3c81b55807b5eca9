"""Costs of single operations against numbers worked out by hand, and laws they must obey."""

import importlib
import inspect
import pkgutil

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import mansard.operators as operators
from mansard.operators.attention import (
    attention,
    attention_backward,
    attention_backward_executed_flop,
    attention_flop,
    packed_pairs,
    visible_pairs,
)
from mansard.operators.convolution import ConvolutionShape, convolution, convolution_backward
from mansard.operators.elementwise import ARITHMETIC, dropout, elementwise, fused_gate, rope
from mansard.operators.indexing import embedding_backward, gather, scatter, sort, topk
from mansard.operators.matmul import grouped_matmul, grouped_matmul_weight_gradient, matmul, matmul_backward
from mansard.operators.movement import concatenate, copy, fft, triangle
from mansard.operators.normalisation import batch_norm, group_norm, layer_norm, layer_norm_backward, rms_norm
from mansard.operators.optimizer import adagrad_step, adam_step, sgd_step
from mansard.operators.recurrent import recurrent_layer, recurrent_layer_backward
from mansard.operators.reduction import cross_entropy, nll_loss, pairwise_loss, reduction, softmax, softmax_backward
from mansard.operators.spatial import grid_sample, interpolation, pooling, pooling_backward

small = st.integers(1, 40)


def public_functions():
    for found in pkgutil.iter_modules(operators.__path__):
        module = importlib.import_module(f"mansard.operators.{found.name}")
        for name, item in inspect.getmembers(module, inspect.isfunction):
            if item.__module__ == module.__name__ and not name.startswith("_") and found.name != "counting":
                yield pytest.param(item, id=f"{found.name}.{name}")


@pytest.mark.parametrize("function", list(public_functions()))
def test_every_cost_function_states_its_source_and_shows_a_number(function):
    text = function.__doc__ or ""
    assert "Source:" in text
    assert ">>>" in text


# --- matrix products ------------------------------------------------------------------------------------------------


def test_matmul_bf16():
    # 2 * 128 * 256 * 64 = 4,194,304 FLOP; A 128*64, B 64*256, C 128*256 elements of 2 B: 16384 + 32768 read, 65536 written
    d = matmul(m=128, n=256, k=64, dtype="bf16")
    assert d.flop == {("bf16", "f32"): 4_194_304.0}
    assert (d.read_bytes, d.write_bytes) == (49_152.0, 65_536.0)


def test_matmul_with_bias_adds_one_vector_flop_per_result():
    # (4, 6) x (6, 5) + row of 5: 20 additions; reads (24 + 30 + 5) * 4 = 236
    d = matmul(m=4, n=5, k=6, dtype="f32", addend=(5, "f32"))
    assert d.vector_flop == {"f32": 20.0}
    assert d.read_bytes == 236.0


def test_int8_matmul_accumulates_in_i32():
    # 2 * 32 * 8 * 16 = 8192; reads 512 + 128 B, writes 32 * 8 * 4 = 1024 B
    d = matmul(m=32, n=8, k=16, dtype="i8", dtype_out="i32")
    assert d.flop == {("i8", "i32"): 8192.0}
    assert (d.read_bytes, d.write_bytes) == (640.0, 1024.0)


def test_complex_matmul_is_four_real_ones():
    # 2*2*2 complex MAC = 8, each 4 real MAC = 8 FLOP: 64
    assert matmul(m=2, n=2, k=2, dtype="c64").flop == {("f32", "f32"): 64.0}


def test_matmul_backward_is_twice_the_forward_and_half_without_input_gradient():
    assert matmul_backward(m=3, n=5, k=7, dtype="f32").total_flop == 4 * 3 * 5 * 7
    assert matmul_backward(m=3, n=5, k=7, dtype="f32", input_gradient=False).total_flop == 2 * 3 * 5 * 7


def test_grouped_matmul_reads_only_the_experts_that_have_rows():
    # 3 rows, 2 of 8 experts touched, (4 -> 5): 2*3*5*4 = 120 FLOP; reads 12 + 2*20 = 52 f32, writes 15
    d = grouped_matmul(rows=3, n=5, k=4, groups_touched=2, dtype="f32")
    assert (d.total_flop, d.read_bytes, d.write_bytes) == (120.0, 208.0, 60.0)


def test_grouped_weight_gradient_writes_all_experts():
    # 3 rows: 120 FLOP; reads 12 + 15 f32, writes 8 * 20
    d = grouped_matmul_weight_gradient(rows=3, n=5, k=4, groups=8, dtype="f32")
    assert (d.total_flop, d.read_bytes, d.write_bytes) == (120.0, 108.0, 640.0)


@given(m=small, m2=small, n=small, k=small)
def test_splitting_a_matmul_along_m_conserves_flop(m, m2, n, k):
    parts = matmul(m=m, n=n, k=k, dtype="f32").total_flop + matmul(m=m2, n=n, k=k, dtype="f32").total_flop
    assert matmul(m=m + m2, n=n, k=k, dtype="f32").total_flop == parts


@given(m=small, m2=small, n=small, k=small)
def test_splitting_a_matmul_along_m_reads_b_once_more(m, m2, n, k):
    whole = matmul(m=m + m2, n=n, k=k, dtype="f32").bytes
    parts = matmul(m=m, n=n, k=k, dtype="f32").bytes + matmul(m=m2, n=n, k=k, dtype="f32").bytes
    assert parts - whole == 4 * n * k


# --- attention ------------------------------------------------------------------------------------------------------


def brute_pairs(queries, keys, causal, window, alignment):
    offset = keys - queries if alignment == "bottom_right" else 0
    seen = 0
    for i in range(queries):
        for j in range(keys):
            if not causal or (j <= i + offset and (window is None or j > i + offset - window)):
                seen += 1
    return seen


@settings(max_examples=200)
@given(
    queries=st.integers(1, 12),
    keys=st.integers(1, 12),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 14),
    alignment=st.sampled_from(["top_left", "bottom_right"]),
)
def test_visible_pairs_against_a_loop(queries, keys, causal, window, alignment):
    expected = brute_pairs(queries, keys, causal, window, alignment)
    got = visible_pairs(queries=queries, keys=keys, causal=causal, window=window, alignment=alignment)
    assert got == expected


def test_sliding_window_of_512_in_2048_sees_448_keys():
    # W - W(W-1)/(2s) = 512 - 512*511/4096 = 448.125 keys per query
    assert visible_pairs(queries=2048, keys=2048, causal=True, window=512) / 2048 == 448.125


@given(queries=small, keys=small, window=st.none() | small)
def test_causal_never_exceeds_full(queries, keys, window):
    causal = visible_pairs(queries=queries, keys=keys, causal=True, window=window)
    assert 0 <= causal <= visible_pairs(queries=queries, keys=keys, causal=False)


def test_causal_attention_and_its_gradient():
    # 2 sequences, 4 heads, 8 tokens, width 16: pairs 8*9/2 = 36 per head; 2*(16+16)*36*8 = 18432 FLOP; backward twice that.
    # Q, K, V: 2*4*8*16 = 1024 f32 each: 12288 B read; result 4096 B and log-sum-exp 2*4*8*4 = 256 B written.
    sizes = {
        "batch": 2,
        "heads": 4,
        "kv_heads": 4,
        "queries": 8,
        "keys": 8,
        "head_dim": 16,
        "dtype": "f32",
        "causal": True,
    }
    d = attention(**sizes, statistics=True)
    assert (d.total_flop, d.read_bytes, d.write_bytes) == (18_432.0, 12_288.0, 4_352.0)
    assert d.transcendental == {"f32": 288.0}
    back = attention_backward(**sizes)
    # reads Q, K, V, out, grad (5 * 4096) and the log-sum-exp 256; writes dQ, dK, dV
    assert (back.total_flop, back.read_bytes, back.write_bytes) == (36_864.0, 20_736.0, 12_288.0)
    assert attention_backward_executed_flop(pairs=36, heads=8, head_dim=16) == 2.5 * 18_432


def test_grouped_queries_change_bytes_and_not_flop():
    sizes = {"batch": 1, "heads": 8, "queries": 4, "keys": 4, "head_dim": 16, "dtype": "bf16", "causal": False}
    full, grouped = attention(**sizes, kv_heads=8), attention(**sizes, kv_heads=2)
    assert full.total_flop == grouped.total_flop == 4 * 16 * 16 * 8
    # 6 heads fewer of K and of V, 4 * 16 bf16 each
    assert full.read_bytes - grouped.read_bytes == 2 * 6 * 4 * 16 * 2


def test_decode_reads_the_whole_cache():
    # one query over 4096 keys, bottom right: every key is seen: 4 * 128 * 4096 * 32 heads
    d = attention(
        batch=1,
        heads=32,
        kv_heads=8,
        queries=1,
        keys=4096,
        head_dim=128,
        dtype="bf16",
        causal=True,
        alignment="bottom_right",
    )
    assert d.total_flop == 4 * 128 * 4096 * 32
    # Q 32*128, K and V 8*4096*128 each, of 2 B
    assert d.read_bytes == 2 * (32 * 128 + 2 * 8 * 4096 * 128)


def test_packed_sequences():
    # lengths 3 and 5: 6 + 15 pairs
    assert packed_pairs(np.array([3, 5]), causal=True) == 21.0
    assert attention_flop(pairs=21, heads=2, head_dim=4) == 2 * 8 * 21 * 2


# --- convolution ----------------------------------------------------------------------------------------------------


def conv_shape(**changes):
    base = {
        "batch": 2, "in_channels": 8, "out_channels": 16, "in_size": (10,), "kernel": (3,), "stride": (1,), "padding": (1,),
        "dilation": (1,),
    }  # fmt: skip
    return ConvolutionShape(**(base | changes))


def test_conv1d():
    # out 10: 2 * (2*16*10 * 8*3) = 15360; in 160, weight 384, out 320 f32
    d = convolution(conv_shape(), dtype="f32", bias=True)
    assert (d.total_flop, d.read_bytes, d.write_bytes) == (15_360.0, 4.0 * (160 + 384 + 16), 1280.0)


def test_depthwise_conv2d():
    # 8 channels, 10x10, 3x3: 2 * 2*8*100*9 = 28800
    shape = conv_shape(
        out_channels=8, in_size=(10, 10), kernel=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=8
    )
    assert convolution(shape, dtype="f32").total_flop == 28_800.0
    assert shape.weights == 72.0


def test_dilated_conv3d():
    # size 7, kernel 3, dilation 2, no padding: (7 - 2*2 - 1)/1 + 1 = 3; 2 * 1*4*27 * 2*27 = 11664
    shape = ConvolutionShape(
        batch=1, in_channels=2, out_channels=4, in_size=(7, 7, 7), kernel=(3, 3, 3), stride=(1, 1, 1), padding=(0, 0, 0),
        dilation=(2, 2, 2),
    )  # fmt: skip
    assert shape.out_size == (3.0, 3.0, 3.0)
    assert convolution(shape, dtype="f32").total_flop == 11_664.0


def test_transposed_conv2d():
    # 16x16, kernel 3, stride 2: (16-1)*2 + 2 + 1 = 33; every input meets every tap: 2 * 2*3*256 * 8*9 = 221184
    shape = ConvolutionShape(
        batch=2, in_channels=3, out_channels=8, in_size=(16, 16), kernel=(3, 3), stride=(2, 2), padding=(0, 0), dilation=(1, 1),
        transposed=True,
    )  # fmt: skip
    assert shape.out_size == (33.0, 33.0)
    assert convolution(shape, dtype="f32").total_flop == 221_184.0


def test_convolution_backward_counts_what_is_asked_for():
    shape = conv_shape()
    assert convolution_backward(shape, dtype="f32").total_flop == 2 * 15_360
    first = convolution_backward(shape, dtype="f32", input_gradient=False)
    # reads grad 320 and input 160, writes the weight 384
    assert (first.total_flop, first.read_bytes, first.write_bytes) == (15_360.0, 1920.0, 1536.0)


def test_a_convolution_with_mixed_dimensions_is_refused():
    with pytest.raises(ValueError, match="one number per spatial dimension"):
        conv_shape(kernel=(3, 3))


# --- element by element ---------------------------------------------------------------------------------------------


@given(n=st.integers(1, 10**6))
def test_doubling_n_doubles_elementwise_bytes(n):
    one = elementwise(elements=n, inputs=[(n, "f32"), (n, "f32")], dtype="f32", output="f32")
    two = elementwise(elements=2 * n, inputs=[(2 * n, "f32"), (2 * n, "f32")], dtype="f32", output="f32")
    assert two.bytes == 2 * one.bytes == 24 * n


def test_sixteen_bit_arithmetic_happens_in_f32_and_integers_are_not_counted():
    half = elementwise(elements=8, inputs=[(8, "bf16")], dtype="bf16", output="bf16", flop_per_element=3)
    assert half.vector_flop == {"f32": 24.0}
    assert half.bytes == 32.0
    assert elementwise(elements=8, inputs=[(8, "i64")], dtype="i64", output="i64").vector_flop == {}


def test_arithmetic_of_common_activations():
    assert ARITHMETIC["gelu"] == (4.0, 1.0)  # x * 0.5 * (1 + erf(x * c)): 4 products and sums, one erf
    assert ARITHMETIC["silu"] == (3.0, 1.0)  # x / (1 + exp(-x))
    assert ARITHMETIC["silu_backward"] == (8.0, 1.0)  # sigmoid 3 + exp, then g * s * (1 + x * (1 - s)): 5
    assert ARITHMETIC["addcmul"] == (3.0, 0.0)  # a + v * b * c


def test_swiglu_gate_rope_and_dropout():
    # silu (3 + exp) and a product
    assert fused_gate(elements=10, dtype="f32").vector_flop == {"f32": 40.0}
    # 5 tokens, 4 + 2 heads of 8: 240 rotated elements, 3 FLOP each; sines and cosines 5 * 8
    d = rope(tokens=5, heads=4, kv_heads=2, head_dim=8, dtype="bf16")
    assert (d.vector_flop, d.read_bytes, d.write_bytes) == ({"f32": 720.0}, 560.0, 480.0)
    # result 4 B and mask 1 B per element
    assert dropout(elements=100, dtype="f32").write_bytes == 500.0


# --- reductions, softmax, losses ------------------------------------------------------------------------------------


def test_reduction_of_rows():
    # (100, 10) f32 to 100: 4000 B read, 400 B and 800 B of positions written
    d = reduction(elements=1000, outputs=100, dtype="f32", indices=True)
    assert (d.read_bytes, d.write_bytes, d.vector_flop) == (4000.0, 1200.0, {"f32": 1000.0})


def test_softmax_and_its_gradient():
    d = softmax(rows=3, columns=5, dtype="f32")
    assert (d.bytes, d.vector_flop, d.transcendental) == (120.0, {"f32": 60.0}, {"f32": 15.0})
    log = softmax(rows=3, columns=5, dtype="f32", log=True)
    assert log.transcendental == {"f32": 18.0}  # one logarithm per row
    assert softmax_backward(rows=3, columns=5, dtype="f32").bytes == 180.0


def test_losses():
    # 4 rows: one f32 and one i64 each, loss and weight written
    assert nll_loss(rows=4, dtype="f32").bytes == 4 * 12 + 8
    # 2 * 10 f32 read, one written; subtract, square, add
    assert pairwise_loss(elements=10, dtype="f32").bytes == 84.0
    # logits 4*10 f32 and 4 targets read
    assert cross_entropy(rows=4, classes=10, dtype="f32").read_bytes == 192.0


# --- norms ----------------------------------------------------------------------------------------------------------


def test_layer_norm_is_seven_and_rms_norm_four_flop_per_element():
    # 2 rows of 100: 7 * 200 + 2 * 2; 4 * 200 + 3 * 2
    assert layer_norm(rows=2, columns=100, dtype="f32").vector_flop == {"f32": 1404.0}
    assert rms_norm(rows=2, columns=100, dtype="f32").vector_flop == {"f32": 806.0}


def test_layer_norm_backward_bytes():
    # reads grad and x (2 * 200), mean and rstd (4), weight (100); writes dx (200), dweight and dbias (200)
    d = layer_norm_backward(rows=2, columns=100, dtype="f32")
    assert (d.read_bytes, d.write_bytes) == (4.0 * 504, 4.0 * 400)


def test_batch_and_group_norm():
    # inference: scale and shift; reads x 1000, weight, bias, mean, variance of 10
    d = batch_norm(elements=1000, channels=10, dtype="f32", training=False)
    assert (d.vector_flop, d.read_bytes, d.write_bytes) == ({"f32": 2000.0}, 4.0 * 1040, 4000.0)
    # statistics of 6 groups: mean and deviation
    assert group_norm(elements=1000, channels=10, groups=6, dtype="f32").write_bytes == 4.0 * 1012


# --- moving, indexing, sorting --------------------------------------------------------------------------------------


def test_copies():
    assert copy(elements=10, dtype="f32", output="f64").bytes == 120.0
    # a (1, 8) row expanded to (4, 8): 8 read, 32 written
    assert copy(elements=32, dtype="f32", stored=8).bytes == 160.0
    assert concatenate(inputs=[(2, "f32"), (3, "f32")], output="f32").bytes == 40.0
    # lower triangle of 4x4 keeps 10; in place only 6 zeros are written
    assert triangle(rows=4, columns=4, kept=10, dtype="f32", in_place=True).bytes == 24.0


def test_fft_of_a_real_signal_is_half():
    # 2.5 * 8 * 3 = 60
    d = fft(transforms=1, length=8, dtype="f32", real=True, reads=[(8, "f32")], writes=[(5, "c64")])
    assert d.vector_flop == {"f32": 60.0}
    assert d.bytes == 32.0 + 40.0


def test_gather_never_reads_more_than_the_table():
    # 1000 tokens of width 8 from 50 rows: the table is 400 elements
    d = gather(elements=8000, dtype="f32", indices=[(1000, "i64")], table=400)
    assert (d.read_bytes, d.write_bytes) == (1600.0 + 8000.0, 32_000.0)


def test_scatter_and_embedding_gradient():
    d = scatter(elements=6, dtype="f32", indices=[(2, "i64")], accumulate=False, source=(6, "f32"))
    assert (d.read_bytes, d.write_bytes) == (40.0, 24.0)
    # 14 tokens of 8 into 50 rows: gradient 448, indices 112, rows 448 read; 1600 + 448 written
    e = embedding_backward(tokens=14, width=8, rows=50, dtype="f32")
    assert (e.read_bytes, e.write_bytes) == (1008.0, 2048.0)


def test_sort_and_topk():
    # 2 rows of 8: 16 * 3 comparisons
    assert sort(rows=2, columns=8, dtype="f32").vector_flop == {"f32": 48.0}
    assert topk(rows=2, columns=8, k=3, dtype="f32").write_bytes == 6 * 12


# --- images, recurrence, optimizers ---------------------------------------------------------------------------------


def test_pooling_and_interpolation():
    # 4 windows of 9
    assert pooling(inputs=36, outputs=4, taps=9, dtype="f32").vector_flop == {"f32": 36.0}
    assert pooling_backward(inputs=36, outputs=4, taps=9, dtype="f32", indices=True).bytes == 16 + 32 + 144
    # three linear interpolations of 3 FLOP each
    assert interpolation(inputs=4, outputs=16, dtype="f32", mode="bilinear2d").vector_flop == {"f32": 144.0}
    # 2 points: 8 * 4 coordinates; 3 channels: 6 results of 4 neighbours, 2 FLOP each
    d = grid_sample(inputs=100, outputs=6, points=2, dimensions=2, dtype="f32")
    assert d.vector_flop == {"f32": 32.0 + 48.0}


def test_recurrent_layers():
    # GRU: 3 gates: 2 * 5*2 * 3*16 * (8 + 16) = 23040
    d = recurrent_layer(cell="gru", steps=5, batch=2, input_size=8, hidden_size=16, dtype="f32")
    assert d.total_flop == 23_040.0
    # input 80, weights 3*16*(8+16+2), state 32; output 160 and state 32
    assert (d.read_bytes, d.write_bytes) == (4.0 * (80 + 1248 + 32), 4.0 * 192)
    back = recurrent_layer_backward(cell="gru", steps=5, batch=2, input_size=8, hidden_size=16, dtype="f32")
    assert back.total_flop == 2 * 23_040.0


def test_optimizer_steps():
    # AdamW: 4 reads and 3 writes of f32: 28 B; 13 FLOP and one for the decay
    d = adam_step(elements=100, dtype="f32", weight_decay=True)
    assert (d.bytes, d.vector_flop) == (2800.0, {"f32": 1400.0})
    # amsgrad keeps one more moment
    assert adam_step(elements=100, dtype="f32", amsgrad=True).bytes == 3600.0
    assert sgd_step(elements=100, dtype="f32").bytes == 1200.0
    assert sgd_step(elements=100, dtype="f32", momentum=True, first_step=True).bytes == 1600.0
    assert adagrad_step(elements=100, dtype="f32").bytes == 2000.0


# --- arrays ---------------------------------------------------------------------------------------------------------


def test_a_million_points_at_once():
    m = np.arange(1, 1_000_001)
    d = matmul(m=m, n=64, k=32, dtype="bf16")
    assert d.total_flop[9] == 2 * 10 * 64 * 32
    assert d.read_bytes.shape == (1_000_000,)
    a = attention(batch=1, heads=8, kv_heads=8, queries=m, keys=m, head_dim=64, dtype="bf16", causal=True)
    # third point: 3 queries, 6 pairs
    assert a.total_flop[2] == 2 * 128 * 6 * 8
    assert layer_norm(rows=m, columns=768, dtype="f32").bytes.shape == (1_000_000,)
    c = convolution(conv_shape(in_size=(m,)), dtype="f32")
    assert c.total_flop[9] == 15_360.0


@given(rows=small, columns=small)
def test_arrays_and_numbers_agree(rows, columns):
    for function in (softmax, layer_norm, rms_norm, sort):
        one = function(rows=rows, columns=columns, dtype="f32")
        many = function(rows=np.array([rows, rows]), columns=np.array([columns, columns]), dtype="f32")
        assert many.bytes.tolist() == [one.bytes] * 2
        assert many.vector_flop["f32"].tolist() == [one.vector_flop["f32"]] * 2
