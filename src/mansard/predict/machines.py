"""A machine by name: a product of the catalogue, a hardware file, or measured ceilings."""

from __future__ import annotations

from pathlib import Path

from mansard.predict.bound import Machine, machine_of


def load_machine(name_or_path: str, *, scope: str | None = None) -> Machine:
    """Return the machine that bounds are made for.

    Args:
        name_or_path: A slug or product name of the catalogue, a hardware file, or a `ceilings.json`.
        scope: The scope that is one device of a plan; None takes the device, or the node of measured ceilings.

    Raises:
        UsageError, InputError: no such product, or a file that cannot be used.
    """
    path = Path(name_or_path)
    if path.suffix == ".json":
        from mansard.core.ceilings import read_ceilings

        return machine_of(read_ceilings(path), name=str(path), scope=scope)
    from mansard.hardware import ceilings, load
    from mansard.hardware.on_paper import instances

    sku = load(name_or_path)
    on_chip = 0.0
    for memory in sku.memory[:-1]:
        count = instances(sku, memory)
        if count is not None:
            on_chip = max(on_chip, memory.capacity_bytes * count / sku.package.devices)
    chosen = scope or "device"
    return machine_of(ceilings(sku, scope=chosen), name=sku.slug, scope=chosen, on_chip_bytes=on_chip or None)
