"""What counters of Nsight Compute say a kernel consumed: FLOP by type, bytes by memory level, and the peaks at its clocks.

Metric names and formulas: NVIDIA Nsight Compute, Kernel Profiling Guide, sections Metrics Structure and Roofline Charts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mansard.core.demand import Demand
from mansard.core.unknown import MaybeFloat, Unknown, is_known

_TYPES = {"f": "f32", "d": "f64", "h": "f16"}
_RAW_PAGE = "a raw page of a report with --set full or --set roofline"
_OPS_PATH = re.compile(
    r"^sm__ops_path_tensor_src_(?P<source>[a-z0-9_]+?)(?:_dst_(?P<target>[a-z0-9]+))?(?:_sparsity_(?P<sparsity>on|off))?\.sum$"
)
_TENSOR = ("sm__inst_executed_pipe_tensor", "sm__pipe_tensor", "smsp__inst_executed_pipe_tensor", "sm__ops_path_tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Counters of one kernel.

    Args:
        duration_s: Its time, measured alone [s].
        flop: FLOP of the scalar pipes by type (`f32`, `f64`, `f16`), a fused multiply-add counted as 2 [FLOP].
        tensor_operations: Operations of the tensor cores by path as the tool counts them; whether a multiply-add is 1 or 2
            of them is not settled, so they are not added to `flop`.
        level_bytes: Traffic by level: `DRAM`, `L2 requests`, `L2 to crossbar`, `L1` [B].
        dram_read_bytes, dram_write_bytes, l1_load_bytes, l1_store_bytes: Parts of it [B].
        peak_flop_per_s: Peak of the scalar pipes by type at the clock of this measurement [FLOP/s].
        peak_dram_bytes_per_s: Peak of the memory at its clock [B/s].
        notes: How the figures were made, and what they leave out.
    """

    duration_s: MaybeFloat
    flop: Mapping[str, MaybeFloat]
    tensor_operations: Mapping[str, float] | Unknown
    level_bytes: Mapping[str, MaybeFloat]
    dram_read_bytes: MaybeFloat
    dram_write_bytes: MaybeFloat
    l1_load_bytes: MaybeFloat
    l1_store_bytes: MaybeFloat
    peak_flop_per_s: Mapping[str, MaybeFloat]
    peak_dram_bytes_per_s: MaybeFloat
    notes: tuple[str, ...] = ()

    @property
    def dram_bytes(self) -> MaybeFloat:
        """Traffic at DRAM, both ways [B]."""
        return self.level_bytes["DRAM"]

    @property
    def flop_per_dram_byte(self) -> MaybeFloat:
        """FP32 FLOP of the scalar pipes per byte of DRAM traffic [FLOP/B]."""
        flop, size = self.flop["f32"], self.dram_bytes
        if is_known(size) and size <= 0:
            return Unknown("no DRAM traffic was counted")
        return flop / size

    @property
    def ridge_flop_per_byte(self) -> MaybeFloat:
        """FP32 peak over DRAM peak at the clocks of this measurement [FLOP/B]."""
        return self.peak_flop_per_s["f32"] / self.peak_dram_bytes_per_s

    def demand(self) -> Demand | Unknown:
        """Return what the kernel consumed, as measured; Unknown where its FLOP or its bytes are not."""
        missing = [v for v in (self.flop["f32"], self.dram_bytes) if isinstance(v, Unknown)]
        if missing:
            return Unknown(
                "; ".join(m.reason for m in missing), tuple(dict.fromkeys(n for m in missing for n in m.needs))
            )
        if isinstance(self.tensor_operations, Unknown):
            return self.tensor_operations
        if any(self.tensor_operations.values()):
            return Unknown(
                "the kernel used tensor cores, and how the tool counts their operations is not settled",
                ("one GEMM of known size measured with the same metrics", "the operation's dimensions"),
            )
        read, write = self.dram_read_bytes, self.dram_write_bytes
        return Demand(
            vector_flop={t: v for t, v in self.flop.items() if is_known(v) and v > 0},
            read_bytes=read if is_known(read) else 0.0,
            write_bytes=write if is_known(write) else 0.0,
            level_bytes={level: v for level, v in self.level_bytes.items() if is_known(v)},
            uncounted=tuple(f"{t} operations: {v.reason}" for t, v in self.flop.items() if isinstance(v, Unknown)),
        )


