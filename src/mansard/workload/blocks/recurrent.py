"""Blocks with a state of fixed size: Mamba 1 and 2, gated delta networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mansard.workload.blocks.weight import Norm, Weight, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1:
    """A selective state space block (Mamba 1).

    Args:
        inner: Width d_i of the state space.
        state: States N per channel.
        dt_rank: Rank R of the step projection.
        conv: Kernel length d_c of the depthwise convolution.
        inner_norm: Norms on step, B and C: none, `plain` without scale (Falcon Mamba), `scaled` (Jamba).
    """

    hidden: int
    inner: int
    state: int
    dt_rank: int
    conv: int
    path: str = "mixer"
    bias: bool = False
    conv_bias: bool = True
    inner_norm: Literal["none", "plain", "scaled"] = "none"

    def weights(self) -> tuple[Weight, ...]:
        """Return the projections, the convolution, A, D and the step bias."""
        p, b = self.path, "ssm"
        out = linear(f"{p}.in_proj", 2 * self.inner, self.hidden, b, bias=self.bias)
        out += (Weight(name=f"{p}.conv1d", shape=(self.inner, 1, self.conv), role="conv", block=b),)
        if self.conv_bias:
            out += (Weight(name=f"{p}.conv1d.bias", shape=(self.inner,), role="bias", block=b),)
        out += linear(f"{p}.x_proj", self.dt_rank + 2 * self.state, self.inner, b)
        out += linear(f"{p}.dt_proj", self.inner, self.dt_rank, b, bias=True)
        out += (Weight(name=f"{p}.A_log", shape=(self.inner, self.state), role="other", block=b),)
        out += (Weight(name=f"{p}.D", shape=(self.inner,), role="other", block=b),)
        if self.inner_norm == "scaled":
            for name, width in (
                ("dt_layernorm", self.dt_rank),
                ("b_layernorm", self.state),
                ("c_layernorm", self.state),
            ):
                out += Norm(width=width, path=f"{p}.{name}").weights()
        return out + linear(f"{p}.out_proj", self.hidden, self.inner, b, bias=self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """A state space duality block (Mamba 2).

    Args:
        heads, head_dim: `heads * head_dim` is the inner width.
        state: States N per head channel.
        groups: Groups G that share B and C.
        conv: Kernel length of the depthwise convolution over inner + 2 G N channels.
        gated_norm: Whether the output is normalised, with a scale of the inner width.
    """

    hidden: int
    heads: int
    head_dim: int
    state: int
    groups: int
    conv: int
    path: str = "mixer"
    bias: bool = False
    conv_bias: bool = True
    gated_norm: bool = True

    @property
    def inner(self) -> int:
        """Inner width."""
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels that the convolution and its state hold."""
        return self.inner + 2 * self.groups * self.state

    def weights(self) -> tuple[Weight, ...]:
        """Return the projections, the convolution, A, D, the step bias and the norm."""
        p, b = self.path, "ssm"
        out = linear(f"{p}.in_proj", self.inner + self.conv_channels + self.heads, self.hidden, b, bias=self.bias)
        out += (Weight(name=f"{p}.conv1d", shape=(self.conv_channels, 1, self.conv), role="conv", block=b),)
        if self.conv_bias:
            out += (Weight(name=f"{p}.conv1d.bias", shape=(self.conv_channels,), role="bias", block=b),)
        for name in ("A_log", "D", "dt_bias"):
            out += (Weight(name=f"{p}.{name}", shape=(self.heads,), role="other", block=b),)
        if self.gated_norm:
            out += Norm(width=self.inner, path=f"{p}.norm").weights()
        return out + linear(f"{p}.out_proj", self.hidden, self.inner, b, bias=self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """Linear attention with a gated delta rule (Qwen3-Next, Qwen3.5).

    Args:
        k_heads, v_heads: Key and value heads; a key head serves `v_heads / k_heads` value heads.
        k_dim, v_dim: Widths of a key and a value head.
        conv: Kernel length of the depthwise convolution over queries, keys and values.
    """

    hidden: int
    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    conv: int
    path: str = "linear_attn"

    @property
    def k_width(self) -> int:
        """Elements of all key heads of one token."""
        return self.k_heads * self.k_dim

    @property
    def v_width(self) -> int:
        """Elements of all value heads of one token."""
        return self.v_heads * self.v_dim

    @property
    def conv_channels(self) -> int:
        """Channels that the convolution and its state hold."""
        return 2 * self.k_width + self.v_width

    def weights(self) -> tuple[Weight, ...]:
        """Return the four input projections, the convolution, the decay, the norm and the output."""
        p, b = self.path, "linear_attention"
        out = linear(f"{p}.in_proj_qkv", self.conv_channels, self.hidden, b)
        out += linear(f"{p}.in_proj_z", self.v_width, self.hidden, b)
        out += linear(f"{p}.in_proj_b", self.v_heads, self.hidden, b)
        out += linear(f"{p}.in_proj_a", self.v_heads, self.hidden, b)
        out += (Weight(name=f"{p}.conv1d", shape=(self.conv_channels, 1, self.conv), role="conv", block=b),)
        out += (Weight(name=f"{p}.dt_bias", shape=(self.v_heads,), role="other", block=b),)
        out += (Weight(name=f"{p}.A_log", shape=(self.v_heads,), role="other", block=b),)
        out += Norm(width=self.v_dim, path=f"{p}.norm").weights()
        return out + linear(f"{p}.out_proj", self.hidden, self.v_width, b)
