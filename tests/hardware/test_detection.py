"""What a machine is, from folders that look like /proc and /sys, and from a stand-in for NVML."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown
from mansard.hardware import detect, match
from mansard.hardware.detect import cpu_family, nvml_devices
from mansard.hardware.host import CpuIdentity, cpu_identity
from mansard.hardware.surroundings import abilities, launchers, surroundings

X86 = "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: {name}\nstepping\t: {stepping}\nflags\t\t: fpu avx2 {flags}\n\nprocessor\t: 1\n"


@pytest.fixture(autouse=True)
def _no_user_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MANSARD_HARDWARE_PATH", raising=False)


def cpuinfo(root: Path, text: str) -> Path:
    (root / "proc").mkdir(parents=True, exist_ok=True)
    (root / "proc/cpuinfo").write_text(text, encoding="utf-8")
    (root / "proc/meminfo").write_text("MemTotal:       24684100 kB\nMemAvailable:    1000 kB\n", encoding="utf-8")
    return root


def x86(root: Path, vendor: str, family: int, model: int, name: str, stepping: int = 1, flags: str = "") -> Path:
    return cpuinfo(
        root, X86.format(vendor=vendor, family=family, model=model, name=name, stepping=stepping, flags=flags)
    )


def on_bus(root: Path, address: str, vendor: str, device: str, kind: str, **files: str) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, text in {"vendor": vendor, "device": device, "class": kind, **files}.items():
        (folder / name).write_text(text + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("vendor", "family", "model", "stepping", "slug"),
    [
        ("AuthenticAMD", 23, 49, 0, "zen2"),  # Rome
        ("AuthenticAMD", 25, 1, 1, "zen3"),  # Milan
        ("AuthenticAMD", 25, 17, 1, "zen4"),  # Genoa
        ("AuthenticAMD", 25, 160, 2, "zen4"),  # Bergamo
        ("AuthenticAMD", 26, 2, 1, "zen5"),  # Turin
        ("AuthenticAMD", 26, 36, 0, "zen5-mobile"),  # Strix Point
        ("GenuineIntel", 6, 85, 4, "skylake-sp"),
        ("GenuineIntel", 6, 85, 7, "cascade-lake"),
        ("GenuineIntel", 6, 106, 6, "ice-lake-sp"),
        ("GenuineIntel", 6, 143, 8, "sapphire-rapids"),
        ("GenuineIntel", 6, 173, 1, "granite-rapids"),
        ("GenuineIntel", 6, 151, 2, None),  # Alder Lake is not on record
        ("AuthenticAMD", 21, 2, 0, None),
    ],
)
def test_processor_families(vendor: str, family: int, model: int, stepping: int, slug: str | None) -> None:
    identity = CpuIdentity(
        name="", vendor=vendor, family=family, model=model, stepping=stepping, part="", flags=frozenset()
    )
    found = cpu_family(identity)
    assert (found.slug if found else None) == slug


def test_a_guest_that_says_no_more_than_epyc(tmp_path: Path) -> None:
    root = x86(tmp_path, "AuthenticAMD", 26, 2, "AMD EPYC", flags="hypervisor")
    (device,) = detect(root=root, environ={}).devices
    assert (device.kind, device.name, device.source) == ("cpu", "AMD EPYC", "/proc/cpuinfo")
    assert device.match.sku is None
    assert device.match.candidates == ("epyc-9755",)  # the others are of other families; it is still not decided
    assert device.family is not None
    assert device.family.slug == "zen5"
    assert device.memory_bytes == 24684100 * 1024.0


def test_a_processor_that_names_itself(tmp_path: Path) -> None:
    root = x86(tmp_path, "AuthenticAMD", 25, 17, "AMD EPYC 9654 96-Core Processor")
    (device,) = detect(root=root, environ={}).devices
    assert device.match.sku is not None
    assert device.match.sku.slug == "epyc-9654"


def test_arm_has_no_name(tmp_path: Path) -> None:
    text = "processor\t: 0\nFeatures\t: fp sve2\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n"
    root = cpuinfo(tmp_path, text)
    (device,) = detect(root=root, environ={}).devices
    # Neoverse V2 is in Grace and in other processors: the family is known, the product is not.
    assert device.family is not None
    assert device.family.slug == "neoverse-v2"
    assert (device.match.status, device.match.sku) == ("unknown", None)


def test_nothing_readable(tmp_path: Path) -> None:
    found = detect(root=tmp_path, environ={})
    assert found.devices == ()
    assert "does not say" in found.notes[0].reason
    assert cpu_identity(tmp_path) is None


def test_what_the_user_names_wins(tmp_path: Path) -> None:
    root = x86(tmp_path, "AuthenticAMD", 25, 17, "AMD EPYC 9654 96-Core Processor")
    found = detect(explicit="h100-sxm", root=root, environ={"TPU_ACCELERATOR_TYPE": "v5p-8"})
    assert found.explicit
    (device,) = found.devices
    assert (device.source, device.kind) == ("named by the user", "gpu")
    assert device.match.sku is not None
    assert device.match.sku.slug == "h100-sxm"
    assert "named by the user" in device.match.reason
    with pytest.raises(UsageError):
        detect(explicit="H100", root=root)


def test_devices_on_the_bus_are_each_matched_by_themselves(tmp_path: Path) -> None:
    """One card in the machine never speaks for another."""
    root = x86(tmp_path, "AuthenticAMD", 25, 17, "AMD EPYC 9654 96-Core Processor")
    on_bus(root, "0000:01:00.0", "0x10de", "0x20b0", "0x030200")
    on_bus(root, "0000:02:00.0", "0x10de", "0x2321", "0x030200")
    on_bus(root, "0000:03:00.0", "0x10de", "0xffff", "0x030200")
    on_bus(root, "0000:04:00.0", "0x10de", "0x1af1", "0x068000")  # a switch, no GPU
    info = root / "proc/driver/nvidia/gpus/0000:02:00.0"
    info.mkdir(parents=True)
    (info / "information").write_text("Model: \t\t NVIDIA H100 NVL\nIRQ: 1\n", encoding="utf-8")
    gpus = [d for d in detect(root=root, environ={}).devices if d.kind == "gpu"]
    assert [d.match.sku.slug if d.match.sku else None for d in gpus] == ["a100-sxm-40gb", "h100-nvl", None]
    assert [d.source for d in gpus] == ["PCI bus", "/proc/driver/nvidia", "PCI bus"]
    assert [d.index for d in gpus] == [0, 1, 2]


def test_amd_devices_with_memory_and_units(tmp_path: Path) -> None:
    root = x86(tmp_path, "AuthenticAMD", 25, 17, "AMD EPYC 9654 96-Core Processor")
    on_bus(root, "0000:05:00.0", "0x1002", "0x74a1", "0x120000", product_name="AMD Instinct MI300X",
           mem_info_vram_total=str(192 * 2**30 - 2**26))  # fmt: skip
    on_bus(root, "0000:06:00.0", "0x1002", "0x74a1", "0x120000", product_name="AMD Instinct MI300X",
           mem_info_vram_total=str(24 * 2**30))  # fmt: skip
    node = root / "sys/class/kfd/kfd/topology/nodes/2"
    node.mkdir(parents=True)
    # 0000:05:00.0 is location 5 << 8; 1216 SIMDs at 4 per unit are 304 units.
    (node / "properties").write_text("simd_count 1216\nsimd_per_cu 4\nlocation_id 1280\ndomain 0\n", encoding="utf-8")
    whole, part = [d for d in detect(root=root, environ={}).devices if d.kind == "gpu"]
    assert whole.match.sku is not None
    assert whole.match.sku.slug == "mi300x"
    # An eighth of the memory: a partition, which has an eighth of the peak.
    assert (part.match.status, part.match.sku) == ("unknown", None)


def test_tpu_by_bus_and_by_metadata(tmp_path: Path) -> None:
    root = x86(tmp_path / "a", "AuthenticAMD", 25, 17, "AMD EPYC")
    on_bus(root, "0000:00:05.0", "0x1ae0", "0x0063", "0xff0000")
    on_bus(root, "0000:00:06.0", "0x1ae0", "0x0042", "0x020000")  # its network card
    (tpu,) = [d for d in detect(root=root, environ={"TPU_ACCELERATOR_TYPE": "v5litepod-4"}).devices if d.kind == "tpu"]
    assert tpu.match.sku is not None
    assert (tpu.match.sku.slug, tpu.source) == ("tpu-v5e", "PCI bus")
    bare = x86(tmp_path / "b", "AuthenticAMD", 25, 17, "AMD EPYC")
    (tpu,) = [d for d in detect(root=bare, environ={"TPU_ACCELERATOR_TYPE": "tpu7x-8"}).devices if d.kind == "tpu"]
    assert tpu.match.sku is not None
    assert tpu.match.sku.slug == "tpu-v7x"
    assert "4 chips" in tpu.match.reason
    for text in ("v99-8", "v5p-7", "nonsense"):
        (tpu,) = [d for d in detect(root=bare, environ={"TPU_ACCELERATOR_TYPE": text}).devices if d.kind == "tpu"]
        assert tpu.match.sku is None


class FakeNvml:
    """As much of NVML as is asked."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM = 1

    def __init__(self, cards: list[dict[str, Any]], broken: bool = False) -> None:
        self.cards, self.broken, self.open = cards, broken, False

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError("driver not loaded")
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.cards[index]

    def nvmlDeviceGetName(self, card: dict[str, Any]) -> Any:
        return card["name"]

    def nvmlDeviceGetMemoryInfo(self, card: dict[str, Any]) -> Any:
        return SimpleNamespace(total=card["mib"] * 2**20)

    def nvmlDeviceGetPciInfo(self, card: dict[str, Any]) -> Any:
        return SimpleNamespace(pciDeviceId=card["pci"], busId="00000000:1B:00.0")

    def nvmlDeviceGetMigMode(self, card: dict[str, Any]) -> tuple[int, int]:
        if "mig" not in card:
            raise self.NVMLError("not supported")
        return card["mig"], card["mig"]

    def nvmlDeviceGetClockInfo(self, card: dict[str, Any], which: int) -> int:
        return 1980

    def nvmlDeviceGetPowerManagementLimit(self, card: dict[str, Any]) -> int:
        return 700_000


