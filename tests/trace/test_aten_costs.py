"""The operator table on records written by hand: GPU operators, missing values, and what must stay unknown."""

from __future__ import annotations

import pytest

from mansard.core import Unknown
from mansard.trace.aten import AtenCall, cost, needs_inner, takes_lists
from mansard.trace.aten.structure import ALLOCATIONS, VIEWS, WRAPPERS
from mansard.trace.aten.table import HANDLERS

BF16, F32, I64 = "c10::BFloat16", "float", "long int"


def call(name, *arguments):
    """A call from (shape, type, value) triples."""
    shapes = tuple(a[0] for a in arguments)
    kinds = tuple(a[1] for a in arguments)
    values = tuple(a[2] if len(a) > 2 else "" for a in arguments)
    return AtenCall(name, shapes, kinds, (), values)


def scalar(value):
    return ((), "Scalar", str(value))


def numbers(*values):
    return ((), "ScalarList", f"[{', '.join(str(v) for v in values)}]")


NONE = ((), "", "")


# --- kinds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::view", "free"), ("aten::empty", "free"), ("aten::detach", "free"), ("detach", "free"), ("aten::as_strided_", "free"),
        ("aten::resolve_conj", "free"), ("aten::unbind", "free"), ("aten::resize_", "free"), ("aten::split", "free"),
        ("aten::linear", "wrapper"), ("aten::matmul", "wrapper"), ("aten::einsum", "wrapper"), ("aten::to", "wrapper"),
        ("aten::conv2d", "wrapper"), ("aten::reshape", "wrapper"), ("aten::layer_norm", "wrapper"), ("aten::dropout", "wrapper"),
        ("aten::scaled_dot_product_attention", "wrapper"), ("aten::softmax", "wrapper"), ("aten::lstm", "wrapper"),
        ("autograd::engine::evaluate_function: MmBackward0", "wrapper"), ("MmBackward0", "wrapper"),
        ("torch::autograd::AccumulateGrad", "wrapper"), ("ProfilerStep#3", "wrapper"),
        ("aten::mm", "work"), ("graph_0_cpp_fused_add_mul_1", "work"), ("c10d::allreduce_", "work"), ("nccl:all_reduce", "work"),
        ("quantized::linear", "work"), ("aten::no_such_operator", "unknown"), ("mylib::scan", "unknown"),
    ],
)  # fmt: skip
def test_kinds(name, kind):
    known = cost(AtenCall(name))
    assert known.kind == kind
    if kind in ("free", "wrapper"):
        assert (known.demand.bytes, known.demand.launches) == (0.0, 0.0)


def test_no_name_is_in_two_tables():
    assert not set(HANDLERS) & (VIEWS | ALLOCATIONS | WRAPPERS)
    assert not VIEWS & WRAPPERS


def test_every_name_of_the_tables_is_an_operator_of_torch():
    torch = pytest.importorskip("torch")
    registered = {name.split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    short = {name.split("::")[1] for name in registered}
    missing = {n for n in (VIEWS | ALLOCATIONS | WRAPPERS | set(HANDLERS)) if n not in short and f"{n}_" not in short}
    # flash_attn's own operator comes with that package
    assert missing == {"_flash_attn_forward"}


# --- what is missing stays unknown ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (call("aten::mm"), "tensor argument 0 was not recorded"),
        (call("aten::mm", ((2, 3), "custom"), ((3, 4), "custom")), "element type 'custom' is not known"),
        (call("aten::mm", ((2, 3), F32), ((4, 5), F32)), "do not fit a product"),
        (call("aten::sum", ((2, 3), F32), ((), "ScalarList"), scalar("False"), NONE), None),
        (call("aten::_softmax", ((2, 3), F32), ((), "Scalar"), scalar("False")), "value of argument 1 was not recorded"),
        (call("aten::index", ((40, 8), F32), NONE), "does not record index tensors"),
        (call("aten::index_put_", ((40, 8), F32), NONE, ((), F32), scalar("False")), "does not record index tensors"),
        (call("aten::cat", (((2, 3), (2, 3)), "TensorList"), scalar(0)), "does not record the element types of a list"),
        (call("aten::cat", ((), "TensorList"), scalar(0)), "lists of more than 30"),
        (call("aten::_fused_adamw_", *[((), "TensorList")] * 6, *[scalar(0.1)] * 5, scalar("False")), "lists of more than 30"),
        (call("aten::nonzero", ((40,), "bool")), "depends on the data"),
        (call("aten::div", ((4,), I64), ((4,), I64)), "default type"),
        (call("aten::mul", ((4,), I64), ((), "double")), "default type"),
        (call("aten::add", ((4, 3), F32), ((5,), F32), scalar(1)), "do not broadcast"),
        (call("aten::convolution", ((1, 3, 8, 8), F32), ((4, 3, 3, 3), F32), NONE), "was not recorded"),
        (call("aten::linalg_qr", ((4, 4), F32)), "no cost function"),
        (call("quantized::linear", ((4, 4), "c10::quint8")), "packed weight"),
    ],
)  # fmt: skip
def test_missing_values(record, words):
    known = cost(record)
    assert known.kind == "work"
    if words is None:
        assert not isinstance(known.demand, Unknown)
    else:
        assert isinstance(known.demand, Unknown)
        assert words in known.demand.reason


