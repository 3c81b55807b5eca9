"""Read a workload folder of rocprof-compute (Omniperf): kernel times, counters, and the roofs the tool measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mansard.core.errors import InputError
from mansard.core.unknown import MaybeFloat, Unknown
from mansard.trace.readers.numbers import natural
from mansard.trace.run import Finding
from mansard.trace.timeline import NONE, Clock, Damage, Device, Kind, Names, Process, Timeline, events, sound


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRoof:
    """One roof of `roofline.csv`: what the tool's own microbenchmark reached.

    Args:
        device: Number of the device.
        name: As the file names it, such as `HBMBw` or `MFMABF16Flops`.
        value: Mean [B/s] for bandwidths, [FLOP/s] or [operations/s] for the others.
        low, high: Bounds the tool gives, in the same unit.
    """

    device: int
    name: str
    value: float
    low: MaybeFloat
    high: MaybeFloat


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a folder says beside its kernels.

    Args:
        gpu_model: As the tool names it; not a product name.
        gpu_arch: Such as `gfx942`.
        compute_units: Per GPU.
        max_clock_hz: Highest shader clock [Hz].
        memory_bytes_per_s: What the tool believes the memory can do [B/s]; per die on MI200, and not a peak to rely on.
        roofs: What the tool measured.
        counters: One mapping per dispatch: counter name to value, as `pmc_perf.csv` has it.
        sysinfo: The first row of `sysinfo.csv`.
    """

    gpu_model: str
    gpu_arch: str
    compute_units: int | Unknown
    max_clock_hz: MaybeFloat
    memory_bytes_per_s: MaybeFloat
    roofs: tuple[MeasuredRoof, ...]
    counters: tuple[Mapping[str, float], ...]
    sysinfo: Mapping[str, str]


