"""How the tensors of a model are stored: bytes of each, and which are quantised."""

from __future__ import annotations

from dataclasses import dataclass, field

from mansard.core.dtypes import dtype_bytes
from mansard.workload.blocks.weight import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Bytes of stored tensors.

    Args:
        dtype: Element type of everything that is not quantised.
        assumed: What was taken for granted.
    """

    dtype: str
    assumed: tuple[str, ...] = field(default=())

    def is_quantised(self, weight: Weight, layer_path: str) -> bool:
        """Return whether a tensor is stored quantised."""
        return False

    def bytes_of(self, weight: Weight, layer_path: str) -> float:
        """Return the bytes of one copy of a tensor."""
        return weight.elements * dtype_bytes(self.dtype)