def test_a_record_that_does_not_fit_is_unknown_and_no_crash():
    # a pooling of a vector: the record has too few dimensions
    known = cost(
        call(
            "aten::max_pool2d_with_indices",
            ((3,), F32),
            numbers(2, 2),
            numbers(),
            numbers(0, 0),
            numbers(1, 1),
            scalar("False"),
        )
    )
    assert isinstance(known.demand, Unknown)
    assert "does not fit" in known.demand.reason


# --- details of reading -----------------------------------------------------------------------------------------------


def test_an_expanded_operand_is_read_once():
    # (4, 16) of stride 0 is one number: 4 B; weight (16, 8) of 512 B
    record = AtenCall("aten::mm", ((4, 16), (16, 8)), (F32, F32), ((0, 0), (8, 1)))
    assert cost(record).demand.read_bytes == 4.0 + 512.0
    assert cost(record).demand.total_flop == 2 * 4 * 16 * 8


def test_overlapping_windows_are_not_read_twice():
    # unfolded view (5, 3) of stride (1, 1) lies on 7 numbers
    record = AtenCall("aten::exp", ((5, 3),), (F32,), ((1, 1),))
    assert cost(record).demand.read_bytes == 28.0


def test_beta_zero_does_not_read_the_addend():
    record = call("aten::addmm", ((5,), F32), ((4, 6), F32), ((6, 5), F32), scalar(0), scalar(1))
    assert cost(record).demand.read_bytes == 4 * (24 + 30)


def test_out_argument_of_a_scalar_variant():
    # mul(2.0, x, out=out): 32 numbers read and written, and the 8 B of the number
    record = call("aten::mul", ((), "double"), ((4, 8), F32), ((4, 8), F32))
    assert (cost(record).demand.bytes, cost(record).fresh_bytes) == (264.0, 0.0)


def test_powers():
    def power(exponent):
        return cost(call("aten::pow", ((8,), F32), scalar(exponent))).demand

    assert power("2").vector_flop == {"f32": 8.0}
    assert power("3.").vector_flop == {"f32": 16.0}
    assert power("1.7").transcendental == {"f32": 8.0}


def test_mixed_types():
    # f32 + bf16 is f32, i64 + f16 is f16
    assert cost(call("aten::add", ((4,), F32), ((4,), BF16), scalar(1))).demand.write_bytes == 16.0
    assert cost(call("aten::add", ((4,), I64), ((4,), "c10::Half"), scalar(1))).demand.write_bytes == 8.0
    # a sum of truth values is i64
    assert cost(call("aten::sum", ((4, 4), "bool"), NONE)).demand.write_bytes == 8.0


@pytest.mark.parametrize(("elements", "scope"), [(32_768, "core"), (32_769, "node")])
def test_short_loops_run_on_one_thread(elements, scope):
    assert cost(call("aten::exp", ((elements,), F32))).scope == scope


def test_random_numbers_run_on_one_thread_whatever_their_number():
    assert cost(call("aten::bernoulli_", ((10_000_000,), F32), scalar(0.5), NONE)).scope == "core"


def test_rows_of_softmax_are_shared_in_pieces():
    # 32768 // (16 * 64) = 32 rows a piece
    def rows(n):
        return cost(call("aten::_softmax", ((n, 64), F32), scalar(-1), scalar("False"))).scope

    assert (rows(32), rows(33)) == ("core", "node")


def test_triangles():
    # below and on the diagonal of (3, 4): 1 + 2 + 3; above and on it: 4 + 3 + 2
    assert cost(call("aten::tril", ((3, 4), F32), scalar(0))).demand.read_bytes == 24.0
    assert cost(call("aten::triu", ((3, 4), F32), scalar(0))).demand.read_bytes == 36.0