def read(
    path: Path,
    *,
    kinds: frozenset[Kind] | None = None,
    memory_limit: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Timeline:
    """Read a workload folder; `extras["workload"]` holds the `Workload`.

    Args:
        path: The folder, or its `sysinfo.csv`.
        kinds: Kinds of event that are wanted; None takes all.
        memory_limit: Bytes the reader may hold [B].
        progress: Called with what is read and the share that is done.

    Raises:
        InputError: It has no readable `sysinfo.csv`, `timestamps.csv` or `pmc_perf.csv`.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    damage: list[Damage] = []
    size = sum(f.stat().st_size for f in folder.glob("*.csv"))
    if memory_limit is not None and size * 10 > memory_limit:
        raise InputError(f"{folder} does not fit the memory limit", hint="raise --memory-limit", code="memory_limit")
    if not any((folder / n).is_file() for n in ("sysinfo.csv", "timestamps.csv", "pmc_perf.csv")):
        raise InputError(
            f"{folder} is no workload folder of rocprof-compute",
            hint="name the folder with sysinfo.csv",
            code="not_a_profile",
        )
    workload = _workload(folder, damage)
    if progress is not None:
        progress(f"reading {folder.name}", 0.5)
    names = Names()
    table, numbers, pids = _kernels(folder, names, damage)
    wanted = kinds is None or Kind.KERNEL in kinds
    absent: dict[Kind, str] = {k: "rocprof-compute records kernels alone" for k in Kind if k is not Kind.KERNEL}
    if table is None or not wanted:
        absent[Kind.KERNEL] = (
            "not asked for" if table is not None else "timestamps.csv is absent: the times of the kernels are unknown"
        )
    return Timeline(
        source=str(folder),
        format="rocprof_compute",
        version=workload.sysinfo.get("version", ""),
        tables={Kind.KERNEL: table} if table is not None and wanted else {},
        names=names.table(),
        devices=tuple(_device(workload, n) for n in numbers),
        processes=tuple(Process(pid=p) for p in pids),
        absent=absent,
        clock=Clock(domain="device", epoch_offset_ns=Unknown("the ROCm clock counts from an unknown moment")),
        damage=tuple(damage),
        findings=_findings(workload),
        environment={
            k: workload.sysinfo[k] for k in ("rocm_version", "command", "hostname") if workload.sysinfo.get(k)
        },
        extras={"workload": workload},
    )


def _rows(path: Path, damage: list[Damage]) -> list[dict[str, str]]:
    try:
        text = path.read_bytes().decode("utf-8-sig", "replace").replace("\0", "")
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}", hint="check the folder", code="unreadable"
        ) from None
    try:
        reader = csv.reader(io.StringIO(text, newline=""))
        header = next(reader, [])
        rows = [r for r in reader if r]
    except csv.Error as error:
        raise InputError(
            f"{path} is a damaged CSV: {error}", hint="copy the folder again", code="damaged_csv"
        ) from None
    short = sum(1 for r in rows if len(r) < len(header))
    if short:
        text = f"{short} lines of {path.name} are incomplete and are left out"
        damage.append(Damage(code="short_rows", text=text, count=short, incomplete=True))
    return [dict(zip(header, r, strict=False)) for r in rows if len(r) >= len(header)]


def _workload(folder: Path, damage: list[Damage]) -> Workload:
    info: dict[str, str] = {}
    if (folder / "sysinfo.csv").is_file():
        rows = _rows(folder / "sysinfo.csv", damage)
        info = rows[0] if rows else {}
    units = _float(info.get("cu_per_gpu", ""))
    return Workload(
        gpu_model=info.get("gpu_model", ""),
        gpu_arch=info.get("gpu_arch", ""),
        compute_units=int(units) if isinstance(units, float) else units,
        max_clock_hz=_float(info.get("max_sclk", "")) * 1e6,
        memory_bytes_per_s=_float(info.get("hbm_bw", "")) * 1e9,
        roofs=_roofs(folder, damage),
        counters=_counters(folder, damage),
        sysinfo=info,
    )


def _float(text: str) -> MaybeFloat:
    try:
        value = float(text)
    except ValueError:
        return Unknown("not in sysinfo.csv")
    return value if np.isfinite(value) else Unknown("not a finite number in sysinfo.csv")


def _roofs(folder: Path, damage: list[Damage]) -> tuple[MeasuredRoof, ...]:
    """Return the roofs of `roofline.csv`, which writes GB/s and GFLOP/s."""
    if not (folder / "roofline.csv").is_file():
        return ()
    out = []
    for row in _rows(folder / "roofline.csv", damage):
        bounds = {k.lower(): v for k, v in row.items()}
        for name, text in row.items():
            if name == "device" or name.lower().endswith(("low", "high")):
                continue
            value = _float(text)
            if isinstance(value, Unknown):
                continue
            low, high = (_float(bounds.get(f"{name.lower()}{end}", "")) * 1e9 for end in ("low", "high"))
            device = row.get("device", "")
            out.append(
                MeasuredRoof(
                    device=NONE if (found := natural(device)) is None else found,
                    name=name,
                    value=value * 1e9,
                    low=low,
                    high=high,
                )
            )
    return tuple(out)


def _counters(folder: Path, damage: list[Damage]) -> tuple[dict[str, float], ...]:
    if not (folder / "pmc_perf.csv").is_file():
        return ()
    out = []
    for row in _rows(folder / "pmc_perf.csv", damage):
        values = ((name, _float(text)) for name, text in row.items())
        out.append({name: v for name, v in values if isinstance(v, float)})
    return tuple(out)


_SPELLINGS = {
    "start": ("Start_Timestamp", "BeginNs"), "end": ("End_Timestamp", "EndNs"), "name": ("Kernel_Name", "KernelName"),
    "device": ("GPU_ID", "gpu-id"), "queue": ("Queue_ID", "queue-id"), "pid": ("PID", "pid"),
    "correlation": ("Correlation_ID",),
}  # fmt: skip


def _kernels(folder: Path, names: Names, damage: list[Damage]) -> tuple[Any, list[int], list[int]]:
    """Return the kernels of `timestamps.csv`, whose columns differ in order and spelling between versions."""
    if not (folder / "timestamps.csv").is_file():
        return None, [], []
    rows = _rows(folder / "timestamps.csv", damage)

    def text(row: Mapping[str, str], what: str) -> str:
        return next((row[s] for s in _SPELLINGS[what] if s in row), "")

    kept = [r for r in rows if natural(text(r, "start")) is not None and natural(text(r, "end")) is not None]
    if len(kept) < len(rows):
        count = len(rows) - len(kept)
        damage.append(
            Damage(
                code="missing_duration",
                text=f"{count} dispatches have no times and are left out",
                count=count,
                incomplete=True,
            )
        )

    def whole(what: str) -> list[int]:
        return [NONE if (n := natural(text(r, what))) is None else n for r in kept]

    numbers, pids = sorted(set(whole("device")) - {NONE}), sorted(set(whole("pid")) - {NONE})
    index, process = {n: i for i, n in enumerate(numbers)}, {p: i for i, p in enumerate(pids)}
    table = events(
        start_ns=np.array([int(text(r, "start")) for r in kept], dtype=np.int64),
        end_ns=np.array([int(text(r, "end")) for r in kept], dtype=np.int64),
        name=names.codes([text(r, "name") for r in kept]),
        device=np.array([index.get(d, NONE) for d in whole("device")], dtype=np.int32),
        stream=np.array(whole("queue"), dtype=np.int64),
        process=np.array([process.get(p, NONE) for p in whole("pid")], dtype=np.int32),
        correlation=np.array(whole("correlation"), dtype=np.int64),
    )
    table, found = sound(table, what="kernels")
    damage += found
    return table.sorted(), numbers, pids


def _device(workload: Workload, number: int) -> Device:
    return Device(
        number=number,
        name=Unknown(
            f"the tool names the model {workload.gpu_model or '?'} ({workload.gpu_arch or '?'}), which several products share",
            ("the product name",),
        ),
        chip=workload.gpu_arch,
        multiprocessors=workload.compute_units,
        clock_hz=workload.max_clock_hz,
    )


def _findings(workload: Workload) -> tuple[Finding, ...]:
    out = []
    if not isinstance(workload.memory_bytes_per_s, Unknown):
        text = (
            f"sysinfo.csv states {workload.memory_bytes_per_s / 1e9:.1f} GB/s for the memory; that is what the tool assumes (per die "
            "on MI200), not a measured peak."
        )
        out.append(Finding(code="assumed_bandwidth", text=text))
    text = "Counters are collected in several replays of each kernel: the times come from a run of their own."
    return (*out, Finding(code="replayed", text=text))
