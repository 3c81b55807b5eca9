"""Attention blocks: grouped-query, cross, latent, and the indexer of sparse attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mansard.workload.blocks.weight import Norm, Weight, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class GqaAttention:
    """Multi-head, grouped-query or multi-query attention; full, windowed or chunked.

    Args:
        hidden: Width of the residual stream (and of the output).
        heads: Query heads.
        kv_heads: Key and value heads; `heads` for multi-head, 1 for multi-query.
        head_dim: Width of a query and key head.
        v_head_dim: Width of a value head.
        window: A query sees at most this many keys, itself included; None: all.
        chunk: Queries see keys of their own chunk of this length only; None: no chunks.
        causal: False for encoders.
        qk_norm: None, one norm per head width (`head`), over the whole projection (`full`), or without scale (`plain`).
        qk_norm_bias: The query and key norms are layer norms with bias.
        v_norm: Values are normalised without scale (Gemma 4).
        q_bias, k_bias, v_bias, out_bias: Whether each projection adds a bias.
        output_gate: The query projection is twice as wide and gates the output.
        k_eq_v: One projection serves as key and value.
        shares_kv: Keys and values come from an earlier layer: no projection, no cache of its own.
        sinks: A learned scalar per head joins the softmax.
        rotary_dim: Elements of a head that RoPE rotates; 0 without RoPE.
        bias_buckets: Entries of a relative position bias per head that this layer owns (T5), 0 otherwise.
        out_hidden: Width that the output projection writes, where it is not `hidden`.
        softmax: False where a linear form replaces it.
        extra: Learned tensors that belong to no other field (position biases, per-head scalars).
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    path: str = "self_attn"
    window: int | None = None
    chunk: int | None = None
    causal: bool = True
    qk_norm: Literal["none", "head", "full", "plain"] = "none"
    qk_norm_bias: bool = False
    v_norm: bool = False
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    out_bias: bool = False
    output_gate: bool = False
    k_eq_v: bool = False
    shares_kv: bool = False
    sinks: bool = False
    rotary_dim: int = 0
    bias_buckets: int = 0
    out_hidden: int | None = None
    extra: tuple[Weight, ...] = ()

    @property
    def q_width(self) -> int:
        """Elements of all query heads of one token (without an output gate)."""
        return self.heads * self.head_dim

    @property
    def k_width(self) -> int:
        """Elements of all key heads of one token."""
        return self.kv_heads * self.head_dim

    @property
    def v_width(self) -> int:
        """Elements of all value heads of one token."""
        return self.kv_heads * self.v_head_dim

    def weights(self) -> tuple[Weight, ...]:
        """Return the projections, their biases, the query and key norms and the sinks."""
        p = self.path
        q_out = self.q_width + (self.heads * self.v_head_dim if self.output_gate else 0)
        out = linear(f"{p}.q_proj", q_out, self.hidden, "attention", bias=self.q_bias)
        if not self.shares_kv:
            out += linear(f"{p}.k_proj", self.k_width, self.hidden, "attention", bias=self.k_bias)
            if not self.k_eq_v:
                out += linear(f"{p}.v_proj", self.v_width, self.hidden, "attention", bias=self.v_bias)
        target = self.out_hidden if self.out_hidden is not None else self.hidden
        out += linear(f"{p}.o_proj", target, self.heads * self.v_head_dim, "attention", bias=self.out_bias)
        out += self._norm_weights()
        if self.sinks:
            out += (Weight(name=f"{p}.sinks", shape=(self.heads,), role="other", block="attention"),)
        if self.bias_buckets:
            shape = (self.bias_buckets, self.heads)
            out += (Weight(name=f"{p}.relative_attention_bias", shape=shape, role="embedding", block="attention"),)
        return out + self.extra

    def _norm_weights(self) -> tuple[Weight, ...]:
        if self.qk_norm in ("none", "plain"):
            return ()
        per_head = self.qk_norm == "head"
        q_norm, k_norm = (self.head_dim, self.head_dim) if per_head else (self.q_width, self.k_width)
        out = Norm(width=q_norm, path=f"{self.path}.q_norm", bias=self.qk_norm_bias).weights()
        if not self.shares_kv:
            out += Norm(width=k_norm, path=f"{self.path}.k_norm", bias=self.qk_norm_bias).weights()
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Attention of decoder queries to the output of an encoder; keys and values are computed once per encoder token.

    Args:
        source_hidden: Width of the encoder's output.
    """

    hidden: int
    source_hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    path: str = "encoder_attn"
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["none", "head"] = "none"

    @property
    def q_width(self) -> int:
        """Elements of all query heads of one token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of all key heads of one encoder token."""
        return self.kv_heads * self.head_dim

    def weights(self) -> tuple[Weight, ...]:
        """Return the four projections and their biases."""
        p, b = self.path, "attention"
        out = linear(f"{p}.q_proj", self.q_width, self.hidden, b, bias=self.q_bias)
        out += linear(f"{p}.k_proj", self.kv_width, self.source_hidden, b, bias=self.k_bias)
        out += linear(f"{p}.v_proj", self.kv_width, self.source_hidden, b, bias=self.v_bias)
        out += linear(f"{p}.o_proj", self.hidden, self.q_width, b, bias=self.out_bias)
        if self.qk_norm == "head":
            out += Norm(width=self.head_dim, path=f"{p}.q_norm").weights()
            out += Norm(width=self.head_dim, path=f"{p}.k_norm").weights()
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseIndexer:
    """The scorer of DeepSeek sparse attention: small heads rank all keys, `top_k` of them are attended to.

    Args:
        query_in: Width it reads queries from (the query latent).
        head_dim: Width of an index head; the one index key per token is as wide.
    """

    hidden: int
    query_in: int
    heads: int
    head_dim: int
    top_k: int
    path: str = "self_attn.indexer"
    key_norm_bias: bool = True

    def weights(self) -> tuple[Weight, ...]:
        """Return query, key and head-weight projections and the norm of the key."""
        p = self.path
        out = linear(f"{p}.wq_b", self.heads * self.head_dim, self.query_in, "indexer")
        out += linear(f"{p}.wk", self.head_dim, self.hidden, "indexer")
        out += Norm(width=self.head_dim, path=f"{p}.k_norm", kind="layer", bias=self.key_norm_bias).weights()
        return out + linear(f"{p}.weights_proj", self.heads, self.hidden, "indexer")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaAttention:
    """Multi-head latent attention: keys and values are expanded from one latent of `kv_rank` per token.

    Args:
        q_rank: Rank of the query latent; None: queries are projected directly.
        kv_rank: Width of the shared latent, which the cache holds with `rope_dim` more elements.
        nope_dim, rope_dim, v_dim: Head widths without and with position, and of the values.
        indexer: The sparse scorer, where there is one.
        shared_top_k: Keys attended to where an earlier layer's scorer picked them; None: no scorer, or one of its own.
    """

    hidden: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    path: str = "self_attn"
    bias: bool = False
    indexer: SparseIndexer | None = None
    shared_top_k: int | None = None

    @property
    def top_k(self) -> int | None:
        """Keys a query attends to at most; None: all."""
        return self.indexer.top_k if self.indexer else self.shared_top_k

    @property
    def qk_dim(self) -> int:
        """Width of a query and key head."""
        return self.nope_dim + self.rope_dim

    @property
    def cache_width(self) -> int:
        """Elements the cache holds per token, whatever the number of heads or the tensor parallelism."""
        return self.kv_rank + self.rope_dim

    def weights(self) -> tuple[Weight, ...]:
        """Return the down and up projections, the norms of the latents, the output and the indexer."""
        p, b, n = self.path, "attention", self.heads
        if self.q_rank is None:
            out = linear(f"{p}.q_proj", n * self.qk_dim, self.hidden, b)
        else:
            out = linear(f"{p}.q_a_proj", self.q_rank, self.hidden, b, bias=self.bias)
            out += Norm(width=self.q_rank, path=f"{p}.q_a_layernorm").weights()
            out += linear(f"{p}.q_b_proj", n * self.qk_dim, self.q_rank, b)
        out += linear(f"{p}.kv_a_proj_with_mqa", self.cache_width, self.hidden, b, bias=self.bias)
        out += Norm(width=self.kv_rank, path=f"{p}.kv_a_layernorm").weights()
        out += linear(f"{p}.kv_b_proj", n * (self.nope_dim + self.v_dim), self.kv_rank, b)
        out += linear(f"{p}.o_proj", self.hidden, n * self.v_dim, b, bias=self.bias)
        return out + (self.indexer.weights() if self.indexer else ())
