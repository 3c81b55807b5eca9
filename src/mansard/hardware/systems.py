"""Names of whole systems: a DGX H100 is no device, it holds eight."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mansard.hardware.names import MAX_NAME, normalise

_FILE = Path(__file__).resolve().parent.parent / "data" / "systems.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What a system holds.

    Args:
        name: As it is sold.
        devices: Short names of the products it can hold; several where its name does not say which.
        counts: Products in it, as they are sold; several where it is sold in several sizes.
        source: Where the count is from, with date and certainty.
    """

    name: str
    devices: tuple[str, ...]
    counts: tuple[int, ...]
    source: str

    @property
    def text(self) -> str:
        """What it holds, such as `8 x h100-sxm`."""
        return f"{' or '.join(map(str, self.counts))} x {' or '.join(self.devices)}"

    def to_json(self) -> dict[str, Any]:
        """Return the products, the counts and the source."""
        return {"name": self.name, "devices": list(self.devices), "counts": list(self.counts), "source": self.source}


def system(name: str) -> System | None:
    """Return the system of that exact name, or None.

    >>> system("NVIDIA DGX H100").text, system("HGX H200").text, system("H100")
    ('8 x h100-sxm', '4 or 8 x h200', None)
    """
    return _systems().get(normalise(name[:MAX_NAME]))


@cache
def _systems() -> dict[str, System]:
    data = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    found: dict[str, System] = {}
    for origin, rows in data["systems"].items():
        told = data["sources"][origin]
        source = f"{told['source']}; {told['date']}, {told['certainty']}"
        for row in rows:
            for name in row["names"]:
                found[normalise(name)] = System(
                    name=name, devices=tuple(row["devices"]), counts=tuple(row["counts"]), source=source
                )
    return found