# --- operators of accelerators ----------------------------------------------------------------------------------------


QKV = (((2, 4, 8, 16), BF16),) * 3
CAUSAL_FLOP = 2 * 32 * 36 * 8  # 36 pairs of 8 tokens, 2 sequences of 4 heads, width 16


@pytest.mark.parametrize(
    "record",
    [
        call("aten::_scaled_dot_product_flash_attention", *QKV, scalar(0.0), scalar("True"), scalar("False"), NONE),
        call("aten::_scaled_dot_product_efficient_attention", *QKV, NONE, scalar("True"), scalar(0.0), scalar("True"), NONE),
        call("aten::_scaled_dot_product_cudnn_attention", *QKV, NONE, scalar("True"), scalar(0.0), scalar("True"), scalar("False")),
        call("aten::_flash_attention_forward", *(((2, 8, 4, 16), BF16),) * 3, NONE, NONE, scalar(8), scalar(8), scalar(0.0), scalar("True")),
        call("aten::_efficient_attention_forward", *(((2, 8, 4, 16), BF16),) * 3, NONE, NONE, NONE, NONE, NONE, scalar(0.0), scalar(1)),
    ],
    ids=lambda r: r.name[6:],
)  # fmt: skip
def test_forward_attention_of_every_backend(record):
    known = cost(record)
    assert known.category == "attention"
    assert known.demand.flop == {("bf16", "f32"): CAUSAL_FLOP}
    assert known.full_square_flop == 2 * 32 * 64 * 8


def test_backward_attention_of_accelerators():
    lse = ((2, 4, 8), F32)
    flash = call(
        "aten::_scaled_dot_product_flash_attention_backward", QKV[0], *QKV, QKV[0], lse, NONE, NONE, scalar(8), scalar(8), scalar(0.0),
        scalar("True"),
    )  # fmt: skip
    efficient = call(
        "aten::_scaled_dot_product_efficient_attention_backward", QKV[0], *QKV, NONE, QKV[0], lse, NONE, NONE, scalar(0.0),
        numbers("True", "True", "True", "False"), scalar("True"),
    )  # fmt: skip
    assert cost(flash).demand.total_flop == cost(efficient).demand.total_flop == 2 * CAUSAL_FLOP


def test_packed_attention_is_unknown_without_the_lengths():
    packed = ((24, 4, 16), BF16)
    known = cost(
        call(
            "aten::_flash_attention_forward",
            packed,
            packed,
            packed,
            ((4,), "int"),
            ((4,), "int"),
            scalar(9),
            scalar(9),
            scalar(0.0),
            scalar("True"),
        )
    )
    assert isinstance(known.demand, Unknown)
    assert "packed" in known.demand.reason


def test_a_window_and_a_cache_of_flash_attention():
    # one query, 100 keys, from the bottom right, window of 9 to the left and itself: 10 keys
    q, kv = ((1, 1, 4, 16), BF16), ((1, 100, 4, 16), BF16)
    known = cost(
        call(
            "aten::_flash_attention_forward", q, kv, kv, NONE, NONE, scalar(1), scalar(100), scalar(0.0), scalar("True"), scalar("False"),
            NONE, scalar(9), scalar(0),
        )
    )  # fmt: skip
    assert known.demand.total_flop == 2 * 32 * 10 * 4


def test_a_given_mask_is_counted_in_full():
    known = cost(
        call(
            "aten::_scaled_dot_product_flash_attention_for_cpu", *QKV, scalar(0.0), scalar("False"), ((8, 8), F32), NONE
        )
    )
    assert known.demand.total_flop == 2 * 32 * 64 * 8
    assert "a given mask, counted in full" in known.formula
    # Q, K, V and a mask of 256 B
    assert known.demand.read_bytes == 3 * 2 * 1024 + 256


def test_library_convolutions():
    # (2, 3, 16, 16) with (8, 3, 3, 3), stride 2, padding 1: 55296 FLOP
    x, w = ((2, 3, 16, 16), BF16), ((8, 3, 3, 3), BF16)
    two, one = numbers(2, 2), numbers(1, 1)
    records = [
        call("aten::convolution", x, w, NONE, two, one, one, scalar("False"), numbers(0, 0), scalar(1)),
        call("aten::mkldnn_convolution", x, w, NONE, one, two, one, scalar(1)),
        call(
            "aten::cudnn_convolution", x, w, one, two, one, scalar(1), scalar("False"), scalar("False"), scalar("True")
        ),
        call("aten::miopen_convolution", x, w, NONE, one, two, one, scalar(1), scalar("False"), scalar("False")),
        call("aten::_slow_conv2d_forward", x, w, numbers(3, 3), NONE, two, one),
        call("mkldnn::_convolution_pointwise", x, w, NONE, one, two, one, scalar(1)),
    ]
    for record in records:
        assert cost(record).demand.flop == {("bf16", "f32"): 55_296.0}, record.name


