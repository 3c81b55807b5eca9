"""Feed-forward blocks, experts, and what stands alone: projections, convolutions, tables."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.workload.blocks.weight import Role, Weight, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """A feed-forward block: three matrices if gated, else two.

    Args:
        width: Inner width.
        gated: Whether a gate projection multiplies the up projection.
        activation: Name of the non-linearity, as the configuration gives it.
    """

    hidden: int
    width: int
    gated: bool
    activation: str
    path: str = "mlp"
    bias: bool = False
    out_bias: bool = False

    def weights(self) -> tuple[Weight, ...]:
        """Return gate (if any), up and down projection."""
        out: tuple[Weight, ...] = ()
        if self.gated:
            out += linear(f"{self.path}.gate_proj", self.width, self.hidden, "mlp", bias=self.bias)
        out += linear(f"{self.path}.up_proj", self.width, self.hidden, "mlp", bias=self.bias)
        return out + linear(f"{self.path}.down_proj", self.hidden, self.width, "mlp", bias=self.out_bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Routed experts, with shared experts that every token passes.

    Args:
        experts, top_k: E experts, k of them per token.
        width: Inner width of one routed expert.
        gated: Whether experts have a gate projection.
        shared_width: Inner width of all shared experts together, 0 without.
        shared_gate: A sigmoid gate of one output scales the shared expert.
        router_bias: The router adds a learned bias.
        correction_bias: Entries of a routing bias that is stored but not learned by gradient, 0 without.
        correction_learned: Whether that bias is a parameter (counted) instead of a buffer (stored only).
        expert_bias: Expert projections add biases.
        latent: Routed experts read and write this narrower width between two shared projections; None: `hidden`.
        shared_gated: Whether the shared experts have a gate projection.
        extra: Further learned tensors of the router.
    """

    hidden: int
    experts: int
    top_k: int
    width: int
    gated: bool
    activation: str
    path: str = "mlp"
    shared_width: int = 0
    shared_gated: bool = True
    shared_gate: bool = False
    router_bias: bool = False
    correction_bias: int = 0
    correction_learned: bool = False
    expert_bias: bool = False
    latent: int | None = None
    extra: tuple[Weight, ...] = ()

    @property
    def expert_hidden(self) -> int:
        """Width that routed experts read and write."""
        return self.hidden if self.latent is None else self.latent

    @property
    def expert_matrices(self) -> int:
        """Matrices of one expert."""
        return 3 if self.gated else 2

    @property
    def expert_params(self) -> int:
        """Matrix parameters of one routed expert."""
        return self.expert_matrices * self.expert_hidden * self.width

    def weights(self) -> tuple[Weight, ...]:
        """Return router, routed experts, shared experts and their gate."""
        p, h = self.path, self.expert_hidden
        router = Weight(name=f"{p}.gate", shape=(self.experts, self.hidden), role="matmul", block="router", keep=True)
        out: tuple[Weight, ...] = (router,)
        if self.router_bias:
            out += (Weight(name=f"{p}.gate.bias", shape=(self.experts,), role="bias", block="router"),)
        if self.correction_bias:
            role: Role = "other" if self.correction_learned else "buffer"
            shape = (self.correction_bias,)
            out += (Weight(name=f"{p}.gate.e_score_correction_bias", shape=shape, role=role, block="router"),)
        names = (("gate_proj", self.width, h),) if self.gated else ()
        for name, o, i in (*names, ("up_proj", self.width, h), ("down_proj", h, self.width)):
            path = f"{p}.experts.*.{name}"
            out += linear(path, o, i, "experts", bias=self.expert_bias, copies=self.experts, active=self.top_k)
        if self.latent is not None:
            out += linear(f"{p}.fc1_latent_proj", self.latent, self.hidden, "latent")
            out += linear(f"{p}.fc2_latent_proj", self.hidden, self.latent, "latent")
        return out + self._shared() + self.extra

    def _shared(self) -> tuple[Weight, ...]:
        if not self.shared_width:
            return ()
        shared = f"{self.path}.shared_experts"
        out: tuple[Weight, ...] = ()
        if self.shared_gated:
            out += linear(f"{shared}.gate_proj", self.shared_width, self.hidden, "shared_experts")
        out += linear(f"{shared}.up_proj", self.shared_width, self.hidden, "shared_experts")
        out += linear(f"{shared}.down_proj", self.hidden, self.shared_width, "shared_experts")
        if self.shared_gate:
            name = f"{self.path}.shared_expert_gate"
            out += (Weight(name=name, shape=(1, self.hidden), role="matmul", block="router", keep=True),)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """One affine map outside attention and feed-forward blocks: a projector, a pooler, a head.

    Args:
        tied: Its matrix is the embedding table: it multiplies, but is not stored again.
        rows_per_token: Rows it multiplies per token of its stack (1/4 after a 2 x 2 merge).
    """

    out: int
    into: int
    path: str
    block: str
    bias: bool = False
    tied: bool = False
    rows_per_token: float = 1.0

    def weights(self) -> tuple[Weight, ...]:
        """Return the matrix and its bias."""
        shape = (self.out, self.into)
        matrix = Weight(name=self.path, shape=shape, role="matmul", block=self.block, tied=self.tied)
        if not self.bias:
            return (matrix,)
        return (matrix, Weight(name=f"{self.path}.bias", shape=(self.out,), role="bias", block=self.block))


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A convolution: `out` x `into / groups` x kernel weights, applied once per output position.

    Args:
        kernel: Kernel lengths, one per dimension.
        stride: Strides, one per dimension.
    """

    out: int
    into: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    path: str
    block: str
    bias: bool = True
    groups: int = 1

    def weights(self) -> tuple[Weight, ...]:
        """Return the kernel and its bias."""
        shape = (self.out, self.into // self.groups, *self.kernel)
        out: tuple[Weight, ...] = (Weight(name=self.path, shape=shape, role="conv", block=self.block),)
        if self.bias:
            out += (Weight(name=f"{self.path}.bias", shape=(self.out,), role="bias", block=self.block),)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """A table that is looked up: tokens, positions, token types. No FLOP; one row of bytes per look-up."""

    rows: int
    width: int
    path: str = "embed_tokens"
    block: str = "embedding"

    def weights(self) -> tuple[Weight, ...]:
        """Return the table."""
        return (Weight(name=self.path, shape=(self.rows, self.width), role="embedding", block=self.block),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Learned tensors that no other block describes: class tokens, scales, per-layer scalars."""

    path: str
    shape: tuple[int, ...]
    block: str = "other"
    role: Role = "other"

    def weights(self) -> tuple[Weight, ...]:
        """Return the one tensor."""
        return (Weight(name=self.path, shape=self.shape, role=self.role, block=self.block),)
