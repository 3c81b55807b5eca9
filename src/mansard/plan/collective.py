"""The ceilings of one collective on one network, by size and algorithm, with a measured time beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mansard.core.collectives import SIZE_MEANS, bus_factor, canonical
from mansard.core.document import header, to_jsonable
from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown, is_known
from mansard.hardware.topology import (
    CollectiveCeiling,
    Fabric,
    Group,
    collective_ceilings,
    compare_to_ceiling,
)
from mansard.plan.topology import mesh_axes

SCHEMA = "plan-collective/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured of one collective; one of the two.

    Args:
        seconds: Its time [s].
        busbw_bytes_per_s: Its bus bandwidth, as NCCL's tests print it [B/s].
    """

    seconds: float | None = None
    busbw_bytes_per_s: float | None = None

    def time_s(self, operation: str, *, size_bytes: float, ranks: int) -> float:
        """Return the time [s].

        >>> round(Measured(busbw_bytes_per_s=473.1e9).time_s("all_reduce", size_bytes=8 * 2**30, ranks=8) * 1e3, 2)
        31.77
        """
        if self.seconds is not None:
            return self.seconds
        factor = bus_factor(operation, ranks)
        if not is_known(factor) or not self.busbw_bytes_per_s:
            raise UsageError("a measurement needs its time or its bus bandwidth, and two devices or more")
        return size_bytes * factor / self.busbw_bytes_per_s


def group_over(fabric: Fabric, text: str | None) -> Group:
    """Return the group that extends over some axes.

    Args:
        fabric: The network.
        text: Axes as `plan topology` calls them, such as `network` or `x,y`, a part of a switch as `nvlink=4`; None for all.

    Raises:
        UsageError: no such axis, an axis twice, or a number that is none.
    """
    if text is None:
        return fabric.everyone
    axes = {axis.name: axis for axis in mesh_axes(fabric)}
    members = [[1] * len(level.axes) for level in fabric.levels]
    seen: set[str] = set()
    for word in text.split(","):
        name, equals, number = word.strip().partition("=")
        if name in seen:
            raise UsageError(f"--over names {name} twice")
        if name not in axes:
            raise UsageError(f"{fabric.name} has no axis {name!r}", hint="axes: " + (", ".join(axes) or "none"))
        seen.add(name)
        if equals and not number.isdigit():
            raise UsageError(
                f"cannot read {word.strip()!r} of --over", hint=f"{name}, or {name}=4 for four of its units"
            )
        axis = axes[name]
        members[axis.level][axis.place] = int(number) if number else axis.length
    return tuple(tuple(m) for m in members)


def collective_document(
    fabric: Fabric, operation: str, *, sizes: Sequence[float], over: str | None = None, measured: Measured | None = None
) -> dict[str, Any]:
    """Return the ceilings of a collective, by size, in plain JSON types.

    Args:
        fabric: The network.
        operation: As in `hardware.topology.OPERATIONS`.
        sizes: S of each message [B], as `core.collectives.SIZE_MEANS` says.
        over: See `group_over`.
        measured: Of the one size.

    Raises:
        UsageError: a group of one device, a measurement beside several sizes, or what `collective_ceilings` refuses.
    """
    name = canonical(operation)
    group = group_over(fabric, over)
    if measured is not None and len(sizes) != 1:
        raise UsageError(f"one measurement belongs to one size, {len(sizes)} were given", hint='--size "8 GiB"')
    rows: list[dict[str, Any]] = []
    comparison = None
    ranks = 1
    for size in sizes:
        found = collective_ceilings(fabric, name, size_bytes=size, group=group)
        if not found:
            raise UsageError("a group of one device sends nothing", hint="a larger shape, or other axes in --over")
        ranks = found[0].ranks
        rows += [_row(c) for c in found]
        if measured is not None:
            comparison = _compared(found, measured)
    left = [
        level.name for level, m in zip(fabric.levels, group, strict=True)
        if any(n > 1 for n in m) and isinstance(level.hop_s, Unknown)
    ]  # fmt: skip
    plain: dict[str, Any] = to_jsonable(
        {
            **header(SCHEMA, {"machine": fabric.name}), "operation": name, "size_means": SIZE_MEANS[name], "shape": fabric.name,
            "devices": fabric.devices, "ranks": ranks, "over": over, "bus_factor": bus_factor(name, ranks), "rows": rows,
            "measured": comparison, "without_latency": left, "notes": fabric.notes,
        }
    )  # fmt: skip
    return plain


def _row(ceiling: CollectiveCeiling) -> dict[str, Any]:
    at = ceiling.size_bytes / ceiling.time_s if ceiling.time_s > 0.0 else Unknown("no time without bytes and latency")
    return {**ceiling.to_json(), "algbw_bytes_per_s": at}


def _compared(found: Sequence[CollectiveCeiling], measured: Measured) -> dict[str, Any]:
    first = found[0]
    seconds = measured.time_s(first.operation, size_bytes=first.size_bytes, ranks=first.ranks)
    if not seconds > 0.0:
        raise UsageError("the measured time must be positive")
    against = compare_to_ceiling(found, seconds)
    inside = min((c for c in found if c.effective), key=lambda c: c.time_s, default=None)
    return {
        "time_s": seconds, "algbw_bytes_per_s": first.size_bytes / seconds,
        "busbw_bytes_per_s": bus_factor(first.operation, first.ranks) * first.size_bytes * (1.0 / seconds),
        "algorithm": against.ceiling.algorithm, "least_time_s": against.ceiling.time_s, "share_ratio": against.share_ratio,
        "in_network_share_ratio": None if inside is None else inside.share_ratio(seconds),
        "verdict": against.verdict, "suspects": against.suspects,
    }  # fmt: skip
