"""How a kernel is spread over a device: blocks, threads, registers and shared memory, and how many blocks one unit holds."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.core.unknown import Unknown

_NOT_RECORDED = -1

#: Most resident blocks of one multiprocessor by compute capability.
#: Source: NVIDIA, CUDA C++ Programming Guide 13.0, table "Technical Specifications per Compute Capability".
_MOST_BLOCKS = {
    "6.0": 32, "6.1": 32, "6.2": 32, "7.0": 32, "7.2": 32, "7.5": 16, "8.0": 32, "8.6": 16, "8.7": 16, "8.9": 24,
    "9.0": 32, "10.0": 32, "10.3": 32, "11.0": 24, "12.0": 24, "12.1": 24,
}  # fmt: skip
_REGISTER_UNIT = 256  # registers are given to a warp in this many
_QUARTERS = 4  # a multiprocessor has four partitions, each with a quarter of the registers
_RESERVED_SHARED = 1024  # from compute capability 8.0 on the system takes so much of each block [B]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    """One way in which kernels were launched; -1 is not recorded.

    Args:
        blocks: Blocks or workgroups of one launch.
        threads: Threads of a block.
        registers: Registers of a thread.
        shared_bytes: Shared memory of a block, static and dynamic [B].
    """

    blocks: int
    threads: int
    registers: int = _NOT_RECORDED
    shared_bytes: int = _NOT_RECORDED


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLimits:
    """What one multiprocessor holds at once, as the file states it for its device.

    Args:
        capability: Compute capability of NVIDIA, such as `9.0`.
        threads: Resident threads.
        registers: Registers.
        shared_bytes: Shared memory at its largest setting [B].
        blocks: Resident blocks; None where the file does not state it, then the table of its capability is used.
        warp: Threads of a warp.
    """

    capability: str
    threads: int
    registers: int
    shared_bytes: int
    blocks: int | None = None
    warp: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class WavefrontLimits:
    """What one compute unit of AMD holds at once, as the file states it for its device.

    Args:
        gfx: Name of the instruction set, such as `gfx942`.
        waves: Resident waves of one SIMD unit.
        simds: SIMD units of a compute unit.
        shared_bytes: LDS [B].
        lanes: Work-items of a wave.
    """

    gfx: str
    waves: int
    simds: int
    shared_bytes: int
    lanes: int = 64


#: Vector registers of a lane, and in how many they are given out; steps in which LDS is given out [B].
#: Source: LLVM 20, AMDGPUBaseInfo.cpp (getTotalNumVGPRs, getVGPRAllocGranule) and User Guide for AMDGPU Backend (granulated_lds_size).
_GFX = {
    "gfx90a": (512, 8, 512), "gfx940": (512, 8, 512), "gfx941": (512, 8, 512), "gfx942": (512, 8, 512), "gfx950": (512, 8, 1280),
    "gfx900": (256, 4, 512), "gfx906": (256, 4, 512),
}  # fmt: skip
_MOST_SHARED_GROUPS = 16  # workgroups of several waves on one compute unit, which need a barrier each


def workgroups_per_unit(shape: LaunchShape, limits: WavefrontLimits) -> int | Unknown:
    """Return how many workgroups of a kernel one compute unit of AMD's CDNA or Vega holds at once.

    The least of what waves, vector registers, LDS and barriers allow.

    Args:
        shape: The launch.
        limits: The compute unit.

    Source: LLVM 20, AMDGPUBaseInfo.cpp (getMaxWorkGroupsPerCU, getNumWavesPerEUWithNumVGPRs).

    Assumes: the waves of a workgroup are spread evenly over the SIMD units.

    >>> mi300 = WavefrontLimits(gfx="gfx942", waves=8, simds=4, shared_bytes=65536)
    >>> workgroups_per_unit(LaunchShape(blocks=304, threads=256, registers=128, shared_bytes=0), mi300)
    4
    >>> workgroups_per_unit(LaunchShape(blocks=304, threads=256, registers=24, shared_bytes=32768), mi300)
    2
    >>> workgroups_per_unit(LaunchShape(blocks=304, threads=64, registers=24, shared_bytes=0), mi300)
    32
    """
    if shape.threads <= 0 or shape.registers < 0 or shape.shared_bytes < 0:
        return Unknown("the profile does not record workgroup size, registers and LDS of the launch")
    if limits.gfx not in _GFX:
        return Unknown(f"how a compute unit of {limits.gfx or 'this device'} gives out its registers is not known here")
    total, step, unit = _GFX[limits.gfx]
    waves = -(-shape.threads // limits.lanes)
    each = limits.waves
    if shape.registers:
        each = min(each, total // (-(-shape.registers // step) * step))
    fits = [each * limits.simds // waves]
    if waves > 1:
        fits.append(_MOST_SHARED_GROUPS)
    if shape.shared_bytes:
        fits.append(limits.shared_bytes // (-(-shape.shared_bytes // unit) * unit))
    found = min(fits)
    return found if found >= 1 else Unknown("the recorded launch is larger than what the recorded device holds")


def blocks_per_unit(shape: LaunchShape, limits: UnitLimits | WavefrontLimits) -> int | Unknown:
    """Return how many blocks of a kernel one multiprocessor holds at once; of AMD see `workgroups_per_unit`.

    The least of what blocks, warps, registers and shared memory allow. Registers are given in units of 256 to a warp, and
    warps to one of four partitions; shared memory in units of 128 B (256 B before 8.0), with 1 KiB more from 8.0 on.

    Args:
        shape: The launch.
        limits: The multiprocessor.

    Assumes: shared memory is at its largest setting; the driver may choose a smaller one, then fewer blocks fit.

    Source: NVIDIA, CUDA C++ Programming Guide 13.0, technical specifications by compute capability; Nsight Compute 2025,
    occupancy calculator. Equal to what Kineto derives from NVIDIA's own library on five kinds of device.

    >>> h100 = UnitLimits(capability="9.0", threads=2048, registers=65536, shared_bytes=233472)
    >>> blocks_per_unit(LaunchShape(blocks=500, threads=256, registers=168, shared_bytes=0), h100)
    1
    >>> blocks_per_unit(LaunchShape(blocks=500, threads=128, registers=32, shared_bytes=0), h100)
    16
    """
    if isinstance(limits, WavefrontLimits):
        return workgroups_per_unit(shape, limits)
    if shape.threads <= 0 or shape.registers < 0 or shape.shared_bytes < 0:
        return Unknown("the profile does not record threads, registers and shared memory of the launch")
    most = limits.blocks or _MOST_BLOCKS.get(limits.capability)
    if most is None:
        return Unknown(
            f"how many blocks a multiprocessor of compute capability {limits.capability or '?'} holds is unknown"
        )
    warps = -(-shape.threads // limits.warp)
    fits = [most, limits.threads // limits.warp // warps]
    if shape.registers:
        each = -(-shape.registers * limits.warp // _REGISTER_UNIT) * _REGISTER_UNIT
        fits.append(limits.registers // _QUARTERS // each * _QUARTERS // warps)
    newer = _version(limits.capability) >= (8, 0)
    unit = 128 if newer else 256
    shared = shape.shared_bytes + (_RESERVED_SHARED if newer else 0)
    if shared:
        fits.append(limits.shared_bytes // (-(-shared // unit) * unit))
    found = min(fits)
    if found < 1:
        return Unknown("the recorded launch is larger than what the recorded device holds")
    return found


def _version(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
