"""TPU slices by name. The number counts TensorCores for some generations and chips for others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mansard.core.errors import UsageError
from mansard.hardware.catalogue import entries
from mansard.hardware.records import Sku

_NAME = re.compile(r"(?:tpu-)?(?P<kind>v\d+[a-z]*|tpu\d+[a-z]*)-(?P<number>\d{1,6})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A TPU slice.

    Args:
        sku: Its chip.
        chips: Chips in it.
        devices: Devices that a runtime shows in it.
        reason: What the number counts.
    """

    sku: Sku
    chips: int
    devices: int
    reason: str


def tpu_slice(name: str, *, directories: Sequence[str | Path] = ()) -> Slice | None:
    """Return the slice a name such as `v5p-1024` stands for, or None where it is no slice name.

    Raises:
        UsageError: the number does not make whole chips.

    >>> s = tpu_slice("tpu7x-8")
    >>> s.chips, s.devices
    (4, 8)
    >>> tpu_slice("v5p-1024").chips, tpu_slice("v6e-256").chips, tpu_slice("h100-8")
    (512, 256, None)
    """
    found = _NAME.fullmatch(name.strip()[:40])
    if found is None:
        return None
    kind, number = found.group("kind").lower(), int(found.group("number"))
    for entry in entries(directories):
        if entry.kind != "tpu":
            continue
        sku = entry.sku()
        if kind not in sku.package.slices:
            continue
        per_chip = sku.units[0].groups or 1
        cores = sku.package.slice_counts == "cores"
        if number < 1 or (cores and number % per_chip):
            raise UsageError(f"{name!r}: {number} TensorCores do not make whole {sku.slug} chips of {per_chip}")
        chips = number // per_chip if cores else number
        what = "TensorCores" if cores else "chips"
        return Slice(
            sku=sku,
            chips=chips,
            devices=chips * sku.package.devices,
            reason=f"the number in {kind} slices counts {what}",
        )
    return None
