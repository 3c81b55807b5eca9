"""Costs of recorded attention cores, forward and backward, of every backend."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.operators.attention import Alignment, attention, attention_backward, visible_pairs
from mansard.operators.counting import Elements
from mansard.trace.aten.arguments import Arguments, NotRecordedError, Tensor
from mansard.trace.aten.call import AtenCost
from mansard.trace.aten.making import Handler, work


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an attention operator keeps what matters.

    Args:
        first: Position of the query; key and value follow.
        causal: Position of the causal flag, or of the mask type.
        mask: Position of a mask or bias tensor; None if it takes none.
        heads_first: Whether the layout is (batch, heads, sequence, width), else (batch, sequence, heads, width).
        packed: Position of the sequence boundaries; None if it takes none.
        alignment: Where a causal mask that is not square begins.
        mask_type: Whether `causal` is 0 none, 1 causal from the top left, 2 from the bottom right.
        window: Position of the left window; None if it takes none.
    """

    first: int
    causal: int
    mask: int | None = None
    heads_first: bool = True
    packed: int | None = None
    alignment: Alignment = "top_left"
    mask_type: bool = False
    window: int | None = None


FORWARD: dict[str, Layout] = {
    "_scaled_dot_product_flash_attention_for_cpu": Layout(0, 4, mask=5),
    "_scaled_dot_product_flash_attention": Layout(0, 4),
    "_scaled_dot_product_efficient_attention": Layout(0, 6, mask=3),
    "_scaled_dot_product_cudnn_attention": Layout(0, 6, mask=3),
    "_scaled_dot_product_fused_attention_overrideable": Layout(0, 5, mask=3),
    "_flash_attention_forward": Layout(0, 8, heads_first=False, packed=3, alignment="bottom_right", window=11),
    "_efficient_attention_forward": Layout(0, 9, mask=3, heads_first=False, packed=4, mask_type=True),
    "_cudnn_attention_forward": Layout(0, 10, mask=3, packed=4),
    "_flash_attn_forward": Layout(0, 5, heads_first=False, alignment="bottom_right", window=6),
}
BACKWARD: dict[str, Layout] = {
    "_scaled_dot_product_flash_attention_for_cpu_backward": Layout(1, 7, mask=8),
    "_scaled_dot_product_flash_attention_backward": Layout(1, 11),
    "_scaled_dot_product_efficient_attention_backward": Layout(1, 11, mask=4),
    "_scaled_dot_product_cudnn_attention_backward": Layout(1, 14, mask=8),
    "_flash_attention_backward": Layout(1, 11, heads_first=False, packed=6, alignment="bottom_right", window=15),
    "_efficient_attention_backward": Layout(1, 14, mask=4, heads_first=False, packed=6, mask_type=True),
}


@dataclass(frozen=True, slots=True)
class _Core:
    """What was asked for."""

    q: Tensor
    k: Tensor
    v: Tensor
    sizes: tuple[int, int, int, int, int, int]
    mask: Tensor | None
    causal: bool
    alignment: Alignment
    window: int | None

    @property
    def words(self) -> str:
        batch, heads, queries, keys, width, _ = self.sizes
        kind = "causal, exact" if self.causal else "full"
        if self.mask is not None:
            kind = "a given mask, counted in full"
        if self.window is not None:
            kind += f", window {self.window}"
        return f"batch={batch} heads={heads} queries={queries} keys={keys} width={width}, {kind}"


def _core(args: Arguments, layout: Layout) -> _Core:
    q, k, v = (args.tensor(layout.first + i) for i in range(3))
    if len(q.shape) != 4:
        raise NotRecordedError(
            f"{args.call.name}: packed sequences; their lengths are values of a tensor, which are not recorded",
            "the length of each sequence",
        )
    if layout.packed is not None and args.is_tensor(layout.packed) and args.tensor(layout.packed).shape[0] != 2:
        raise NotRecordedError(
            f"{args.call.name}: packed sequences; their lengths are values of a tensor, which are not recorded",
            "the length of each sequence",
        )
    head, seq = (1, 2) if layout.heads_first else (2, 1)
    sizes = (q.shape[0], q.shape[head], q.shape[seq], k.shape[seq], q.shape[3], v.shape[3])
    alignment = layout.alignment
    if layout.mask_type:
        kind = args.integer(layout.causal)
        causal, alignment = kind > 0, "bottom_right" if kind == 2 else "top_left"
    else:
        causal = args.flag(layout.causal)
    window = None
    if layout.window is not None and args.text(layout.window) not in ("", "-1"):
        window = args.integer(layout.window) + 1
        if not causal:
            raise NotRecordedError(f"{args.call.name}: a window without a causal mask has no cost function")
    mask = args.maybe(layout.mask) if layout.mask is not None else None
    if mask is not None and len(mask.shape) < 2:
        mask = None
    return _Core(q, k, v, sizes, mask, causal and mask is None, alignment, window)


def _stored(core: _Core) -> tuple[Elements, Elements, Elements]:
    return core.q.operand, core.k.operand, core.v.operand


def forward(args: Arguments) -> AtenCost:
    """Attention, forward."""
    layout = FORWARD[args.base]
    core = _core(args, layout)
    batch, heads, queries, keys, width, value = core.sizes
    kv_heads = core.k.shape[1 if layout.heads_first else 2]
    demand = attention(
        batch=batch, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys, head_dim=width, value_dim=value, dtype=core.q.dtype,
        causal=core.causal, window=core.window, alignment=core.alignment, mask=core.mask.operand if core.mask else None,
        statistics=True, stored=_stored(core),
    )  # fmt: skip
    full = 2.0 * queries * keys * heads * batch * (width + value)
    lse = (float(batch * heads * queries), "f64" if core.q.dtype == "f64" else "f32")
    return work(
        "attention",
        demand,
        fresh=((float(batch * heads * queries * value), core.q.dtype), lse),
        formula=f"2 (d + d_v) per visible pair, {core.words}",
        full_square_flop=full if core.causal else None,
    )


def backward(args: Arguments) -> AtenCost:
    """Attention, backward."""
    layout = BACKWARD[args.base]
    core = _core(args, layout)
    batch, heads, queries, keys, width, value = core.sizes
    kv_heads = core.k.shape[1 if layout.heads_first else 2]
    pairs = visible_pairs(queries=queries, keys=keys, causal=core.causal, window=core.window, alignment=core.alignment)
    demand = attention_backward(
        batch=batch, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys, head_dim=width, value_dim=value, dtype=core.q.dtype,
        causal=core.causal, pairs=pairs, mask=core.mask.operand if core.mask else None, stored=_stored(core),
    )  # fmt: skip
    full = 4.0 * queries * keys * heads * batch * (width + value)
    sizes = tuple((t.elements, t.dtype) for t in (core.q, core.k, core.v))
    return work(
        "attention",
        demand,
        fresh=sizes,
        formula=f"twice the forward (executes 2.5 times with the recomputed scores), {core.words}",
        full_square_flop=full if core.causal else None,
    )


HANDLERS: dict[str, Handler] = {**dict.fromkeys(FORWARD, forward), **dict.fromkeys(BACKWARD, backward)}
