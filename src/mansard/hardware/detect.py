"""Which devices does this machine have, and which products are they?

Sources: /proc/cpuinfo for processors; NVML, the NVIDIA driver's /proc, ROCm's /sys, the PCI bus and the metadata
of TPU machines for accelerators. Each device is matched by itself: one card never speaks for another. What the user names
wins over what is found, and is marked as named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.core.errors import UsageError, install
from mansard.core.unknown import Unknown
from mansard.hardware.catalogue import entries, load
from mansard.hardware.host import ROOT, CpuIdentity, cpu_identity, meminfo, read_text
from mansard.hardware.matching import HOW_TO_ADD, Match, match
from mansard.hardware.records import Sku

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x1ae0": "Google", "0x1da3": "Habana", "0x1d0f": "AWS"}
# PCI classes of displays (03), and of processing accelerators (12); TPUs announce themselves as class ff.
_CLASSES = ("0x03", "0x12", "0xff")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device that was found.

    Args:
        kind: `cpu`, `gpu`, `tpu` or `accelerator`.
        index: Its number among its kind, in the order of the source.
        name: What the source calls it; may be empty.
        source: Where it was found.
        match: Which product it is.
        family: The processor family, where the product is not known but the family is.
        memory_bytes: What the source says of its memory [B].
        pci: `vendor:device`.
        bus: PCI address.
        clock_hz: Present clock [Hz], where the source tells.
        power_limit_w: Power limit [W], where the source tells.
    """

    kind: str
    index: int
    name: str
    source: str
    match: Match
    family: Sku | None = None
    memory_bytes: float | None = None
    pci: str = ""
    bus: str = ""
    clock_hz: float | None = None
    power_limit_w: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the device as plain JSON types."""
        return {
            "kind": self.kind, "index": self.index, "name": self.name, "source": self.source, **self.match.to_json(),
            "family": self.family.slug if self.family else None, "memory_bytes": self.memory_bytes, "pci": self.pci or None,
            "bus": self.bus or None, "clock_hz": self.clock_hz, "power_limit_w": self.power_limit_w,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """What was found, or named.

    Args:
        devices: Processors first.
        notes: What could not be asked, and why.
        explicit: Whether the user named the hardware; then nothing was looked for.
    """

    devices: tuple[Device, ...]
    notes: tuple[Unknown, ...]
    explicit: bool


def detect(
    *,
    explicit: str | None = None,
    root: Path = ROOT,
    environ: Mapping[str, str] | None = None,
    directories: Sequence[str | Path] = (),
) -> Detection:
    """Return the devices of this machine with the product of each.

    Args:
        explicit: What the user says it is (slug, exact name or file); wins, and nothing is looked for.
        root: Root of the file system to read.
        environ: Environment; None takes that of the process.
        directories: The user's hardware files.

    Raises:
        UsageError: `explicit` is ambiguous or unknown.
    """
    if explicit is not None:
        sku = load(explicit, directories=directories)
        named = Match(status="exact", sku=sku, candidates=(sku.slug,), reason=f"named by the user: {explicit}")
        kind = "cpu" if sku.kind == "cpu-family" else sku.kind
        device = Device(kind=kind, index=0, name=explicit, source="named by the user", match=named)
        return Detection(devices=(device,), notes=(), explicit=True)
    env = os.environ if environ is None else environ
    notes: list[Unknown] = []
    devices = [*_processors(root, directories, notes)]
    seen = nvml_devices(directories, notes) if root == ROOT else []
    devices += seen
    devices += _on_the_bus(root, directories, {d.bus for d in seen}, bool(seen))
    devices += _tpu_environment(env, directories, any(d.kind == "tpu" for d in devices))
    return Detection(devices=tuple(devices), notes=tuple(notes), explicit=False)


def _processors(root: Path, directories: Sequence[str | Path], notes: list[Unknown]) -> list[Device]:
    identity = cpu_identity(root)
    if identity is None:
        notes.append(Unknown("the processor does not say what it is (/proc/cpuinfo)", ("--hardware NAME",)))
        return []
    family = cpu_family(identity, directories)
    found = match(identity.name, directories=directories) if identity.name else _unnamed(identity)
    found = _within_family(found, family, identity, directories)
    name = identity.name or f"implementer {identity.vendor} part {identity.part}"
    memory = meminfo("MemTotal", root)
    return [
        Device(kind="cpu", index=0, name=name, source="/proc/cpuinfo", match=found, family=family, memory_bytes=memory)
    ]


def _unnamed(identity: CpuIdentity) -> Match:
    reason = f"the processor has no product name, only implementer {identity.vendor} part {identity.part}"
    return Match(status="unknown", sku=None, candidates=(), reason=reason, needs=HOW_TO_ADD)


def _within_family(found: Match, family: Sku | None, identity: CpuIdentity, directories: Sequence[str | Path]) -> Match:
    """Drop candidates of another processor family; a virtual machine often says no more than "AMD EPYC"."""
    if found.status != "ambiguous" or family is None:
        return found
    fits = tuple(c for c in found.candidates if load(c, directories=directories).architecture == family.slug)
    reason = f"{identity.name!r} names no product; family, model and stepping say {family.name}"
    return Match(status="ambiguous" if fits else "unknown", sku=None, candidates=fits, reason=reason, needs=found.needs)


def cpu_family(identity: CpuIdentity, directories: Sequence[str | Path] = ()) -> Sku | None:
    """Return the processor family by vendor, family, model and stepping, or by implementer and part; never by name."""
    for entry in entries(directories):
        if entry.kind == "cpu-family" and any(identity.fits(p) for p in entry.cpuid):
            return entry.sku()
    return None


def nvml_devices(directories: Sequence[str | Path], notes: list[Unknown], library: Any = None) -> list[Device]:
    """Return the NVIDIA devices that the driver shows this process.

    Args:
        directories: The user's hardware files.
        notes: Gets why NVML could not be asked, where it could not.
        library: The `pynvml` module; None imports it.
    """
    if library is None:
        try:
            import pynvml as library  # type: ignore[import-untyped, no-redef, unused-ignore]
        except ImportError:
            notes.append(Unknown("NVML was not asked: nvidia-ml-py is not installed", (install("nvml"),)))
            return []
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        notes.append(Unknown(f"NVML does not answer: {error}", ("an NVIDIA driver",)))
        return []
    try:
        return [_nvml_device(library, i, directories) for i in range(library.nvmlDeviceGetCount())]
    except library.NVMLError as error:
        notes.append(Unknown(f"NVML failed while listing devices: {error}", ("nvidia-smi",)))
        return []
    finally:
        library.nvmlShutdown()


def _nvml_device(library: Any, index: int, directories: Sequence[str | Path]) -> Device:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    name = library.nvmlDeviceGetName(handle)
    name = name.decode() if isinstance(name, bytes) else str(name)
    memory = float(library.nvmlDeviceGetMemoryInfo(handle).total)
    info = library.nvmlDeviceGetPciInfo(handle)
    packed = int(info.pciDeviceId)
    pci = f"{packed & 0xFFFF:04x}:{packed >> 16:04x}"
    bus = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    split = _optional(library, lambda: library.nvmlDeviceGetMigMode(handle)[0])
    clock = _optional(library, lambda: library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM))
    power = _optional(library, lambda: library.nvmlDeviceGetPowerManagementLimit(handle))
    found = match(f"{name} MIG" if split else name, memory_bytes=memory, pci_device_id=pci, directories=directories)
    return Device(
        kind="gpu",
        index=index,
        name=name,
        source="NVML",
        match=found,
        memory_bytes=memory,
        pci=pci,
        bus=_short_bus(bus),
        clock_hz=clock * 1e6 if clock else None,
        power_limit_w=power / 1e3 if power else None,
    )


def _optional(library: Any, ask: Any) -> float | None:
    """Return what a driver call answers, or None where this card does not support it."""
    try:
        return float(ask())
    except library.NVMLError:
        return None


def _short_bus(bus: str) -> str:
    """Return a PCI address as sysfs writes it; NVML pads the domain to eight digits."""
    domain, _, rest = bus.strip("\0").lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _on_the_bus(root: Path, directories: Sequence[str | Path], seen: set[str], driver_answers: bool) -> list[Device]:
    """Return the accelerators on the PCI bus that no driver library has listed yet."""
    found: list[Device] = []
    counts: dict[str, int] = {}
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor, device = read_text(folder / "vendor") or "", read_text(folder / "device") or ""
        kind_of = read_text(folder / "class") or ""
        maker = _VENDORS.get(vendor)
        if maker is None or not kind_of.startswith(_CLASSES) or folder.name in seen:
            continue
        if maker == "NVIDIA" and driver_answers:
            continue  # on the bus, but not given to this process
        pci = f"{vendor[2:]}:{device[2:]}"
        name, source, memory, units = _driver_words(root, folder, maker)
        known = [e for e in entries(directories) if pci in e.pci]
        if not name and not known and maker in ("Google", "AWS"):
            continue  # network and storage functions of the same makers
        answer = match(name, memory_bytes=memory, multiprocessors=units, pci_device_id=pci, directories=directories)
        kind = {"Google": "tpu", "Habana": "accelerator", "AWS": "accelerator"}.get(maker, "gpu")
        index = counts.get(kind, 0)
        counts[kind] = index + 1
        found.append(
            Device(kind=kind, index=index, name=name or f"{maker} device {pci}", source=source, match=answer,
                   memory_bytes=memory, pci=pci, bus=folder.name)
        )  # fmt: skip
    return found


def _driver_words(root: Path, folder: Path, maker: str) -> tuple[str, str, float | None, int | None]:
    """Return product name, source, memory [B] and compute units, as far as the driver's files tell."""
    if maker == "NVIDIA":
        text = read_text(root / "proc/driver/nvidia/gpus" / folder.name / "information") or ""
        model = re.search(r"^Model:\s*(.+)$", text, re.MULTILINE)
        return (model.group(1).strip(), "/proc/driver/nvidia", None, None) if model else ("", "PCI bus", None, None)
    if maker == "AMD":
        size = read_text(folder / "mem_info_vram_total")
        name = read_text(folder / "product_name") or ""
        units = _kfd_units(root, folder.name)
        return name, "ROCm driver in /sys", float(size) if size and size.isdigit() else None, units
    return "", "PCI bus", None, None


