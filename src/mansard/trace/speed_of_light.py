"""How near each kernel of an Nsight Compute report came to the limits of its device, as the tool measured it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mansard.core.unknown import MaybeFloat, Unknown
from mansard.trace.readers.ncu import ProfiledKernel, Report
from mansard.trace.timeline import Timeline

_SOL = "GPU Speed Of Light Throughput"
_MEMORY = "Memory Workload Analysis"

#: What is shown -> metrics of the raw page, and titles of the details page, that mean it. All are per cent.
_SHARES: dict[str, tuple[str, ...]] = {
    "compute_throughput_ratio": ("sm__throughput.avg.pct_of_peak_sustained_elapsed", f"{_SOL}: Compute (SM) Throughput",
                                 "GPU Speed Of Light: SOL SM"),
    "memory_throughput_ratio": ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", f"{_SOL}: Memory Throughput",
                                "GPU Speed Of Light: SOL Memory"),
    "dram_throughput_ratio": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
                              "dram__throughput.avg.pct_of_peak_sustained_elapsed", f"{_SOL}: DRAM Throughput"),
    "l2_throughput_ratio": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", f"{_SOL}: L2 Cache Throughput"),
    "l1_throughput_ratio": ("l1tex__throughput.avg.pct_of_peak_sustained_active", f"{_SOL}: L1/TEX Cache Throughput"),
    "l2_hit_ratio": ("lts__t_sector_hit_rate.pct", f"{_MEMORY}: L2 Hit Rate"),
    "l1_hit_ratio": ("l1tex__t_sector_hit_rate.pct", f"{_MEMORY}: L1/TEX Hit Rate"),
    "achieved_occupancy_ratio": ("sm__warps_active.avg.pct_of_peak_sustained_active", "Occupancy: Achieved Occupancy"),
    "theoretical_occupancy_ratio": ("sm__maximum_warps_per_active_cycle_pct", "Occupancy: Theoretical Occupancy"),
}  # fmt: skip
_CLOCKS = {"sm_clock_hz": "smsp__cycles_elapsed.avg.per_second", "dram_clock_hz": "dram__cycles_elapsed.avg.per_second"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedOfLight:
    """One kernel of a report.

    Args:
        number: Its ID in the report.
        name: Its name.
        duration_s: Its time, measured alone [s].
        grid, block: Launch dimensions as written.
        shares: By what they are of; ratios of 1, as the tool defines them, each of its own peak.
        clocks_hz: Clocks during the measurement [Hz].
        dram_bytes: Traffic at DRAM, both ways [B].
    """

    number: str
    name: str
    duration_s: MaybeFloat
    grid: str
    block: str
    shares: Mapping[str, MaybeFloat]
    clocks_hz: Mapping[str, MaybeFloat]
    dram_bytes: MaybeFloat


def speeds_of_light(timeline: Timeline) -> list[SpeedOfLight]:
    """Return how near each kernel of a report came to the limits of its device, in the order of the report.

    Args:
        timeline: What `readers.ncu` made of a report; of other profiles nothing is known.

    Source: NVIDIA Nsight Compute, Kernel Profiling Guide, GPU Speed Of Light Throughput, Occupancy and Memory Workload Analysis.
    """
    report = timeline.extras.get("report")
    if timeline.format != "ncu" or not isinstance(report, Report):
        return []
    return [_of(kernel) for kernel in report.kernels]


def _of(kernel: ProfiledKernel) -> SpeedOfLight:
    measured = kernel.measured
    return SpeedOfLight(
        number=kernel.number, name=kernel.name, duration_s=measured.duration_s, grid=kernel.grid, block=kernel.block,
        shares={word: _share(kernel.values, names) for word, names in _SHARES.items()},
        clocks_hz={word: _value(kernel.values, (name,)) for word, name in _CLOCKS.items()}, dram_bytes=measured.dram_bytes,
    )  # fmt: skip


def _value(values: Mapping[str, float], names: tuple[str, ...]) -> MaybeFloat:
    found = next((values[n] for n in names if n in values), None)
    return Unknown(f"the report does not hold {names[0]}", ("ncu --set full",)) if found is None else found


def _share(values: Mapping[str, float], names: tuple[str, ...]) -> MaybeFloat:
    return _value(values, names) / 100.0