def test_low_precision_products():
    # f8 (4, 32) x (32, 16) into bf16, with two scales
    f8 = "c10::Float8_e4m3fn"
    scaled = cost(
        call(
            "aten::_scaled_mm",
            ((4, 32), f8),
            ((32, 16), f8),
            ((), F32),
            ((), F32),
            NONE,
            NONE,
            scalar(15),
            scalar("False"),
        )
    )
    assert scaled.demand.flop == {("f8_e4m3", "f32"): 4096.0}
    assert (scaled.demand.read_bytes, scaled.fresh_bytes) == (128.0 + 512.0, 128.0)
    packed = cost(call("aten::_weight_int8pack_mm", ((4, 32), BF16), ((16, 32), "signed char"), ((16,), BF16)))
    # activations 256, weight 512, scales 32
    assert (packed.demand.total_flop, packed.demand.read_bytes) == (4096.0, 800.0)


def test_compiled_linear_layers():
    linear = cost(
        call("mkldnn::_linear_pointwise", ((2, 8, 32), BF16), ((16, 32), BF16), ((16,), BF16), ((), "", "relu"))
    )
    mkl = cost(call("mkl::_mkl_linear", ((16, 32), F32), ((999,), F32), ((16, 32), F32), NONE, scalar(16)))
    assert linear.demand.total_flop == mkl.demand.total_flop == 2 * 16 * 16 * 32


def test_library_recurrent_layer():
    # 5 steps of 2: every weight matrix works on 10 rows: 2 * 10 * (64*8 + 64*16)
    weights = ((64, 8), (64, 16), (64,), (64,))
    known = cost(call("aten::_cudnn_rnn", ((5, 2, 8), F32), (weights, "TensorList"), scalar(4)))
    assert known.demand.total_flop == 2 * 10 * 1536


# --- what lies beneath completes a record -----------------------------------------------------------------------------


def test_index_from_the_calls_beneath():
    record = call("aten::index", ((40, 8), F32), NONE)
    inner = [
        AtenCall(
            "aten::as_strided",
            ((40, 8), (), (), ()),
            (F32, "ScalarList", "ScalarList", ""),
            (),
            ("", "[3, 8]", "[0, 1]", ""),
        ),
        AtenCall("aten::reshape", ((3,), ()), (I64, "ScalarList"), ((1,), ()), ("", "[3, 1]")),
    ]
    # 24 numbers and three positions
    assert cost(record, inner).demand.read_bytes == 96.0 + 24.0
    assert needs_inner("aten::index")


def test_lists_with_element_types():
    record = AtenCall("aten::cat", (((2, 3), (4, 3)), ()), ("TensorList[float,double]", "Scalar"), (), ("", "0"))
    # 24 + 96 B read, 18 f64 written
    known = cost(record)
    assert (known.demand.read_bytes, known.demand.write_bytes) == (120.0, 144.0)
    assert takes_lists("aten::cat")


def test_operators_on_lists_are_counted_where_they_work():
    lists = (((8, 8),) * 3, "TensorList[float]")
    fused = AtenCall("aten::_foreach_mul_", (lists[0], ()), (lists[1], "Scalar"), (), ("", "0.9"))
    known = cost(fused)
    assert (known.kind, known.demand.bytes) == ("work", 3 * 64 * 8)
    assert cost(fused, [AtenCall("aten::mul_")]).kind == "wrapper"
    assert cost(AtenCall("aten::_foreach_mul_", (lists[0], ()), ("TensorList", "Scalar"))).kind == "wrapper"


def test_rms_norm_made_of_other_operators():
    record = call("aten::_fused_rms_norm", ((40, 8), F32), numbers(8), ((8,), F32), NONE)
    assert cost(record, [AtenCall("aten::pow"), AtenCall("aten::mean")]).kind == "wrapper"
    # in one pass: x and weight read, result and 40 roots written
    assert cost(record).demand.bytes == 4 * (320 + 8) + 4 * (320 + 40)
