"""The frozen records of a model: blocks, layers, stacks, and what was read, derived or assumed.

Every block lists the tensors it stores (`weights()`), so parameter counts, weight bytes and FLOP per token all come from
one list and cannot disagree. Shapes of matrices are `(out, in)`. A block never knows a batch, a context or a machine.

Words: `hidden` is the residual width, `width` the inner width of a feed-forward block, `path` the name of the module
inside its layer as checkpoints write it (exclusion lists of quantised checkpoints are matched against it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mansard.core.unknown import Unknown
from mansard.workload.blocks.attention import CrossAttention as CrossAttention
from mansard.workload.blocks.attention import GqaAttention as GqaAttention
from mansard.workload.blocks.attention import MlaAttention as MlaAttention
from mansard.workload.blocks.attention import SparseIndexer as SparseIndexer
from mansard.workload.blocks.feedforward import Convolution as Convolution
from mansard.workload.blocks.feedforward import Embedding as Embedding
from mansard.workload.blocks.feedforward import Linear as Linear
from mansard.workload.blocks.feedforward import Mlp as Mlp
from mansard.workload.blocks.feedforward import Moe as Moe
from mansard.workload.blocks.feedforward import Parameters as Parameters
from mansard.workload.blocks.recurrent import GatedDeltaNet as GatedDeltaNet
from mansard.workload.blocks.recurrent import Mamba1 as Mamba1
from mansard.workload.blocks.recurrent import Mamba2 as Mamba2
from mansard.workload.blocks.weight import Norm as Norm
from mansard.workload.blocks.weight import Role as Role
from mansard.workload.blocks.weight import Weight as Weight
from mansard.workload.blocks.weight import linear as linear

Attention = GqaAttention | MlaAttention | CrossAttention
Recurrent = Mamba1 | Mamba2 | GatedDeltaNet
Block = Attention | Recurrent | Mlp | Moe | Norm | Linear | Convolution | Embedding | Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The blocks of one layer, in the order they run."""

    blocks: tuple[Block, ...]

    def weights(self) -> Iterator[Weight]:
        """Yield every tensor of the layer."""
        for block in self.blocks:
            yield from block.weights()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that are alike, with the positions they take in the stack (positions of other groups may lie between)."""

    layer: Layer
    indices: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many layers."""
        return len(self.indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A run of layers over one kind of token: the text decoder, an encoder, a vision or audio tower, MTP layers.

    Args:
        name: `text`, `encoder`, `vision`, `audio`, `mtp`, `transformer`.
        hidden: Width of its residual stream.
        path: Module path of a layer, with `{}` for its index.
        groups: The layers, like ones together.
        inputs: Blocks before the first layer (tables, patch convolution).
        outputs: Blocks after the last layer (final norm, projector).
    """

    name: str
    hidden: int
    path: str
    groups: tuple[LayerGroup, ...]
    inputs: tuple[Block, ...] = ()
    outputs: tuple[Block, ...] = ()

    @property
    def depth(self) -> int:
        """Number of layers."""
        return sum(group.count for group in self.groups)

    def in_order(self) -> tuple[Layer, ...]:
        """Return every layer by position, as a pipeline splits them."""
        placed = {index: group.layer for group in self.groups for index in group.indices}
        return tuple(placed[index] for index in sorted(placed))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantScheme:
    """How one matrix is stored: element bits, and what is stored beside the elements.

    Args:
        dtype: Element type, as in core.dtypes.
        bits: Bits per element.
        group: Elements along the input that share a scale; None: no groups.
        block: Rows and columns that share a scale; None: no blocks.
        per_row: One scale per output row.
        scale_bits: Bits of each such scale.
        zero_bits: Bits of a zero point or bias beside each such scale.
        tensor_bytes: Bytes stored once per matrix (global scales, shapes).
        input_bits: Bits stored once per input column (group indices).
    """

    dtype: str
    bits: float
    group: int | None = None
    block: tuple[int, int] | None = None
    per_row: bool = False
    scale_bits: float = 0.0
    zero_bits: float = 0.0
    tensor_bytes: int = 0
    input_bits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantRule:
    """A scheme and the modules it holds for.

    Args:
        scheme: How they are stored.
        targets: Patterns of module paths; `Linear` means every matrix that is a module of its own.
    """

    scheme: QuantScheme
    targets: tuple[str, ...] = ("Linear",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """What a quantised checkpoint stores, and what it leaves alone.

    Args:
        method: Name of the method, as the checkpoint gives it.
        rules: Schemes in order of priority; the first whose target matches wins.
        ignore: Patterns of modules kept in the model's type: paths, globs, or `re:` expressions.
        activation_dtype: Type that activations are cast to for the product; None: not cast.
        kv_dtype: Type of the cache, where the checkpoint prescribes it.
        text_only: The entry stands at the text decoder's level, so towers keep the model's type.
        source: File and key it was read from.
    """

    method: str
    rules: tuple[QuantRule, ...]
    ignore: tuple[str, ...] = ()
    activation_dtype: str | None = None
    kv_dtype: str | None = None
    text_only: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A value that the configuration does not state, and the keys it was computed from."""

    key: str
    value: int | float | str | bool
    from_keys: tuple[str, ...]
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """A value taken from a documented default because the configuration leaves the key out."""

    key: str
    value: object
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, as its configuration describes it.

    Args:
        name: A short name for people (file or shipped name).
        architecture: Class the configuration names, or `undeclared`.
        model_type: Family key of the configuration, or an empty text.
        source: File, folder or `dict`.
        hidden: Width of the text decoder's residual stream.
        vocab: Rows of the token table; None for models without one (diffusion transformers).
        text: The main stack: decoder, or encoder of encoder-only models.
        head: Blocks that turn the last hidden state into logits (or the output of another kind of head).
        tied: Whether the head's matrix is the token table.
        towers: Further stacks: encoder, vision, audio; each with its projector among its outputs.
        mtp: Multi-token-prediction layers; stored, but not part of the main model's count.
        mtp_heads: Further applications of the head per token in training (one per MTP layer).
        dtype: Element type of unquantised weights.
        max_positions: Longest context the configuration states.
        quantisation: What a quantised checkpoint stores; None: nothing is quantised.
        state_dtype: Element type of a recurrent state, where it differs from the cache's.
        phase_gap: Why no phase (and no cache) can be computed, where the blocks count but do not describe what they read.
        derived, assumed: Where values came from that are not in the file.
        unread: Keys of the file that describe something this program does not use.
        notes: Remarks a reader needs to judge the counts.
    """

    name: str
    architecture: str
    model_type: str
    source: str
    hidden: int
    vocab: int | None
    text: Stack
    head: tuple[Block, ...]
    tied: bool
    towers: tuple[Stack, ...] = ()
    mtp: Stack | None = None
    mtp_heads: int = 0
    dtype: str | Unknown = field(default_factory=lambda: Unknown("the configuration states no dtype", ("dtype",)))
    max_positions: int | Unknown = field(
        default_factory=lambda: Unknown("the configuration states no context limit", ("max_position_embeddings",))
    )
    quantisation: Quantisation | Unknown | None = None
    state_dtype: str | None = None
    phase_gap: Unknown | None = None
    derived: tuple[Derived, ...] = ()
    assumed: tuple[Assumed, ...] = ()
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The text stack and the towers, without MTP."""
        return (self.text, *self.towers)
