"""What a microbenchmark is: its parameters, the work of one point, and a call that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from mansard.core import Demand
from mansard.core.unknown import Unknown

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a benchmark.

    Args:
        name: As it is written in a configuration file.
        kind: `int`, `float`, `bool`, `str` or `dtype`; a dtype is kept by its short name.
        default: Value where none is given; `REQUIRED` has none.
        choices: The only values allowed; empty for all of its kind.
        minimum: Smallest value allowed, for numbers.
        aliases: Other names that configuration files use.
        text: One line of meaning with the unit.
    """

    name: str
    kind: str
    default: Any
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    aliases: tuple[str, ...] = ()
    text: str = ""


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What a point runs on.

    Args:
        backend: `jax`, `torch`, `numpy` or `native` (our own kernels).
        platform: `cpu`, `gpu` or `tpu`.
        devices: How many devices of that backend this process sees.
        threads: Threads of the team, on a CPU.
        cpus: The CPUs it is pinned to.
        memory_bytes: Memory that one device can use [B]; None where nothing tells.
        device_name: Name by the backend, such as `NVIDIA H200`.
    """

    backend: str
    platform: str
    devices: int = 1
    threads: int = 1
    cpus: tuple[int, ...] = ()
    memory_bytes: float | None = None
    device_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes of a collective or a copy between memories.

    Args:
        operation: `all_reduce`, `all_gather`, `host_to_device`, ...
        size_bytes: S, as NCCL defines it for this operation [B]; algbw is S / t.
        size_means: S in words.
        bus_factor: busbw is `bus_factor` x algbw; `Unknown` for one participant.
        participants: Devices in one replica group.
        link: Name of the resource that limits it.
    """

    operation: str
    size_bytes: float
    size_means: str
    bus_factor: float | Unknown
    participants: int
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What is known of the time of a point beside its demand; for the plan alone, no verdict comes of it.

    Args:
        call_s: About what one call takes [s].
        prepare_s: About what it takes to make its arrays [s].
        why: What takes it, in words.
    """

    call_s: float
    prepare_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call of a point must consume on one device.

    Args:
        demand: Model FLOP and compulsory bytes, by the cost functions of `operators`.
        executed_flop: Matrix FLOP that this implementation really does, where they differ (flash backward) [FLOP].
        write_allocate_bytes: Traffic with lines read before they are written, where that applies [B].
        transfer: What moves between devices or memories, if that is what is measured.
        headline: What the rate is quoted in: `flop`, `bytes`, `transfer` or `time`.
        peak: `(dtype, accumulate, engine)` of the compute ceiling it is judged against; None if it does no such work.
        level: Memory level its working set must live in to mean what its name says (`dram` for hbm_bandwidth); None
            where any level is right.
        convention: What the count assumes, in words.
        composite: Whether the demand is that of several operations, so that arrays between them are in its bytes.
        compiler_flop: What a compiler should count for the same program, where its convention differs from that of
            `demand` and `executed_flop` (a causal mask that it computes and discards); `convention` names it [FLOP].
        planned: What else is known of its time, where the demand says too little of it.
    """

    demand: Demand
    executed_flop: float | None = None
    compiler_flop: float | None = None
    write_allocate_bytes: float | None = None
    transfer: Transfer | None = None
    headline: str = "flop"
    peak: tuple[str, str, str] | None = None
    level: str | None = None
    convention: str = ""
    composite: bool = False
    planned: Planned | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Whether a result is right.

    Args:
        error_ratio: Largest error over the tolerance; above 1 is wrong, infinity is not finite.
        against: What it was compared with, in words.
    """

    error_ratio: float
    against: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerCount:
    """What the compiler or the compiled program says of one call.

    Args:
        flop: FLOP by the compiler's cost analysis [FLOP], or why they are not known.
        bytes: Bytes accessed by it [B], or why not known.
        operations: Names of the operations that are in the compiled program.
        expected: Names of which at least one must be there; else the work was optimised away.
        source: Where the counts come from.
        parameters: How many arguments the compiled program takes; None where that is not known. None at all means that
            its inputs became constants.
        constant_bytes: Size of the largest array constant in it [B].
        dtypes: Element types its matrix operations really read, short names; empty where that is not known.
    """

    flop: float | Unknown
    bytes: float | Unknown
    operations: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    source: str = ""
    parameters: int | None = None
    constant_bytes: float = 0.0
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One array that a point reads or writes, as the audit looks at it after the run.

    Args:
        name: In words, such as `a`.
        role: `input`, `output`, or `in_place` for one that is read and written on purpose.
        bytes: Its whole size [B].
        values: Some of its elements, spread over all of it, as numbers.
        address: Where it lies on the host or device; None where nothing tells.
    """

    name: str
    role: str
    bytes: float
    values: Any = None
    address: int | None = None


