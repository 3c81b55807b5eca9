"""What the operator table says about calls that PyTorch really made, against the tensors themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mansard.core import Unknown
from mansard.trace.aten import AtenCall, AtenCost, cost, tensor_lists

torch = pytest.importorskip("torch")
F = torch.nn.functional


@dataclass
class Node:
    call: AtenCall
    start: float
    end: float
    thread: int
    inner: list[Node] = field(default_factory=list)

    def beneath(self) -> list[AtenCall]:
        found: list[AtenCall] = []
        for node in self.inner:
            found += [node.call, *node.beneath()]
        return found


@pytest.fixture
def record(tmp_path: Path) -> Callable[[Callable[[], Any]], tuple[Any, list[Node]]]:
    """Run something under the profiler and return its result and the tree of recorded calls."""

    def run(function: Callable[[], Any]) -> tuple[Any, list[Node]]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            result = function()
        lists = tensor_lists(profile.profiler.kineto_results.experimental_event_tree())
        path = tmp_path / "trace.json"
        profile.export_chrome_trace(str(path))
        events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "cpu_op"]
        events.sort(key=lambda e: (e["tid"], e["ts"], -e["dur"]))
        roots: list[Node] = []
        stack: list[Node] = []
        for e in events:
            call = AtenCall.from_record(e["name"], e["args"], lists.get(e["args"].get("External id")))
            node = Node(call, e["ts"], e["ts"] + e["dur"], e["tid"])
            while stack and (stack[-1].thread != node.thread or stack[-1].end <= node.start):
                stack.pop()
            (stack[-1].inner if stack else roots).append(node)
            stack.append(node)
        return result, roots

    return run


def leaves(nodes: list[Node]) -> list[tuple[Node, AtenCost]]:
    """The topmost calls that do work or nothing, each with its cost."""
    found: list[tuple[Node, AtenCost]] = []
    for node in nodes:
        known = cost(node.call, node.beneath())
        if known.kind == "wrapper":
            found += leaves(node.inner)
        else:
            found.append((node, known))
    return found


def only(nodes: list[Node], name: str) -> AtenCost:
    """The cost of the one topmost call of `name`."""
    hits = [c for n, c in leaves(nodes) if n.call.name == name]
    assert len(hits) == 1, [n.call.name for n, _ in leaves(nodes)]
    return hits[0]


def total_flop(nodes: list[Node]) -> float:
    return sum(float(c.demand.total_flop) for _, c in leaves(nodes) if not isinstance(c.demand, Unknown))


def distinct_bytes(*tensors: Any) -> int:
    """Bytes of the distinct elements that tensors show."""
    size = 0
    for t in tensors:
        size += math.prod(d for d, s in zip(t.shape, t.stride(), strict=True) if s != 0) * t.element_size()
    return size


def tensors_of(result: Any) -> list[Any]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for item in result for t in tensors_of(item)] if isinstance(result, tuple | list) else []


def f32(*shape: int) -> Any:
    return torch.rand(*shape) + 0.5


A, B, ROW = f32(48, 64), f32(48, 64), f32(64)
IMAGE, VOLUME = f32(2, 6, 16, 12), f32(1, 2, 6, 6, 6)
IDS = torch.tensor([3, 1, 7])
WIDE = ROW.expand(48, 64)
MASK = A > 1.0

# name of the operator, what is called, and what it must read; what it writes is its result.
CASES: list[tuple[str, Callable[[], Any], list[Any]]] = [
    ("aten::add", lambda: A + B, [A, B]),
    ("aten::add", lambda: A + ROW, [A, ROW]),
    ("aten::mul", lambda: A * WIDE, [A, ROW]),
    ("aten::mul", lambda: A.bfloat16() * B.bfloat16(), [A.bfloat16(), B.bfloat16()]),
    ("aten::sub", lambda: A.t() - B.t(), [A, B]),
    ("aten::div", lambda: A / B, [A, B]),
    ("aten::gt", lambda: A > B, [A, B]),
    ("aten::where", lambda: torch.where(MASK, A, B), [MASK, A, B]),
    ("aten::masked_fill", lambda: A.masked_fill(MASK, 0.0), [A, MASK]),
    ("aten::exp", lambda: A.exp(), [A]),
    ("aten::gelu", lambda: F.gelu(A), [A]),
    ("aten::silu", lambda: F.silu(A), [A]),
    ("aten::pow", lambda: A**2, [A]),
    ("aten::clamp", lambda: A.clamp(0.2, 0.7), [A]),
    ("aten::lerp", lambda: torch.lerp(A, B, 0.3), [A, B]),
    ("aten::addcmul", lambda: torch.addcmul(A, A, B, value=0.5), [A, A, B]),
    ("aten::logical_not", lambda: MASK.logical_not(), [MASK]),
    ("aten::sum", lambda: A.sum(0), [A]),
    ("aten::sum", lambda: A.sum(), [A]),
    ("aten::sum", lambda: MASK.sum(1), [MASK]),
    ("aten::mean", lambda: A.mean(-1, keepdim=True), [A]),
    ("aten::max", lambda: A.max(1), [A]),
    ("aten::maximum", lambda: torch.maximum(A, B), [A, B]),
    ("aten::argmax", lambda: A.argmax(1), [A]),
    ("aten::amax", lambda: A.amax((0, 1)), [A]),
    ("aten::var", lambda: A.var(1), [A]),
    ("aten::any", lambda: MASK.any(1), [MASK]),
    ("aten::linalg_vector_norm", lambda: torch.linalg.vector_norm(A), [A]),
    ("aten::logsumexp", lambda: A.logsumexp(1), [A]),
    ("aten::cumsum", lambda: A.cumsum(0), [A]),
    ("aten::_softmax", lambda: A.softmax(-1), [A]),
    ("aten::_log_softmax", lambda: A.log_softmax(-1), [A]),
    ("aten::native_layer_norm", lambda: torch.native_layer_norm(A, (64,), ROW, ROW, 1e-5), [A, ROW, ROW]),
    ("aten::native_group_norm", lambda: torch.native_group_norm(IMAGE, None, None, 2, 6, 192, 3, 1e-5), [IMAGE]),
    ("aten::clone", lambda: A.clone(), [A]),
    ("aten::clone", lambda: A.t().contiguous(), [A]),
    ("aten::_to_copy", lambda: A.to(torch.float64), [A]),
    ("aten::cat", lambda: torch.cat([A, B]), [A, B]),
    ("aten::stack", lambda: torch.stack([A] * 31), [A] * 31),
    ("aten::repeat", lambda: A.repeat(2, 3), [A]),
    ("aten::constant_pad_nd", lambda: F.pad(A, (1, 2, 3, 4)), [A]),
    ("aten::roll", lambda: A.roll(1, 0), [A]),
    ("aten::flip", lambda: A.flip(0), [A]),
    ("aten::new_zeros", lambda: A.new_zeros(5, 7), []),
    ("aten::zeros", lambda: torch.zeros(5, 7, dtype=torch.int64), []),
    ("aten::full", lambda: torch.full((5, 7), 2.0, dtype=torch.float64), []),
    ("aten::index_select", lambda: A.index_select(0, IDS), [A[:3], IDS]),
    ("aten::embedding", lambda: F.embedding(IDS, A), [A[:3], IDS]),
    ("aten::index", lambda: A[IDS], [A[:3], IDS]),
    ("aten::index", lambda: A[:, IDS], [A[:, :3], IDS]),
    ("aten::index", lambda: A[IDS, IDS], [A[0, :3], IDS, IDS]),
    ("aten::index", lambda: IMAGE[:, IDS % 6, 2], [IMAGE[:, :3, 2], IDS]),
    ("aten::gather", lambda: A.gather(1, IDS.expand(48, 3)), [A[:, :3], IDS]),
    ("aten::topk", lambda: A.topk(5, 1), [A]),
    ("aten::sort", lambda: A.sort(1), [A]),
    ("aten::max_pool2d_with_indices", lambda: F.max_pool2d(IMAGE, 3, 2, 1, return_indices=True), [IMAGE]),
    ("aten::max_pool2d_with_indices", lambda: F.max_pool2d(IMAGE, 3, 2, ceil_mode=True, return_indices=True), [IMAGE]),
    ("aten::avg_pool2d", lambda: F.avg_pool2d(IMAGE, 2), [IMAGE]),
    ("aten::_adaptive_avg_pool2d", lambda: F.adaptive_avg_pool2d(IMAGE, 4), [IMAGE]),
    ("aten::upsample_nearest2d", lambda: F.interpolate(IMAGE, scale_factor=2.0), [IMAGE]),
    ("aten::upsample_bilinear2d", lambda: F.interpolate(IMAGE, (32, 20), mode="bilinear"), [IMAGE]),
    ("aten::mse_loss", lambda: F.mse_loss(A, B), [A, B]),
    ("aten::mm", lambda: A @ B.t(), [A, B]),
    ("aten::addmm", lambda: torch.addmm(ROW[:48], A, B.t()), [A, B, ROW[:48]]),
    ("aten::bmm", lambda: torch.bmm(IMAGE[0], IMAGE[1].transpose(1, 2)), [IMAGE]),
    ("aten::baddbmm", lambda: torch.baddbmm(A[:16, :16], IMAGE[0], IMAGE[1].transpose(1, 2)), [A[:16, :16], IMAGE]),
    ("aten::mv", lambda: A @ ROW, [A, ROW]),
    ("aten::dot", lambda: torch.dot(ROW, ROW), [ROW, ROW]),
    ("aten::tril", lambda: torch.tril(A, 100), [A]),
    ("aten::_fft_r2c", lambda: torch.fft.rfft(A), [A]),
    ("aten::convolution", lambda: F.conv2d(IMAGE, IMAGE[:1, :, :3, :3]), [IMAGE, IMAGE[:1, :, :3, :3]]),
    ("aten::convolution", lambda: F.conv3d(VOLUME, VOLUME[..., :3, :3, :3]), [VOLUME, VOLUME[..., :3, :3, :3]]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "reads"), CASES, ids=[f"{i}-{c[0][6:]}" for i, c in enumerate(CASES)])
def test_bytes_are_those_of_the_tensors(record, name, function, reads):
    result, roots = record(function)
    known = only(roots, name)
    results = tensors_of(result)
    assert not isinstance(known.demand, Unknown), known.demand
    assert known.demand.read_bytes == distinct_bytes(*reads)
    assert known.demand.write_bytes == sum(t.nbytes for t in results)
    assert known.fresh_bytes == sum(t.nbytes for t in results)


IN_PLACE: list[tuple[str, Callable[[Any], Any], int, int]] = [
    # bytes read and written by an operator on a (48, 64) f32 tensor of 12288 B and others
    ("aten::add_", lambda x: x.add_(B), 24_576, 12_288),
    # a Python number is recorded as a tensor without dimensions, 8 B
    ("aten::mul_", lambda x: x.mul_(2.0), 12_288 + 8, 12_288),
    ("aten::relu_", lambda x: x.relu_(), 12_288, 12_288),
    ("aten::copy_", lambda x: x.copy_(ROW), 256, 12_288),
    ("aten::zero_", lambda x: x.zero_(), 0, 12_288),
    ("aten::fill_", lambda x: x.fill_(3.0), 0, 12_288),
    ("aten::addcdiv_", lambda x: x.addcdiv_(A, B), 36_864, 12_288),
    ("aten::uniform_", lambda x: x.uniform_(), 0, 12_288),
    ("aten::bernoulli_", lambda x: x.bernoulli_(0.5), 0, 12_288),
    # 3 rows of 64: source 768 B and three i64 read, 768 B written; index_add reads the rows too
    ("aten::index_add_", lambda x: x.index_add_(0, IDS, A[:3]), 768 + 24 + 768, 768),
    ("aten::index_put_", lambda x: x.__setitem__(IDS, A[:3]), 768 + 24, 768),
    ("aten::scatter_", lambda x: x.scatter_(1, IDS.view(3, 1), 1.0), 24, 12),
]


@pytest.mark.parametrize(("name", "function", "read", "written"), IN_PLACE, ids=[c[0][6:] for c in IN_PLACE])
def test_in_place_operators_allocate_nothing(record, name, function, read, written):
    x = f32(48, 64)
    _, roots = record(lambda: function(x))
    known = only(roots, name)
    assert (known.demand.read_bytes, known.demand.write_bytes, known.fresh_bytes) == (read, written, 0.0)


def test_out_variants_allocate_nothing(record):
    out = torch.empty(48, 64)
    _, roots = record(lambda: torch.add(A, B, out=out))
    known = only(roots, "aten::add")
    assert (known.demand.bytes, known.fresh_bytes) == (3 * 12_288, 0.0)


# --- FLOP against torch's own counter where that is right, and against a hand count where it is not -------------------


def counted_by_torch(function: Callable[[], Any]) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def grad(*shape: int) -> Any:
    return torch.rand(*shape, requires_grad=True)


PRODUCTS: dict[str, Callable[[], Any]] = {
    "linear": lambda: F.linear(grad(3, 5, 16), grad(24, 16), grad(24)).sum().backward(),
    "matmul": lambda: (grad(2, 3, 8, 16) @ grad(16, 4)).sum().backward(),
    "bmm": lambda: torch.bmm(grad(3, 8, 16), grad(3, 16, 4)).sum().backward(),
    "einsum": lambda: torch.einsum("bij,bkj->bik", grad(2, 4, 8), grad(2, 6, 8)),
    "conv1d": lambda: F.conv1d(grad(2, 4, 20), grad(8, 4, 3), stride=2).sum().backward(),
    "conv2d": lambda: F.conv2d(grad(2, 4, 20, 12), grad(8, 4, 3, 3), padding=1).sum().backward(),
    "groups": lambda: F.conv2d(grad(2, 4, 20, 12), grad(8, 2, 3, 3), padding=1, groups=2),
    "conv3d": lambda: F.conv3d(grad(1, 2, 6, 6, 6), grad(4, 2, 3, 3, 3), dilation=2).sum().backward(),
    "first_layer": lambda: F.conv2d(torch.rand(2, 4, 20, 12), grad(8, 4, 3, 3)).sum().backward(),
    "transposed": lambda: F.conv_transpose2d(grad(2, 4, 9, 9), grad(4, 8, 3, 3), stride=2).sum().backward(),
    "double": lambda: F.conv2d(grad(2, 4, 8, 8).double(), grad(8, 4, 3, 3).double()),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_flop_equal_torchs_counter(record, name):
    _, roots = record(PRODUCTS[name])
    assert total_flop(roots) == counted_by_torch(PRODUCTS[name]) > 0


def test_weight_gradient_of_a_grouped_convolution(record):
    # forward 2 * 2*8*240 * 2*9 = 138240, each gradient the same; torch 2.13's counter doubles the weight gradient here
    _, roots = record(lambda: F.conv2d(grad(2, 4, 20, 12), grad(8, 2, 3, 3), padding=1, groups=2).sum().backward())
    assert total_flop(roots) == 3 * 138_240


def test_what_torchs_counter_leaves_out(record):
    # each of these is 0 FLOP in torch 2.13's counter on a CPU
    x, y = torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)
    assert total_flop(record(lambda: torch._int_mm(x, y))[1]) == 2 * 32 * 16 * 8
    assert total_flop(record(lambda: torch.mv(A, ROW))[1]) == 2 * 48 * 64
    assert total_flop(record(lambda: torch.dot(ROW, ROW))[1]) == 2 * 64
    assert total_flop(record(lambda: torch.addmv(ROW[:48], A, ROW))[1]) == 2 * 48 * 64
    # rows 10 + 10 + 20, k = 64, n = 32
    ends = torch.tensor([10, 20, 40], dtype=torch.int32)
    rows, experts = torch.rand(40, 64, requires_grad=True), torch.rand(3, 64, 32, requires_grad=True)
    _, roots = record(lambda: F.grouped_mm(rows, experts, offs=ends).backward(torch.rand(40, 32)))
    assert total_flop(roots) == 3 * 2 * 40 * 64 * 32


def test_grouped_matmul_skips_rows_beyond_the_last_group_and_empty_groups(record):
    # 10 + 0 + 15 rows of 40; two of three experts are read: (25*64 + 2*64*32) * 4 B and 3 offsets of 4 B
    ends = torch.tensor([10, 10, 25], dtype=torch.int32)
    _, roots = record(lambda: F.grouped_mm(torch.rand(40, 64), torch.rand(3, 64, 32), offs=ends))
    known = only(roots, "aten::_grouped_mm")
    assert known.demand.total_flop == 2 * 25 * 64 * 32
    assert known.demand.read_bytes == 4 * (25 * 64 + 2 * 64 * 32) + 12


@pytest.mark.parametrize("causal", [True, False])
def test_attention_on_a_cpu(record, causal):
    # 2 sequences, 4 heads, 8 tokens, width 16: causal 36 pairs a head, full 64; 2 * 32 * pairs * 8; backward twice that
    q, k, v = grad(2, 4, 8, 16), grad(2, 4, 8, 16), grad(2, 4, 8, 16)
    _, roots = record(
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal).backward(torch.ones(2, 4, 8, 16))
    )
    pairs = 36 if causal else 64
    forward = only(roots, "aten::_scaled_dot_product_flash_attention_for_cpu")
    back = only(roots, "aten::_scaled_dot_product_flash_attention_for_cpu_backward")
    assert forward.demand.total_flop == 2 * 32 * pairs * 8
    assert back.demand.total_flop == 2 * forward.demand.total_flop
    assert forward.full_square_flop == (2 * 32 * 64 * 8 if causal else None)
    assert forward.demand.read_bytes == distinct_bytes(q, k, v)
    # results and the log-sum-exp of 2 * 4 * 8 rows
    assert forward.fresh_bytes == distinct_bytes(q) + 256


def test_attention_with_dropout_falls_apart_into_full_products(record):
    q = torch.rand(2, 4, 8, 16)
    _, roots = record(lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5))
    assert total_flop(roots) == 2 * 32 * 64 * 8


def test_grouped_query_attention_reads_the_shared_heads_once(record):
    q, k, v = torch.rand(1, 8, 4, 16), torch.rand(1, 2, 4, 16), torch.rand(1, 2, 4, 16)
    _, roots = record(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
    known = only(roots, "aten::_scaled_dot_product_flash_attention_for_cpu")
    # 10 pairs a head
    assert known.demand.total_flop == 2 * 32 * 10 * 8
    assert known.demand.read_bytes == distinct_bytes(q, k, v)


def test_lists_of_more_than_thirty_tensors(record):
    parameters = [torch.nn.Parameter(torch.rand(5, 7)) for _ in range(33)]
    for p in parameters:
        p.grad = torch.rand(5, 7)
    optimizer = torch.optim.AdamW(parameters, fused=True, weight_decay=0.1)
    optimizer.step()
    _, roots = record(optimizer.step)
    known = only(roots, "aten::_fused_adamw_")
    # 33 * 35 parameters, 28 B and 14 FLOP each
    assert (known.demand.bytes, known.demand.vector_flop) == (28.0 * 1155, {"f32": 14.0 * 1155})


def test_the_fused_and_the_plain_optimizer_move_the_same_state(record):
    def stepped(**options: Any) -> float:
        p = torch.nn.Parameter(torch.rand(300, 200))
        p.grad = torch.rand(300, 200)
        optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9, **options)
        optimizer.step()
        _, roots = record(optimizer.step)
        return sum(float(c.demand.bytes) for _, c in leaves(roots) if not isinstance(c.demand, Unknown))

    n = 300 * 200 * 4
    assert stepped(fused=True) == 5 * n  # parameter, gradient, momentum read; parameter and momentum written
    # momentum *= mu (2, and mu itself as a tensor without dimensions), += grad (3), parameter += -lr * momentum (3)
    assert stepped(foreach=False) == 8 * n + 8
    assert stepped(foreach=True) == 8 * n


# --- whole models -----------------------------------------------------------------------------------------------------


def share_known(nodes: list[Node]) -> tuple[float, list[str]]:
    """Share of the time of leaf operators whose demand is known, and the operators that are not in the table."""
    found = leaves(nodes)
    spent = sum(n.end - n.start for n, _ in found)
    known = sum(n.end - n.start for n, c in found if not isinstance(c.demand, Unknown))
    return known / spent, sorted({n.call.name for n, c in found if c.kind == "unknown"})


def training(model: Any, loss: Callable[[], Any]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step()
    return step


def check(record: Any, step: Callable[[], Any], expected_flop: float) -> None:
    _, roots = record(step)
    share, unknown = share_known(roots)
    assert unknown == []
    assert share >= 0.95
    assert total_flop(roots) == pytest.approx(expected_flop, rel=1e-3)


IDS_2x64 = torch.randint(0, 1000, (2, 64), generator=torch.Generator().manual_seed(0))
TOKENS = 128


def test_gpt2(record):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2,
        n_head=4,
        n_embd=128,
        vocab_size=1000,
        n_positions=128,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    # per layer: qkv 2*128*384, projection 2*128*128, two of 2*128*512 = 393216 FLOP a token; head 2*128*1000 = 256000
    # attention: 4 heads of 32, pairs 64*65/2 = 2080: 2*64*2080*4 per sequence and layer
    linear = (2 * 393_216 + 256_000) * TOKENS
    core = 2 * 2 * (2 * 64 * 2080 * 4)
    check(record, training(model, lambda: model(input_ids=IDS_2x64, labels=IDS_2x64).loss), 3 * (linear + core))
    model.eval()
    with torch.no_grad():
        check(record, lambda: model(input_ids=IDS_2x64), linear + core)


@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
def test_mixtral(record, experts):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        num_hidden_layers=2, hidden_size=128, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=4, num_experts_per_tok=2, vocab_size=1000,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation=experts)
    # q and o 2*128*128 each, k and v 2*128*64 each, router 2*128*4, two experts of 6*128*256, per token and layer
    layer = 4 * 128 * 128 + 4 * 128 * 64 + 2 * 128 * 4 + 2 * 6 * 128 * 256
    core = 2 * 2 * (2 * 64 * 2080 * 4)
    # rotary angles: inv_freq (1, 16, 1) times positions (1, 1, 64), once per forward
    angles = 2 * 16 * 64
    forward = (2 * layer + 256_000) * TOKENS + core
    check(record, training(model, lambda: model(input_ids=IDS_2x64, labels=IDS_2x64).loss), 3 * forward + angles)
    with torch.no_grad():
        check(record, lambda: model(input_ids=IDS_2x64), forward + angles)


def test_bert(record):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=128, num_attention_heads=4, intermediate_size=256, vocab_size=1000,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config)
    # four of 2*128*128, two of 2*128*256 per layer; head transform 2*128*128 and 2*128*1000; full attention 64*64 pairs
    linear = (2 * (8 * 128 * 128 + 4 * 128 * 256) + 2 * 128 * 128 + 256_000) * TOKENS
    core = 2 * 2 * (2 * 64 * 4096 * 4)
    check(record, training(model, lambda: model(input_ids=IDS_2x64, labels=IDS_2x64).loss), 3 * (linear + core))


def test_convolutional_network(record):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (
                nn.Conv2d(16, 16, 3, padding=1, bias=False),
                nn.Conv2d(16, 16, 3, padding=1, bias=False),
            )
            self.norm, self.norm2 = nn.BatchNorm2d(16), nn.BatchNorm2d(16)

        def forward(self, x: Any) -> Any:
            return F.relu(x + self.norm2(self.two(F.relu(self.norm(self.one(x)), inplace=True))))

    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    x, target = torch.rand(4, 3, 64, 64), torch.tensor([0, 1, 2, 3])
    # stem: out 32x32: 2*4*16*1024*3*49; block: two of 2*4*16*256*16*9; head 2*4*16*10. The stem needs no input gradient.
    stem, block, head = 2 * 4 * 16 * 1024 * 147, 2 * (2 * 4 * 16 * 256 * 144), 2 * 4 * 16 * 10
    check(record, training(model, lambda: F.cross_entropy(model(x), target)), 2 * stem + 3 * (block + head))
    model.eval()
    with torch.no_grad():
        check(record, lambda: model(x), stem + block + head)


def test_lstm(record):
    nn = torch.nn
    embed, layers, out = nn.Embedding(100, 32), nn.LSTM(32, 64, 2, batch_first=True), nn.Linear(64, 100)
    ids = torch.randint(0, 100, (4, 16))
    model = nn.ModuleList([embed, layers, out])

    def forward() -> Any:
        return out(layers(embed(ids))[0])

    # 64 positions: 4 gates: 2*4*64*(32+64) and 2*4*64*(64+64); head 2*64*100
    count = 64 * (8 * 64 * 96 + 8 * 64 * 128 + 12_800)
    check(record, training(model, lambda: F.cross_entropy(forward().flatten(0, 1), ids.flatten())), 3 * count)
    with torch.no_grad():
        check(record, forward, count)


def test_generation(record):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=128, vocab_size=1000, n_positions=128)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        model.generate(IDS_2x64[:, :8], max_new_tokens=2, pad_token_id=0)
        _, roots = record(
            lambda: model.generate(IDS_2x64[:, :8], max_new_tokens=4, do_sample=True, top_k=50, pad_token_id=0)
        )
    share, unknown = share_known(roots)
    assert unknown == []
    assert share >= 0.95
    # prefill of 8 tokens and three of one, two sequences: linear 2*393216 each, head once per sequence and step
    linear = 2 * (2 * 393_216) * (8 + 3) + 2 * 256_000 * 4
    # pairs: 36 causal, then 9 + 10 + 11; two layers, two sequences
    core = 2 * 2 * (2 * 64 * 4 * (36 + 30))
    assert total_flop(roots) == pytest.approx(linear + core, rel=1e-3)
