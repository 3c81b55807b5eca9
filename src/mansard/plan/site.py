"""The devices that a plan chooses among: machines with their node and price, from names, files or the whole catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.core import Unknown
from mansard.core.errors import InputError, UsageError
from mansard.diagnose.economics import NO_PRICE, DevicePrice, given_price, price_of
from mansard.hardware.catalogue import entries, load
from mansard.predict.bound import Machine
from mansard.predict.machines import load_machine

#: No plan is asked for more devices, requests per second or ranks.
DEVICES_MOST = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One kind of device.

    Args:
        machine: What one device can do.
        node_devices: Devices of the usual node; `Unknown` where the product is in no usual node.
        price: Of one device.
        notes: What to know about it.
    """

    machine: Machine
    node_devices: int | Unknown
    price: DevicePrice | Unknown
    notes: tuple[str, ...] = ()


def site_of(name_or_path: str, *, usd_per_hour: float | None = None) -> Site:
    """Return a device by catalogue name, hardware file, or measured ceilings.

    Args:
        name_or_path: As for `--on`.
        usd_per_hour: A price the user gave for one device [USD/h]; None takes the catalogue's.

    Raises:
        UsageError, InputError: no such device, or one without a main memory.
    """
    machine = load_machine(name_or_path)
    price: DevicePrice | Unknown = NO_PRICE if usd_per_hour is None else given_price(usd_per_hour)
    if name_or_path.endswith(".json"):
        return Site(machine=machine, node_devices=Unknown("measured ceilings name no node"), price=price)
    sku = load(name_or_path)
    packages = sku.package.node_packages
    node: int | Unknown = Unknown(f"{sku.name} comes in no usual node on record", ("--tp-most",))
    outer = sku.outer_memory
    notes = []
    if outer is not None and outer.configurable:
        notes.append("memory is the most that can be bought")
    return Site(
        machine=machine,
        node_devices=node if packages is None else packages * sku.package.devices,
        price=price_of(sku) if usd_per_hour is None else price,
        notes=tuple(notes),
    )


def sites(names: Sequence[str], prices: Mapping[str, float]) -> tuple[tuple[Site, ...], tuple[tuple[str, str], ...]]:
    """Return the devices of a list, or of the whole catalogue, and which were left out and why.

    Args:
        names: As typed; none means every product of the catalogue and of the user's folders that has a main memory.
        prices: USD per hour of one device, by the name as typed.

    Raises:
        UsageError: a price for a device that is not asked about.
    """
    chosen = list(dict.fromkeys(names)) or [e.slug for e in entries() if e.kind != "cpu-family"]
    if stray := sorted(set(prices) - set(chosen)):
        raise UsageError(f"a price for {', '.join(stray)}, which is not among the devices", hint="add it to --on")
    found: list[Site] = []
    left: list[tuple[str, str]] = []
    for name in chosen:
        try:
            found.append(site_of(name, usd_per_hour=prices.get(name)))
        except InputError as error:
            if names:
                raise
            left.append((name, error.message))
    return tuple(found), tuple(left)
