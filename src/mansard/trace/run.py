"""What one run of a program did: operations with their demand and times, steps, and what lay between.

Every recorder and reader that feeds the diagnosis of a run ends in a `RunTrace`. Times are integer nanoseconds of one
clock. Operations of one lane (a host thread or a device stream) never overlap; operations of different lanes may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import Demand, Unknown

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]


class Part(StrEnum):
    """Which part of a step an operation belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    INPUT = "input"
    OTHER = "other"


class WaitCause(StrEnum):
    """Why the host did not start the next operation."""

    INPUT = "input"
    SYNC = "sync"
    COMPILE = "compile"
    PYTHON = "python"
    CALL = "call"  # one long call of the runtime: first use, allocation, loading of kernels
    UNEXPLAINED = "unexplained"  # nothing runs, and nothing recorded tells why


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One kind of operation: same name, shapes, element types and part of the step.

    Args:
        name: The operator as its framework names it, such as `aten::mm` or `dot.3`.
        category: gemm, attention, convolution, elementwise, reduction, softmax, norm, copy, gather, scatter, random,
            sort, collective, optimizer, view, allocation or other.
        part: Part of the step.
        shapes: Operands for reading, such as `f32[512,768] f32[768,3072]`.
        demand: What one call must consume, or `Unknown` with the reason. A view or an allocation has a demand of nothing.
        scope: Scope of the ceilings one call can use: `core`, `node` (all threads of the run) or `device`.
        fresh_bytes: Bytes of results that go into newly allocated memory per call [B].
        source: Where it comes from: module and HLO op name, or Python file and line; empty if not recorded.
        formula: How the demand was counted, for the receipt.
        full_square_flop: FLOP per call if a causal attention were counted in full; None where that does not apply.
        recompute: Executed again to save memory (activation checkpointing): hardware FLOP and no model FLOP.
        link: The link that a communication goes over, or why that is not known; None where it is no communication.
    """

    name: str
    category: str
    part: Part
    shapes: str
    demand: Demand | Unknown
    scope: str = "node"
    fresh_bytes: float = 0.0
    source: str = ""
    formula: str = ""
    full_square_flop: float | None = None
    recompute: bool = False
    link: str | Unknown | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The repeated steps of a run, warm-up and compilation left out.

    Args:
        start_ns: Start of each steady step [ns].
        end_ns: End of each steady step [ns]; normally the start of the next.
        source: How they were found: `optimizer`, `marker`, `loop`, `periodicity`, or `none`.
        skipped: Steps left out as warm-up or compilation.
        note: In words, what a step is here, such as `one optimizer step` or `one pass of the loop at train.py:31`.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    source: str
    skipped: int = 0
    note: str = ""

    @property
    def count(self) -> int:
        """How many steady steps there are."""
        return int(self.start_ns.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something a reader should know about the data.

    Args:
        code: Stable identifier, such as `no_steps`, `program_crashed`, `profile_capped`.
        text: One sentence.
    """

    code: str
    text: str


def _no_counts() -> Int32Array:
    return np.zeros(0, dtype=np.int32)


def _no_times() -> Int64Array:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrace:
    """One recorded run.

    Args:
        framework: `torch` or `jax`; also the backend whose dispatch cost applies.
        operators: The distinct kinds of operation.
        op: Index into `operators` of each executed operation.
        start_ns, end_ns: Its interval [ns], including everything it calls.
        lane: Thread or stream it ran on, numbered from 0.
        op_events: Events that the profiler recorded inside each operation, itself included; empty where each is one event. Work of
            a device has none: its host's events are frames.
        frame_ns: Starts of recorded events outside operations: wrappers, autograd's frames [ns].
        dispatch_start_ns, dispatch_end_ns: Time spent in framework wrappers around operations [ns]: composite
            operators without work of their own, autograd bookkeeping, the runtime's launch path.
        wait_start_ns, wait_end_ns: Intervals in which the program is known to wait [ns].
        wait_cause: Cause of each wait.
        steps: The repeated steps.
        window_ns: Start and end of what was profiled [ns].
        unprofiled_step_s: Step times with the profiler off [s], one value per step or per group of steps; empty where none.
        op_overhead_s: What the profiler adds to each recorded event [s], from a calibration in the same process; 0 if unknown.
        op_floor_s: Time of the smallest operation of this framework with the profiler off, in the same process [s].
        minor_faults_per_step: Page faults served without disk, per step; None where not known.
        page_bytes: Bytes that one minor fault maps (4096, or 2 MiB with transparent huge pages) [B].
        unmapping_s_per_byte: What giving touched memory back to the system costs in this process [s/B]; 0 if unknown.
        cores_used: Processor time of the process over the wall time of what was profiled; None where not recorded.
        threads: Threads that the framework computes with.
        scope: Default scope of its operations.
        devices: Names of the devices used.
        environment: Versions, command line, process facts, for the receipt.
        findings: What a reader should know about the data.
    """

    framework: str
    operators: tuple[Operator, ...]
    op: Int32Array
    start_ns: Int64Array
    end_ns: Int64Array
    lane: Int32Array
    op_events: Int32Array = field(default_factory=_no_counts)
    frame_ns: Int64Array = field(default_factory=_no_times)
    dispatch_start_ns: Int64Array = field(default_factory=_no_times)
    dispatch_end_ns: Int64Array = field(default_factory=_no_times)
    wait_start_ns: Int64Array = field(default_factory=_no_times)
    wait_end_ns: Int64Array = field(default_factory=_no_times)
    wait_cause: tuple[WaitCause, ...] = ()
    steps: Steps
    window_ns: tuple[int, int]
    unprofiled_step_s: tuple[float, ...] = ()
    op_overhead_s: float = 0.0
    op_floor_s: float = 0.0
    minor_faults_per_step: float | None = None
    page_bytes: float = 4096.0
    unmapping_s_per_byte: float = 0.0
    cores_used: float | None = None
    threads: int = 1
    scope: str = "node"
    devices: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
