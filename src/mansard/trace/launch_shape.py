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


def blocks_per_unit(shape: LaunchShape, limits: UnitLimits) -> int | Unknown:
    """Return how many blocks of a kernel one multiprocessor holds at once.

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
