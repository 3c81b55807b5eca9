"""A parallel plan: how many devices work how on a model, and whether the model can be divided that way."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mansard.core.collectives import sent_ratio
from mansard.core.errors import UsageError

#: No job has more ranks of one kind.
LARGEST = 10**7


class InfeasibleError(UsageError):
    """A model cannot be divided the way the plan says."""

    default_code = "infeasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parallel ranks of each kind; the product of tp, pp, dp and cp is the number of devices.

    Args:
        tp: Tensor parallel: matrices are divided, every rank sees every token of its group.
        pp: Pipeline parallel: layers are divided.
        dp: Data parallel: sequences are divided, weights replicated (or sharded, see `zero`).
        cp: Context parallel: tokens of a sequence are divided in prefill and training, its cache in decode.
        ep: Expert parallel: routed experts are divided over `ep` ranks taken from the tp, cp and dp ranks.
        zero: What data-parallel ranks shard in training: 0 nothing, 1 optimizer state, 2 gradients too, 3 weights too.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "cp", "ep"):
            if not 1 <= getattr(self, name) <= LARGEST:
                raise UsageError(f"{name} is {getattr(self, name)}, expected a number from 1 to {LARGEST:,}")
        if self.zero not in (0, 1, 2, 3):
            raise UsageError(f"zero is {self.zero}, expected 0, 1, 2 or 3")
        if self.ep > 1:
            if self.ep % self.tp and self.tp % self.ep:
                raise InfeasibleError(f"ep {self.ep} and tp {self.tp}: one must be a multiple of the other")
            if (self.dp * self.cp) % self.expert_token_groups:
                raise InfeasibleError(
                    f"ep {self.ep} takes {self.expert_token_groups} data or context ranks beside tp {self.tp}, "
                    f"but dp x cp is {self.dp * self.cp}"
                )

    @property
    def devices(self) -> int:
        """Devices of the whole plan."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def expert_tp(self) -> int:
        """Ranks over which one expert's matrices are divided: what ep leaves of tp."""
        return max(1, self.tp // self.ep)

    @property
    def expert_token_groups(self) -> int:
        """Data or context ranks whose tokens meet at one set of experts."""
        return max(1, self.ep // self.tp)

    @property
    def replicas(self) -> int:
        """Data and context ranks that hold the same weights, routed experts apart: gradients are summed over them."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> int:
        """Those of them that hold the same routed experts: what expert parallelism leaves of `replicas`.

        Source: Megatron-Core, `expert_data_parallel` groups: dp x cp x tp / (ep x expert tp).

        >>> Plan(dp=16, ep=8).expert_replicas, Plan(tp=2, dp=8, ep=8).expert_replicas, Plan(tp=4, dp=2, ep=2).expert_replicas
        (2, 2, 2)
        """
        return self.replicas // self.expert_token_groups


def split(what: str, size: int, ranks: int) -> int:
    """Return `size / ranks`.

    Raises:
        InfeasibleError: it does not divide.

    >>> split("query heads", 32, 8)
    4
    """
    if size % ranks:
        raise InfeasibleError(f"{size} {what} cannot be divided over {ranks} ranks")
    return size // ranks


def padded_vocab(vocab: int, tp: int) -> int:
    """Return the rows of the token table that one rank holds, with the padding that makes them divide.

    >>> padded_vocab(50257, 4)
    12565
    """
    return math.ceil(vocab / tp)


def ring_all_reduce_bytes(size_bytes: float, ranks: int) -> float:
    """Return the bytes one rank sends in an all-reduce of `size_bytes`, 2 (n - 1)/n times the size.

    Source: Patarasuk and Yuan 2009; nccl-tests, PERFORMANCE.md.

    >>> ring_all_reduce_bytes(2097152, 32)
    4063232.0
    """
    return sent_ratio("all_reduce", ranks) * size_bytes


def all_gather_bytes(size_bytes: float, ranks: int) -> float:
    """Return the bytes one rank sends in an all-gather or a reduce-scatter of `size_bytes` in total, (n - 1)/n of it.

    >>> all_gather_bytes(8.0, 8)
    7.0
    """
    return sent_ratio("all_gather", ranks) * size_bytes