def _kfd_units(root: Path, bus: str) -> int | None:
    """Return the compute units of an AMD device from the kernel's compute topology, or None."""
    parts = re.fullmatch(r"([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])", bus)
    if parts is None:
        return None
    domain, number, slot, function = (int(p, 16) for p in parts.groups())
    location = number << 8 | slot << 3 | function
    for node in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*")):
        values = dict(re.findall(r"^(\w+) (\d+)$", read_text(node / "properties") or "", re.MULTILINE))
        same = int(values.get("location_id", -1)) == location and int(values.get("domain", 0)) == domain
        per_unit = int(values.get("simd_per_cu", 0))
        if same and per_unit:
            return int(values.get("simd_count", 0)) // per_unit
    return None


def _tpu_environment(env: Mapping[str, str], directories: Sequence[str | Path], already: bool) -> list[Device]:
    """Return what the metadata of a TPU machine says, where the bus shows no chip."""
    text = env.get("TPU_ACCELERATOR_TYPE", "")
    if not text or already:
        return []
    from mansard.hardware.slices import tpu_slice

    try:
        part = tpu_slice(text, directories=directories)
    except UsageError as error:
        answer = Match(status="unknown", sku=None, candidates=(), reason=error.message, needs=HOW_TO_ADD)
        return [Device(kind="tpu", index=0, name=text[:80], source="TPU_ACCELERATOR_TYPE", match=answer)]
    if part is None:
        reason = f"TPU_ACCELERATOR_TYPE={text[:80]!r} is no slice on record"
        answer = Match(status="unknown", sku=None, candidates=(), reason=reason, needs=HOW_TO_ADD)
    else:
        reason = f"slice {text}: {part.chips} chips, {part.devices} devices; {part.reason}"
        answer = Match(status="exact", sku=part.sku, candidates=(part.sku.slug,), reason=reason)
    return [Device(kind="tpu", index=0, name=text[:80], source="TPU_ACCELERATOR_TYPE", match=answer)]