def test_nvml() -> None:
    library = FakeNvml([
        {"name": "NVIDIA H200", "mib": 143771, "pci": 0x233510DE},
        {"name": b"NVIDIA H100 80GB HBM3", "mib": 81559, "pci": 0x233010DE, "mig": 0},
        {"name": "NVIDIA A100-SXM4-40GB", "mib": 40960, "pci": 0x20B010DE, "mig": 1},
    ])  # fmt: skip
    notes: list[Unknown] = []
    found = nvml_devices((), notes, library)
    assert [d.match.sku.slug if d.match.sku else None for d in found] == ["h200", "h100-sxm", None]
    assert (found[0].pci, found[0].bus, found[0].clock_hz, found[0].power_limit_w) == (
        "10de:2335", "0000:1b:00.0", 1.98e9, 700.0,
    )  # fmt: skip
    assert "partition" in found[2].match.reason
    assert not library.open
    assert notes == []


def test_nvml_that_does_not_answer() -> None:
    notes: list[Unknown] = []
    assert nvml_devices((), notes, FakeNvml([], broken=True)) == []
    assert "driver not loaded" in notes[0].reason


def test_launchers_in_their_order() -> None:
    found = launchers({"RANK": "1", "WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, lambda c: c == "srun")
    assert [(x["name"], x["active"], x["commands"]) for x in found[:2]] == [
        ("torchrun", True, []),
        ("Slurm", True, ["srun"]),
    ]
    assert (found[0]["rank"], found[0]["world_size"]) == ("1", "4")
    assert not any(x["active"] for x in launchers({"RANK": "1"}, lambda c: False))


def test_what_can_be_measured_says_why(tmp_path: Path) -> None:
    root = x86(tmp_path, "AuthenticAMD", 25, 17, "AMD EPYC", flags="hypervisor")
    facts = surroundings(root, {})
    assert facts["guest"] is True
    assert facts["clocks"]["readable"] is False
    able = {a.what: a for a in abilities({**facts, "backends": {}, "plugins": {}}, root)}
    assert not able["matrix ceilings and profiles through torch"].can
    assert not able["energy"].can
    assert not able["hardware counters (cycles, FLOP, memory traffic)"].can
    assert not able["clock of the processor"].can
    assert all(a.why for a in able.values())
    assert all(a.needs for a in able.values() if not a.can)
    for path in (
        "sys/bus/event_source/devices/cpu",
        "sys/class/powercap/intel-rapl:0",
        "sys/devices/system/cpu/cpu0/cpufreq",
    ):
        (root / path).mkdir(parents=True)
    (root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").write_text("performance\n", encoding="utf-8")
    (root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").write_text("3700000\n", encoding="utf-8")
    facts = surroundings(root, {})
    assert facts["clocks"] == {"readable": True, "governor": "performance", "max_hz": 3.7e9, "now_hz": None}
    able = {a.what: a for a in abilities({**facts, "backends": {"numba": "0.68"}, "plugins": {}}, root)}
    assert able["energy"].can
    assert able["clock of the processor"].can
    assert able["hardware counters (cycles, FLOP, memory traffic)"].can


def test_the_name_of_a_family_matches_the_family() -> None:
    assert match("zen4").sku is not None
    # A family is not what a product name in part could mean.
    assert match("AMD Zen").sku is None
