"""What Linux says of this machine: processor, caches, memory, limits, page policy, from /proc and /sys.

Everything takes the root of the file system as an argument, so that any machine can be described by a folder.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mansard.core.ceilings import MemoryLevel

ROOT = Path("/")


def read_text(path: Path) -> str | None:
    """Return the stripped text of a file of /proc or /sys, or None where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPU numbers of a kernel list.

    >>> parse_cpu_list("0-2,8")
    (0, 1, 2, 8)
    """
    numbers: list[int] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        low, _, high = part.partition("-")
        numbers.extend(range(int(low), int(high or low) + 1))
    return tuple(numbers)


def parse_size(text: str) -> int:
    """Return a cache size of sysfs in bytes.

    >>> parse_size("48K"), parse_size("32M")
    (49152, 33554432)
    """
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    if match is None:
        raise ValueError(f"not a cache size: {text!r}")
    return int(match.group(1)) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match.group(2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One cache instance.

    Args:
        level: 1, 2, 3, ...
        size_bytes: Its capacity [B].
        cpus: The CPUs that share it.
    """

    level: int
    size_bytes: int
    cpus: tuple[int, ...]


def read_caches(cpus: Iterable[int], root: Path = ROOT) -> tuple[Cache, ...]:
    """Return the distinct data and unified caches that `cpus` can reach; empty where sysfs tells nothing.

    Args:
        cpus: CPU numbers; those without a cache folder (offline, or hidden by the hypervisor) contribute nothing.
        root: Root of the file system.
    """
    found: dict[tuple[int, tuple[int, ...]], Cache] = {}
    for cpu in cpus:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache"
        for index in sorted(folder.glob("index*")):
            kind, level = read_text(index / "type"), read_text(index / "level")
            size, shared = read_text(index / "size"), read_text(index / "shared_cpu_list")
            if kind not in ("Data", "Unified") or not (level and size):
                continue
            group = parse_cpu_list(shared) if shared else (cpu,)
            cache = Cache(level=int(level), size_bytes=parse_size(size), cpus=group)
            found[(cache.level, group)] = cache
    return tuple(sorted(found.values(), key=lambda c: (c.level, c.cpus)))


def memory_levels(caches: Sequence[Cache], dram_bytes: float | None) -> tuple[MemoryLevel, ...]:
    """Return the memory levels from the nearest to the farthest; instances are those within reach, summed.

    Where instances of one level differ in size (big and little cores), the smallest counts, so that no working set
    is said to fit where it does not.
    """
    levels: list[MemoryLevel] = []
    for number in sorted({c.level for c in caches}):
        mine = [c for c in caches if c.level == number]
        size = float(min(c.size_bytes for c in mine))
        levels.append(MemoryLevel(level=f"l{number}", capacity_bytes=size, instances=len(mine)))
    if dram_bytes:
        levels.append(MemoryLevel(level="dram", capacity_bytes=float(dram_bytes), instances=1))
    return tuple(levels)


def meminfo(key: str, root: Path = ROOT) -> float | None:
    """Return one line of /proc/meminfo in bytes, such as `MemTotal`."""
    match = re.search(rf"^{re.escape(key)}:\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    return float(match.group(1)) * 1024.0 if match else None


def cgroup_cpus(root: Path = ROOT) -> float | None:
    """Return the CPU quota of this container in CPUs, or None where there is none (cgroup v2, then v1)."""
    own = read_text(root / "proc/self/cgroup") or ""
    best: float | None = None
    for line in own.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        for folder in (base / path.lstrip("/"), base):
            quota = _quota(folder)
            if quota is not None:
                best = quota if best is None else min(best, quota)
    return best


def _quota(folder: Path) -> float | None:
    v2 = (read_text(folder / "cpu.max") or "").split()
    if len(v2) == 2 and v2[0] != "max":
        return int(v2[0]) / int(v2[1])
    quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        return int(quota) / int(period)
    return None


def cpu_model(root: Path = ROOT) -> str:
    """Return the processor in the words of /proc/cpuinfo, with family, model and stepping where it has them.

    A virtual machine often says no more than "AMD EPYC"; family and model tell the generations apart.
    """
    text = read_text(root / "proc/cpuinfo") or ""
    fields = dict(re.findall(r"^([^\t:]+)\s*:\s*(.*)$", text.split("\n\n")[0], re.MULTILINE))
    name = fields.get("model name") or fields.get("CPU implementer") or platform.processor() or platform.machine()
    if "cpu family" in fields:
        parts = (fields["cpu family"], fields.get("model", "?"), fields.get("stepping", "?"))
        return f"{name} (family {parts[0]} model {parts[1]} stepping {parts[2]})"
    if "CPU part" in fields:
        return f"{name} part {fields['CPU part']} variant {fields.get('CPU variant', '?')}"
    return name


def huge_page_policy(root: Path = ROOT) -> str:
    """Return the policy for transparent huge pages: `always`, `madvise`, `never`, or `unsupported`."""
    text = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    match = re.search(r"\[(\w+)\]", text)
    return match.group(1) if match else "unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuIdentity:
    """What identifies a processor in /proc/cpuinfo.

    Args:
        name: The model name, empty where there is none (Arm).
        vendor: `AuthenticAMD`, `GenuineIntel`, or the implementer of Arm in hexadecimal.
        family, model, stepping: Of x86; None on Arm.
        part: Of Arm in hexadecimal; empty on x86.
        flags: Instruction-set flags.
    """

    name: str
    vendor: str
    family: int | None
    model: int | None
    stepping: int | None
    part: str
    flags: frozenset[str]

    def fits(self, pattern: str) -> bool:
        """Return whether a `cpuid` pattern of a hardware file names this processor.

        >>> zen4 = CpuIdentity(name="", vendor="AuthenticAMD", family=25, model=17, stepping=1, part="", flags=frozenset())
        >>> zen4.fits("AuthenticAMD/25/16-31"), zen4.fits("AuthenticAMD/25/0-15")
        (True, False)
        """
        fields = pattern.split("/")
        if fields[0] != self.vendor:
            return False
        if self.part:
            return fields[1:] == [self.part]
        values = (self.family, self.model, self.stepping)
        return all(value is not None and _within(value, want) for value, want in zip(values, fields[1:], strict=False))


def _within(value: int, want: str) -> bool:
    low, _, high = want.partition("-")
    return int(low) <= value <= int(high or low)


def cpu_identity(root: Path = ROOT) -> CpuIdentity | None:
    """Return what identifies the first processor, or None where /proc/cpuinfo says nothing of use."""
    text = read_text(root / "proc/cpuinfo") or ""
    fields = dict(re.findall(r"^([^\t:\n]+?)\s*:\s*(.*)$", text.split("\n\n")[0], re.MULTILINE))
    vendor = fields.get("vendor_id") or fields.get("CPU implementer", "")
    if not vendor:
        return None

    def number(key: str) -> int | None:
        return int(fields[key]) if fields.get(key, "").isdigit() else None

    return CpuIdentity(
        name=fields.get("model name", "").strip(),
        vendor=vendor.strip(),
        family=number("cpu family"),
        model=number("model"),
        stepping=number("stepping"),
        part=fields.get("CPU part", "").strip(),
        flags=frozenset((fields.get("flags") or fields.get("Features") or "").split()),
    )
