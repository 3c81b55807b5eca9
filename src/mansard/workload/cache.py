"""Bytes that attention caches and recurrent states take: per token, per window, per sequence, under tensor parallelism.

A cache is `fixed + growing * tokens + sum over windows of min(tokens, window) * bytes`. Layers with full attention grow
without bound, windowed and chunked layers stop growing, recurrent states never grow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mansard.core.dtypes import dtype_bytes
from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown
from mansard.workload.model.decoder import Traits, head_width
from mansard.workload.model.reader import Log, Reader
from mansard.workload.parallel import InfeasibleError
from mansard.workload.records import (
    Assumed,
    Block,
    CrossAttention,
    Derived,
    GatedDeltaNet,
    GqaAttention,
    Mamba1,
    Mamba2,
    MlaAttention,
    Model,
    Stack,
)

DEFAULT_STATE = (
    "f32"  # Recurrent states are kept in fp32 by every published kernel unless the configuration says otherwise.
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """What one tensor-parallel rank holds for one sequence.

    Args:
        growing_bytes: Per token, of layers that grow without bound [B/token].
        windows: Window length [tokens] and bytes per token [B/token] of the layers that stop growing there.
        fixed_bytes: Per sequence, whatever its length: recurrent states and convolution tails [B].
        source_bytes: Per encoder token, of cross attention [B/token].
        attention_layers: Layers that keep keys and values or a latent.
        notes: What a reader has to know: replication, stored twice, or assumed.
    """

    growing_bytes: float
    windows: tuple[tuple[int, float], ...] = ()
    fixed_bytes: float = 0.0
    source_bytes: float = 0.0
    attention_layers: int = 0
    notes: tuple[str, ...] = ()

    @property
    def first_token_bytes(self) -> float:
        """Bytes that one more token takes while no window is full [B/token]."""
        return self.growing_bytes + sum(size for _, size in self.windows)

    def bytes_for(self, tokens: float, source_tokens: float = 0.0) -> float:
        """Return the bytes that one sequence holds on this rank.

        >>> CacheLayout(growing_bytes=10.0, windows=((4, 2.0),), fixed_bytes=7.0).bytes_for(100)
        1015.0
        """
        held = sum(min(tokens, window) * size for window, size in self.windows)
        return self.fixed_bytes + self.growing_bytes * tokens + held + self.source_bytes * source_tokens


def heads_per_rank(kv_heads: int, tp: int) -> int:
    """Return the key heads that each rank keeps: a share of them, or one copy where there are more ranks than heads.

    Raises:
        InfeasibleError: neither number divides the other, so no layout exists.

    Source: head partition of tensor parallelism; vLLM and Megatron replicate key heads when tp exceeds them.

    >>> heads_per_rank(4, 8), heads_per_rank(8, 4)
    (1, 2)
    """
    if tp < 1:
        raise UsageError(f"tensor parallelism of {tp}, expected at least 1")
    if kv_heads % tp and tp % kv_heads:
        raise InfeasibleError(
            f"{kv_heads} key heads cannot be split over {tp} ranks: neither kv_heads % tp nor tp % kv_heads is 0",
            hint=f"use a tensor parallelism that divides {kv_heads} or is a multiple of it",
        )
    return math.ceil(kv_heads / tp)


@dataclass(slots=True)
class _Sum:
    growing: float = 0.0
    fixed: float = 0.0
    source: float = 0.0
    layers: int = 0
    windows: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _attention(total: _Sum, block: GqaAttention, count: int, size: float, tp: int) -> None:
    if not block.causal:
        return
    if block.shares_kv:
        total.note("some layers reuse the keys and values of earlier ones and hold none")
        return
    heads = heads_per_rank(block.kv_heads, tp)
    if tp > block.kv_heads:
        total.note(f"key heads replicated {tp // block.kv_heads}x: {block.kv_heads} heads on {tp} ranks")
    if block.k_eq_v:
        total.note("keys and values share a projection but are stored apart: keys are rotated, values are not")
    each = heads * (block.head_dim + block.v_head_dim) * size
    total.layers += count
    limits = [limit for limit in (block.window, block.chunk) if limit is not None]
    if limits:
        total.windows[min(limits)] = total.windows.get(min(limits), 0.0) + each * count
    else:
        total.growing += each * count


def _latent(total: _Sum, block: MlaAttention, count: int, size: float, index_size: float, tp: int) -> None:
    if tp > 1:
        total.note("latent cache whole on every tensor-parallel rank")
    total.layers += count
    each = block.cache_width * size
    if block.indexer is not None:
        each += block.indexer.head_dim * index_size
    total.growing += each * count


def _share(value: int, tp: int, what: str) -> float:
    if value % tp:
        raise InfeasibleError(f"{value} {what} cannot be split over {tp} ranks")
    return value / tp


def _state(total: _Sum, block: Block, count: int, size: float, state: float, tp: int) -> None:
    if isinstance(block, Mamba1):
        inner = _share(block.inner, tp, "channels of a state space block")
        each = inner * block.state * state + inner * (block.conv - 1) * size
    elif isinstance(block, Mamba2):
        heads = _share(block.heads, tp, "heads of a state space block")
        channels = heads * block.head_dim + 2 * math.ceil(block.groups / tp) * block.state
        each = heads * block.head_dim * block.state * state + channels * (block.conv - 1) * size
    elif isinstance(block, GatedDeltaNet):
        values = _share(block.v_heads, tp, "value heads of linear attention")
        keys = _share(block.k_heads, tp, "key heads of linear attention")
        channels = 2 * keys * block.k_dim + values * block.v_dim
        each = values * block.k_dim * block.v_dim * state + channels * (block.conv - 1) * size
    else:
        return
    total.fixed += each * count


def _stack(total: _Sum, stack: Stack, size: float, state: float, index_size: float, tp: int) -> None:
    for group in stack.groups:
        for block in group.layer.blocks:
            if isinstance(block, GqaAttention):
                _attention(total, block, group.count, size, tp)
            elif isinstance(block, MlaAttention):
                _latent(total, block, group.count, size, index_size, tp)
            elif isinstance(block, CrossAttention):
                total.source += 2 * heads_per_rank(block.kv_heads, tp) * block.head_dim * size * group.count
            else:
                _state(total, block, group.count, size, state, tp)


def cache_layout(
    model: Model,
    *,
    dtype: str | None = None,
    state_dtype: str | None = None,
    index_dtype: str | None = None,
    tp: int = 1,
) -> CacheLayout | Unknown:
    """Return what one tensor-parallel rank holds for one sequence of a model.

    Args:
        dtype: Element type of keys, values, latents and convolution tails; None: what the checkpoint prescribes, else the
            model's type; unknown where the configuration states neither.
        state_dtype: Element type of recurrent states; None: the configuration's, else fp32, which is noted.
        index_dtype: Element type of index keys of sparse attention; None: as `dtype`.
        tp: Tensor-parallel ranks.

    Raises:
        InfeasibleError: the heads cannot be split over `tp` ranks.

    Assumes: no page rounding; keys and values of encoders are not kept, those of cross attention are.
    Source: Shazeer 2019 (shared key heads); DeepSeek-V2 report, section 2.1 (latent); Gu and Dao 2023, 2024 (states).

    >>> from mansard.workload.model.load import load_model
    >>> cache_layout(load_model("llama-3.1-8b"), dtype="bf16").growing_bytes
    131072.0
    """
    if model.phase_gap is not None:
        return model.phase_gap
    chosen: str | Unknown
    if dtype is not None:
        chosen = dtype
    elif model.quantisation is not None and not isinstance(model.quantisation, Unknown) and model.quantisation.kv_dtype:
        chosen = model.quantisation.kv_dtype
    else:
        chosen = model.dtype
    if isinstance(chosen, Unknown):
        return Unknown("no element type of the cache is known", ("dtype of the cache",))
    size = float(dtype_bytes(chosen))
    total = _Sum()
    state = state_dtype or model.state_dtype or DEFAULT_STATE
    _stack(total, model.text, size, float(dtype_bytes(state)), float(dtype_bytes(index_dtype or chosen)), tp)
    if total.fixed and state_dtype is None and model.state_dtype is None:
        total.note("recurrent state in f32, as published kernels keep it")
    return CacheLayout(
        growing_bytes=total.growing, windows=tuple(sorted(total.windows.items())), fixed_bytes=total.fixed,
        source_bytes=total.source, attention_layers=total.layers, notes=tuple(total.notes),
    )  # fmt: skip


_PLAIN = Traits(source="plain attention, no architecture declared")
_TEXT_LEVELS = ("text_config", "thinker_config", "language_config", "llm_config")
# Any of these says that a cache is not plain keys and values in every layer.
_NOT_PLAIN = ("kv_lora_rank", "layer_types", "hybrid_override_pattern", "sliding_window_pattern", "state_size", "ssm_state_size",
              "linear_num_value_heads", "attention_chunk_size", "compress_ratios", "block_configs", "attn_layer_period",
              "num_kv_shared_layers", "full_attention_interval", "layers_block_type", "is_encoder_decoder")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCache:
    """The cache of plain attention, from its dimensions alone.

    Args:
        bytes_per_token: All layers, one rank [B/token].
        level: Keys that lead to the level that was read; empty for the top.
        derived, assumed: Where dimensions came from that are not stated.
    """

    bytes_per_token: float
    level: str
    derived: tuple[Derived, ...] = ()
    assumed: tuple[Assumed, ...] = ()


def plain_cache(config: Mapping[str, Any], *, dtype: str | None = None, tp: int = 1, where: str = "dict") -> PlainCache:
    """Return the cache per token from layers, heads and head width, where no architecture is needed to know it.

    The text decoder is read wherever it is nested, never a vision tower beside it.

    Raises:
        InputError: a dimension is missing (it is named), or the configuration describes another kind of cache.
        UsageError: no element type is stated, or the heads cannot be split.

    >>> plain_cache({"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}, dtype="f16").bytes_per_token
    36864.0
    """
    log = Log()
    reader = Reader(config, where, log)
    while True:
        inner = next((key for key in _TEXT_LEVELS if isinstance(reader.values.get(key), Mapping)), None)
        if inner is None:
            break
        reader = reader.nested(inner)
    other = next((key for key in _NOT_PLAIN if reader.values.get(key)), None)
    if other is not None or reader.raw("use_sliding_window") is True:
        raise reader.unsupported(
            f"{reader.full(other or 'use_sliding_window')} describes a cache that is not plain",
            "load_model and cache_layout",
        )
    depth, hidden = reader.integer("num_hidden_layers"), reader.optional("hidden_size")
    heads = reader.integer("num_attention_heads")
    kv = reader.optional("num_key_value_heads")
    if kv is None:
        kv = heads
        reader.assume("num_key_value_heads", heads, "absent or null: multi-head attention")
    if hidden is None and not reader.has("head_dim"):
        raise reader.missing("hidden_size")
    width = head_width(reader, _PLAIN, hidden or 1, heads)
    chosen = dtype or reader.raw("dtype") or config.get("torch_dtype") or config.get("dtype")
    if not isinstance(chosen, str):
        raise UsageError(f"{where}: no element type of the cache is stated", hint="give the dtype of the cache")
    each = 2 * heads_per_rank(kv, tp) * width * float(dtype_bytes(chosen))
    return PlainCache(
        bytes_per_token=each * depth, level=reader.path, derived=tuple(log.derived), assumed=tuple(log.assumed)
    )