@dataclass(slots=True, kw_only=True)
class Prepared:
    """One implementation of a point, compiled and ready to be timed.

    Args:
        run: Does `count` operations back to back and returns when the last one has finished.
        verify: Compares a result with an independent reference.
        count_by_compiler: What the compiler says, or `Unknown` with the reason.
        facts: What a reader must know: layout, implementation, data kind, page size, store type, aliasing, ...
        inputs_are_constant: Whether the compiler could fold the inputs (they are not arguments of the compiled call).
        output_is_fresh: Whether each call writes into new memory, so that page faults are part of the time.
        compile_s: Time of compilation [s]; 0 where there is none.
        chain: Does `count` operations inside one dispatch, where the implementation can (slope timing); else None.
        close: Releases what it holds.
        timed: Does `count` operations and returns their time by a clock of its own [s], for compiled kernels that start
            their threads behind a barrier; where it is given, it is used instead of the wall time around `run`.
        empty: The same dispatch without the work, for the floor; None takes the smallest operation of the backend.
        operands: The arrays, for the audit of zeros, constants, denormals, aliases and bytes; None if they cannot be
            shown.
    """

    run: Callable[[int], None]
    verify: Callable[[], Check]
    count_by_compiler: Callable[[], CompilerCount | Unknown]
    facts: Mapping[str, Any] = field(default_factory=dict)
    inputs_are_constant: bool = False
    output_is_fresh: bool = False
    compile_s: float = 0.0
    chain: Callable[[int], None] | None = None
    close: Callable[[], None] | None = None
    facts_after: Callable[[], Mapping[str, Any]] | None = None
    timed: Callable[[int], float] | None = None
    empty: Callable[[], None] | None = None
    operands: Callable[[], Sequence[Operand]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waived:
    """Why a point is not run here: a device, memory or time that is missing.

    Args:
        reason: In words, with what is needed and what is there.
        missing: `device`, `memory`, `time`, `backend`, `dtype` or `implementation`.
    """

    reason: str
    missing: str


class Benchmark(Protocol):
    """One microbenchmark. A module of `measure.benchmarks` holds them in its `BENCHMARKS` tuple.

    Attributes:
        name: As the published suite names it, where it has it.
        aliases: Other accepted names.
        area: `compute`, `memory`, `host_transfer`, `collectives`, `attention`, `operators` or `rematerialisation`.
        parameters: Its parameters; those that every benchmark has (`warmup_tries`, `num_runs`, `min_duration_s`,
            `dtype`, `impl`, ...) are in `config.common`.
        implementations: Names accepted by `impl`, the default first, with the backend of each.
        summary: One line for the documentation.
    """

    name: str
    aliases: tuple[str, ...]
    area: str
    parameters: tuple[Parameter, ...]
    implementations: Mapping[str, str]
    summary: str

    def work(self, params: Params, where: Where) -> Work:
        """Return what one call of this point must consume; no framework is imported for it."""

    def waived(self, params: Params, impl: str, where: Where) -> Waived | None:
        """Return why this point cannot run here, or None; no framework is imported for it."""

    def prepare(self, params: Params, impl: str, where: Where) -> Prepared:
        """Make the inputs and compile; frameworks are imported here, in the worker process of their backend."""


@runtime_checkable
class Sweeps(Protocol):
    """A benchmark of which one entry stands for several points, the same on every device, such as a sweep over sizes."""

    def expand(self, params: Params) -> Sequence[Params]:
        """Return the parameters of each point; one of them where nothing is to be expanded."""


@runtime_checkable
class NeedsFlags(Protocol):
    """A benchmark whose runtime must be started in a certain way, such as with several local devices."""

    def flags(self, params: Params, impl: str) -> Mapping[str, str]:
        """Return the environment variables a point needs before its runtime starts; `XLA_FLAGS` is added to."""


@runtime_checkable
class Interpretable(Protocol):
    """A benchmark with kernels for an accelerator alone that a CPU can check in interpret mode; they are never timed there.

    Attributes:
        interpreted: Implementations of that kind.
        interpret: Returns what is checked in words (a smaller shape), and its check; None where there is no such kernel.
    """

    interpreted: tuple[str, ...]
    interpret: Callable[[Params, str], tuple[str, Callable[[], Check]]] | None


@runtime_checkable
class HasColumns(Protocol):
    """A benchmark for which the published suite has columns of its own."""

    def columns(self, params: Params, where: Where, seconds: Mapping[str, float]) -> Mapping[str, Any]:
        """Return those columns; `seconds` has the time of one operation as `median`, `mean`, `min`, `max`, `p90`, ... [s]."""