def measured(values: Mapping[str, float], compute_capability: str) -> Measured:
    """Return what the counters of one kernel say.

    Args:
        values: Metrics in base units.
        compute_capability: Such as `9.0`.

    Source: NVIDIA Nsight Compute, Kernel Profiling Guide, Roofline Charts.

    >>> m = measured({"gpu__time_duration.sum": 1e-6, "dram__bytes_read.sum": 3e3, "dram__bytes_write.sum": 1e3}, "8.9")
    >>> m.dram_bytes, m.flop["f32"].reason
    (4000.0, 'the report does not count f32 instructions')
    """
    time = _one(values, "gpu__time_duration.sum", "gpu__time_duration.avg")
    notes: list[str] = []
    read, write = (_moved(values, f"dram__bytes_{way}.sum", time, notes) for way in ("read", "write"))
    counts = (
        _one(values, "dram__bytes.sum"),
        _one(values, "dram__bytes_read.sum") + _one(values, "dram__bytes_write.sum"),
    )
    dram = next((c for c in counts if is_known(c)), counts[1])
    if isinstance(dram, Unknown):  # a details page has the rate alone
        rated = _moved(values, "dram__bytes.sum", time, notes)
        dram = rated if is_known(rated) else read + write
    levels: dict[str, MaybeFloat] = {"DRAM": dram}
    l2 = _one(values, "lts__t_bytes.sum")
    if is_known(l2):
        levels["L2 requests"] = l2
    crossbar = _one(values, "lts__lts2xbar_cycles_active.sum")
    if is_known(crossbar):
        levels["L2 to crossbar"] = crossbar * 32
    load, store = (_one(values, f"l1tex__t_bytes_pipe_lsu_mem_global_op_{op}.sum") for op in ("ld", "st"))
    levels["L1"] = _l1(values, notes)
    flop = {name: _flop(values, letter, time, notes) for letter, name in _TYPES.items()}
    clock = _one(values, "sm__cycles_elapsed.avg.per_second")
    peak = {
        name: 2 * _one(values, f"sm__sass_thread_inst_executed_op_{letter}fma_pred_on.sum.peak_sustained") * clock
        if letter != "h"
        else Unknown("packed half instructions: their peak is not counted", (_RAW_PAGE,))
        for letter, name in _TYPES.items()
    }
    dram_peak = _one(values, "dram__bytes.sum.peak_sustained") * _one(values, "dram__cycles_elapsed.avg.per_second")
    return Measured(
        duration_s=time, flop=flop, tensor_operations=_tensor(values, compute_capability), level_bytes=levels,
        dram_read_bytes=read, dram_write_bytes=write, l1_load_bytes=load, l1_store_bytes=store,
        peak_flop_per_s=peak, peak_dram_bytes_per_s=dram_peak, notes=tuple(notes),
    )  # fmt: skip


def _one(values: Mapping[str, float], *names: str) -> MaybeFloat:
    for name in names:
        if name in values:
            return values[name]
    return Unknown(f"the report does not hold {names[0]}", (_RAW_PAGE,))


def _moved(values: Mapping[str, float], name: str, time: MaybeFloat, notes: list[str]) -> MaybeFloat:
    """Return bytes that were counted, or their rate times the time, as pages without the count have it."""
    counted = _one(values, name)
    rate = values.get(f"{name}.per_second")
    if is_known(counted) or rate is None or not is_known(time):
        return counted
    notes.append(f"{name} is its rate x time")
    return rate * time


def _l1(values: Mapping[str, float], notes: list[str]) -> MaybeFloat:
    direct = _one(values, "l1tex__t_bytes.sum")
    if is_known(direct):
        return direct
    for metric in (
        "l1tex__lsu_writeback_active",
        "l1tex__lsu_writeback_active_mem_lgds",
        "l1tex__lsu_writeback_active_mem_lg",
    ):
        cycles = _one(values, f"{metric}.sum")
        if is_known(cycles):
            notes.append(f"L1 bytes are {metric} x 128")
            return cycles * 128
    return direct


def _flop(values: Mapping[str, float], letter: str, time: MaybeFloat, notes: list[str]) -> MaybeFloat:
    """Return adds + multiplies + 2 x fused multiply-adds, from counts, or from rates per cycle, the clock and the time."""
    parts: list[MaybeFloat] = []
    for op, weight in (("add", 1), ("mul", 1), ("fma", 2)):
        stem = f"sass_thread_inst_executed_op_{letter}{op}_pred_on.sum"
        parts.append(weight * _one(values, f"sm__{stem}", f"smsp__{stem}"))
    if all(is_known(p) for p in parts):
        return parts[0] + parts[1] + parts[2]
    rates = [
        weight * _one(values, f"{unit}__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum.per_cycle_elapsed")
        for unit in ("smsp",)
        for op, weight in (("add", 1), ("mul", 1), ("fma", 2))
    ]
    clock = _one(values, "smsp__cycles_elapsed.avg.per_second")
    if all(is_known(r) for r in rates) and is_known(clock) and is_known(time):
        note = f"{_TYPES[letter]} FLOP are rates per elapsed cycle x clock x time"
        notes.append(note)
        return (rates[0] + rates[1] + rates[2]) * clock * time
    return Unknown(f"the report does not count {_TYPES[letter]} instructions", (_RAW_PAGE,))


def _tensor(values: Mapping[str, float], compute_capability: str) -> Mapping[str, float] | Unknown:
    """Return the operations of the tensor cores by path, or why they are not known."""
    paths: dict[str, float] = {}
    for name, value in values.items():
        found = _OPS_PATH.match(name)
        if found:
            paths[name.removeprefix("sm__ops_path_tensor_").removesuffix(".sum")] = value
    if paths:
        return paths
    instructions = [v for n, v in values.items() if n.startswith(_TENSOR[:3]) and n.endswith(".sum")]
    if instructions and not any(instructions):
        return {}
    if instructions:
        return Unknown(
            f"{sum(instructions):.0f} tensor instructions ran; the FLOP of each depend on its shape, which is not recorded",
            ("sm__ops_path_tensor_src_* metrics", "the dimensions of the operation"),
        )
    busy = [v for n, v in values.items() if "pipe_tensor" in n and "cycles_active" in n and "max" not in n]
    if busy and not any(busy):
        return {}
    major = compute_capability.partition(".")[0]
    if major.isdigit() and int(major) < 7:
        return {}  # no tensor cores before Volta
    return Unknown("the report does not say whether tensor cores were used", ("sm__inst_executed_pipe_tensor.sum",))
