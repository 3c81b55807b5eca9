"""Dense attention in PyTorch: the fused operator, FlexAttention, and by its definition.

PyTorch is imported inside the functions. Layout is (batch, heads, length, head_dim).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown
from mansard.measure.benchmarks.attention_reference import Operands, check_attention, heads_of
from mansard.measure.benchmarks.attention_shape import AttentionShape
from mansard.measure.benchmarks.entry import prepared_torch
from mansard.measure.points import with_torch
from mansard.measure.points.benchmark import Check, Params, Prepared, Where

_CHOICES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overridable"}
_EXPECTED = (
    "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention", "aten::bmm", "aten::mm",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward", "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward", "aten::_scaled_dot_product_cudnn_attention_backward",
)  # fmt: skip


def prepare_attention(shape: AttentionShape, impl: str, params: Params, where: Where) -> Prepared:
    """Return one implementation ready, with its check against f64."""
    import torch

    device = with_torch.device_of(where.platform)
    q, k, v, g = operands(shape, device)
    function, facts = _implementation(shape, impl, (q, k, v), device)
    backward = shape.mode != "fwd"
    for x in (q, k, v):
        x.requires_grad_(backward)
    if not backward:
        run, args = function, [q, k, v]
    elif shape.mode == "fwd_bwd":

        def run(q: Any, k: Any, v: Any, g: Any) -> Any:
            out = function(q, k, v)
            return (out, *torch.autograd.grad(out, (q, k, v), g))

        args = [q, k, v, g]
    else:
        out = function(q, k, v)

        def run(q: Any, k: Any, v: Any, g: Any) -> Any:
            return torch.autograd.grad(out, (q, k, v), g, retain_graph=True)

        args = [q, k, v, g]
    expected = () if impl == "torch-flex" else _EXPECTED
    call = with_torch.prepared(run, args, device=device, expected=expected, grad=backward)
    made = prepared_torch(
        call,
        lambda: _check(shape, (q, k, v, g), call.result),
        params,
        shown=dict(zip("qkvg", args, strict=False)),
        facts={
            "implementation": impl,
            "layout": "batch, heads, length, head_dim",
            "mode": shape.mode,
            "visible_pairs": shape.pairs,
            **facts,
        },
    )
    if impl == "torch-flex":
        made.count_by_compiler = lambda: Unknown("PyTorch's counter does not see inside a compiled FlexAttention")
    return made


def operands(shape: AttentionShape, device: Any) -> tuple[Any, Any, Any, Any]:
    """Return random Q, K, V and the gradient of the result."""

    def made(heads: int, length: int, width: int, seed: int) -> Any:
        return with_torch.tensor((shape.batch, heads, length, width), shape.dtype, seed=seed, device=device)

    return (
        made(shape.heads, shape.queries, shape.head_dim, 1),
        made(shape.kv_heads, shape.keys, shape.head_dim, 2),
        made(shape.kv_heads, shape.keys, shape.value_dim, 3),
        made(shape.heads, shape.queries, shape.value_dim, 4),
    )


def _implementation(
    shape: AttentionShape, impl: str, qkv: tuple[Any, Any, Any], device: Any
) -> tuple[Callable[..., Any], dict[str, Any]]:
    if impl == "torch-sdpa":
        return _fused(shape, qkv)
    if impl == "torch-naive":
        return _naive(shape, device), {"scores": "written to memory"}
    if impl == "torch-flex":
        return _flex(shape, device), {"scores": "kept on the chip"}
    raise UsageError(f"attention has no implementation {impl!r} in PyTorch", hint="torch-sdpa, torch-flex, torch-naive")


def _fused(shape: AttentionShape, qkv: tuple[Any, Any, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    import torch

    options = {"is_causal": shape.causal, "scale": shape.scale, "enable_gqa": shape.heads != shape.kv_heads}
    attend: Any = torch.nn.functional.scaled_dot_product_attention
    choose = getattr(torch, "_fused_sdp_choice", None)
    kernel: Any = Unknown("this PyTorch does not say which kernel it chooses")
    if choose is not None:
        kernel = _CHOICES.get(int(choose(*qkv, **options)), "unnamed")
    return (lambda q, k, v: attend(q, k, v, **options)), {"kernel": kernel}


def _naive(shape: AttentionShape, device: Any) -> Callable[..., Any]:
    import torch

    group = shape.heads // shape.kv_heads
    hidden = torch.ones((shape.queries, shape.keys), dtype=torch.bool, device=device).triu(1) if shape.causal else None

    def attend(q: Any, k: Any, v: Any) -> Any:
        grouped = q.reshape(shape.batch, shape.kv_heads, group * shape.queries, shape.head_dim)
        scores = (grouped @ k.transpose(-1, -2)) * shape.scale
        if hidden is not None:
            scores = scores.unflatten(2, (group, shape.queries)).masked_fill(hidden, -torch.inf).flatten(2, 3)
        weights = torch.softmax(scores, dim=-1)
        return (weights @ v).reshape(shape.batch, shape.heads, shape.queries, shape.value_dim)

    return attend


def _flex(shape: AttentionShape, device: Any) -> Callable[..., Any]:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
        return query >= key

    mask = (
        create_block_mask(causal, None, None, shape.queries, shape.keys, device=device.type) if shape.causal else None
    )
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    options = {"block_mask": mask, "scale": shape.scale, "enable_gqa": shape.heads != shape.kv_heads}
    return lambda q, k, v: compiled(q, k, v, **options)


def _check(shape: AttentionShape, inputs: tuple[Any, Any, Any, Any], result: Any) -> Check:
    q, k, v, g, *results = (
        heads_of(x, with_torch.values, heads_first=True)
        for x in (*inputs, *(result if isinstance(result, tuple | list) else (result,)))
    )
    out = None if shape.mode == "bwd" else results[0]
    gradients = None if shape.mode == "fwd" else (results[-3], results[-2], results[-1])
    return check_attention(shape, Operands(q=q, k=k, v=v, g=g), out, gradients)
