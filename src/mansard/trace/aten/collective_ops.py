"""Collectives as the process groups of PyTorch record them on the host: the range of a backend's own thread is the work."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mansard.core import Demand, Unknown
from mansard.core.collectives import sent_ratio, size_bytes
from mansard.trace.aten.call import AtenCall, AtenCost

#: Ranges that a backend records around the exchange itself, on the thread that carries it out.
_BACKEND = re.compile(r"^(gloo|mpi|ucc):(\w+)$")
_ISSUES = re.compile(r"^(c10d|_c10d_functional|c10d_functional)::|^record_param_comms$")
#: Name after the colon -> operation, where the recorded tensor is what one rank brings. Of a reduce-scatter, a gather
#: and a scatter the record does not say which of the tensors it is.
_OPERATIONS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "broadcast": "broadcast", "reduce": "reduce",
    "all_to_all": "all_to_all", "send": "send", "recv": "recv",
}  # fmt: skip
_ELEMENT_BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "long": 8, "long int": 8, "int": 4, "short": 2,
    "short int": 2, "signed char": 1, "unsigned char": 1, "bool": 1,
}  # fmt: skip
LOOPBACK, NETWORK = "loopback", "network"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """The processes that a recorded program was one of.

    Args:
        ranks: Ranks of every process group, or why one number does not hold for all.
        link: Name of the link between them.
    """

    ranks: int | Unknown
    link: str


NOT_RECORDED = ProcessGroup(
    ranks=Unknown("the number of ranks is not recorded", ("mansard run, which records it",)), link=NETWORK
)


def group_of(facts: Mapping[str, Any]) -> ProcessGroup:
    """Return the process group that a recording states.

    Args:
        facts: `world_size`, `group_sizes` of all groups, and `local_world_size` where a launcher said it.

    >>> group_of({"world_size": 4, "group_sizes": [4], "local_world_size": 1})
    ProcessGroup(ranks=4, link='network')
    >>> group_of({"world_size": 4, "group_sizes": [4, 2]}).ranks.reason
    'process groups of 2 and 4 ranks exist, and a range does not name its own'
    """
    if not facts:
        return NOT_RECORDED
    sizes = sorted({int(s) for s in facts.get("group_sizes", ())} or {int(facts["world_size"])})
    ranks: int | Unknown = sizes[0]
    if len(sizes) > 1:
        text = f"process groups of {' and '.join(map(str, sizes))} ranks exist, and a range does not name its own"
        ranks = Unknown(text, ("one process group",))
    local = facts.get("local_world_size")
    return ProcessGroup(ranks=ranks, link=LOOPBACK if local == facts["world_size"] else NETWORK)


def is_backend_range(name: str) -> bool:
    """Return whether a range is the exchange itself.

    >>> is_backend_range("gloo:all_reduce"), is_backend_range("c10d::allreduce_")
    (True, False)
    """
    return bool(_BACKEND.match(name))


def only_issues(name: str) -> bool:
    """Return whether an operator only hands an exchange to the thread of a backend, where that thread is recorded."""
    return bool(_ISSUES.match(name))


def exchange(call: AtenCall, group: ProcessGroup) -> AtenCost:
    """Return what one exchange must send from this rank.

    Args:
        call: The recorded range with the tensor that this rank brings.
        group: The processes that take part.

    Source: core.collectives for what is sent; PyTorch 2.13, ProcessGroupGloo.cpp for the recorded tensor.

    >>> pair = ProcessGroup(ranks=2, link="network")
    >>> dict(exchange(AtenCall("gloo:all_reduce", ((1024, 256),), ("float",)), pair).demand.link_bytes)
    {'network': 1048576.0}
    """
    found = _BACKEND.match(call.name)
    operation = _OPERATIONS.get(found.group(2)) if found else None
    if operation is None:
        return _unknown(call, "which of its tensors is recorded is not known", "an all_reduce or all_gather")
    if isinstance(group.ranks, Unknown):
        return _unknown(call, group.ranks.reason, *group.ranks.needs)
    local = 0.0
    for dims, dtype in zip(call.shapes, call.dtypes, strict=True):
        if dtype not in _ELEMENT_BYTES or any(isinstance(d, tuple) for d in dims):
            return _unknown(call, f"the size of a tensor of type {dtype!r} is not known", "the shapes of its operands")
        local += math.prod(int(d) for d in dims if not isinstance(d, tuple)) * _ELEMENT_BYTES[dtype]
    if not call.shapes:
        return _unknown(call, "its tensor was not recorded", "the shapes of its operands")
    size = size_bytes(operation, local_bytes=local, ranks=group.ranks)
    sent = sent_ratio(operation, group.ranks) * size
    return AtenCost(
        kind="work", category="collective", scope="core",
        demand=Demand(link_bytes={group.link: sent}),
        formula=f"{operation} over {group.ranks} ranks: S {size:.0f} B, {sent:.0f} B sent by each",
    )  # fmt: skip


def _unknown(call: AtenCall, reason: str, *needs: str) -> AtenCost:
    return AtenCost(kind="work", category="collective", demand=Unknown(f"{call.name}: {reason}", tuple(needs)))
