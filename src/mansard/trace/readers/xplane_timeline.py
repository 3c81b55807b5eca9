"""Read an XPlane profile (`.xplane.pb`) of the JAX and XLA profilers into a Timeline."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.trace.readers.numbers import natural
from mansard.trace.readers.planes import copy_kind, device_event_kind, device_of, line_kind, only_copies, stream_of
from mansard.trace.readers.xplane import XLine, XPlane, XSpace, parse_xspace
from mansard.trace.run import Finding
from mansard.trace.timeline import (
    DEVICE_WORK,
    NONE,
    Clock,
    Damage,
    Detail,
    Device,
    Events,
    Kind,
    Names,
    Process,
    Thread,
    Timeline,
    events,
    joined,
    sound,
)

Int64Array = npt.NDArray[np.int64]
_PLURAL = {Kind.KERNEL: "kernels", Kind.COPY: "copies", Kind.MEMSET: "fills"}
_EVENT_CAP = 1_000_000  # the profiler of JAX stops recording at this many events of one line by default


def read(
    path: Path,
    *,
    kinds: frozenset[Kind] | None = None,
    memory_limit: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Timeline:
    """Read a profile.

    Args:
        path: A `.xplane.pb` file, gzip or not.
        kinds: Kinds of event that are wanted; None takes all but Python functions.
        memory_limit: Bytes the reader may hold [B]; a profile is decoded as a whole.
        progress: Called with what is read and the share that is done.

    Raises:
        InputError: The file cannot be read, is not an intact XPlane profile, or needs more memory than allowed.
    """
    path = Path(path)
    data = _bytes(path, memory_limit)
    if progress is not None:
        progress(f"reading {path.name}", 0.5)
    try:
        space = parse_xspace(data)
    except InputError as error:
        raise InputError(f"{path}: {error.message}", hint=error.hint, code=error.code) from None
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        raise InputError(
            f"{path} is not an intact XPlane profile: {error}",
            hint="record or copy the file again; a text conversion (UTF-8) destroys it",
            code="damaged_xplane",
        ) from None
    return timeline_of(space, path, kinds)


def _bytes(path: Path, memory_limit: int | None) -> bytes:
    try:
        size = path.stat().st_size
        if memory_limit is not None and 4 * size > memory_limit:
            raise InputError(
                f"{path} has {size} bytes; reading it needs about {4 * size}, and the memory limit is {memory_limit}",
                hint="raise --memory-limit",
                code="memory_limit",
            )
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path}: {reason}", hint="check the path", code="unreadable") from None


@dataclass(slots=True)
class _Build:
    """Tables that grow with the planes."""

    names: Names = field(default_factory=Names)
    parts: dict[Kind, list[Events]] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    details: dict[tuple[str, str, int], int] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    lines: dict[str, tuple[int, int]] = field(default_factory=dict)


def timeline_of(space: XSpace, path: Path, kinds: frozenset[Kind] | None = None) -> Timeline:
    """Return the timeline of a decoded profile.

    Args:
        space: The profile.
        path: Where it came from.
        kinds: Kinds of event that are wanted; None takes all but Python functions.
    """
    build = _Build()
    for plane in space.planes:
        build.lines[plane.name] = (len(plane.lines), sum(line.count for line in plane.lines))
        if device_of(plane.name) is not None:
            _device_plane(plane, build)
        elif plane.name.startswith("/host:") and plane.lines:
            _host_plane(plane, build)
    tables: dict[Kind, Events] = {}
    for kind, parts in build.parts.items():
        if (kinds is None and kind is Kind.PYTHON) or (kinds is not None and kind not in kinds):
            continue
        table, damage = sound(joined(parts), what=_PLURAL.get(kind, f"{kind.name.lower()} events"))
        build.damage += [d for d in damage if kind in DEVICE_WORK or d.code != "zero_duration"]
        tables[kind] = table.sorted() if kind in DEVICE_WORK else table
    _capped(space, build)
    host = space.hostnames[0] if space.hostnames else ""
    return Timeline(
        source=str(path),
        format="xplane",
        version=_version(space),
        tables=tables,
        names=build.names.table(),
        devices=tuple(build.devices),
        processes=(Process(pid=_pid(space), name=host),),
        threads=tuple(build.threads),
        details=tuple(Detail(args={"hlo_module": m, "hlo_op": o, "program_id": p}) for m, o, p in build.details),
        absent=_absent(space, tables, kinds, build),
        clock=_clock(space),
        damage=(*(Damage(code="profiler_error", text=e, incomplete=True) for e in space.errors), *build.damage),
        findings=tuple(build.findings),
        diagnostics=tuple(space.errors) + tuple(space.warnings),
        environment={"hostnames": list(space.hostnames)} if space.hostnames else {},
        extras={
            "planes": dict(build.lines),
            "plane_stats": {p.name: _plain(p.stats) for p in space.planes},
            "programs": _programs(space),
        },
    )


def _counted(plane: XPlane, line: XLine) -> dict[str, npt.NDArray[Any]]:
    """Return the FLOP and bytes that the profiler wrote beside each operation, on the event or on its kind."""
    found = {}
    for column, names in (
        ("model_flop", ("model_flops", "flops")),
        ("accessed", ("bytes_accessed", "raw_bytes_accessed")),
    ):
        for name in names:
            if column in found or not plane.stat_ids(name):
                continue
            values = plane.integers(line, name)
            own = {m: s[name] for m, s in plane.event_stats.items() if isinstance(s.get(name), int | float)}
            for number, value in own.items():
                values[(line.metadata == number) & (values < 0)] = int(value)
            if (values >= 0).any():
                found[column] = values
    return found


def _programs(space: XSpace) -> dict[str, bytes]:
    """Return the programs that ran, as HloProto messages by name; a profile keeps them on its metadata plane."""
    found: dict[str, bytes] = {}
    for plane in space.planes:
        for number, stats in plane.event_stats.items():
            proto = stats.get("Hlo Proto", stats.get("hlo_proto"))
            if isinstance(proto, bytes):
                found[plane.event_names.get(number, str(number))] = proto
    return found


def _device_plane(plane: XPlane, build: _Build) -> None:
    found = device_of(plane.name)
    assert found is not None
    index = len(build.devices)
    build.devices.append(_device(plane, found[1]))
    if "memory_bandwidth" in plane.stats and not any(f.code == "plane_bandwidth" for f in build.findings):
        text = "The memory bandwidth a plane states is not a peak (half the data sheet's on MI300X) and is not used as one."
        build.findings.append(Finding(code="plane_bandwidth", text=text))
    for line in plane.lines:
        if not line.count:
            continue
        kind = line_kind(plane.name, line.name)
        codes, texts = _named(plane, line, build.names)
        columns: dict[str, Any] = {
            "start_ns": line.start_ns, "end_ns": line.end_ns, "name": codes, "device": index, "process": 0,
            "stream": stream_of(line.name, line.number), "correlation": plane.integers(line, "correlation_id"),
            "detail": _details(plane, line, build),
        }  # fmt: skip
        table = events(**columns, extras=_counted(plane, line))
        if kind is not Kind.KERNEL:
            build.parts.setdefault(kind, []).append(table)
            continue
        copies = only_copies(line.name)
        kinds = np.array([int(Kind.COPY if copies else device_event_kind(t)) for t in texts] or [0], dtype=np.int64)[
            _local(line)
        ]
        for code in np.unique(kinds).tolist():
            part = table.take(kinds == code)
            if code == Kind.COPY:
                part = _copies(part, plane, line, kinds == code, build.names)
            build.parts.setdefault(Kind(code), []).append(part)


def _local(line: XLine) -> Int64Array:
    """Return for each event the position of its name among the line's distinct metadata."""
    return np.unique(line.metadata, return_inverse=True)[1].reshape(-1)


def _named(plane: XPlane, line: XLine, names: Names) -> tuple[npt.NDArray[np.int32], list[str]]:
    used, inverse = np.unique(line.metadata, return_inverse=True)
    texts = [plane.event_names.get(int(m), "") for m in used]
    codes = np.array([names.code(t) for t in texts], dtype=np.int32)
    return codes[inverse.reshape(-1)], texts


def _copies(part: Events, plane: XPlane, line: XLine, mask: npt.NDArray[np.bool_], names: Names) -> Events:
    table = names.table()
    directions = {int(c): int(copy_kind(table[int(c)])) for c in np.unique(part.name)}
    kinds = np.array([directions[int(c)] for c in part.name], dtype=np.int8)
    size = _copy_bytes(plane, line)[mask]
    return replace(part, copy_kind=kinds, nbytes=size)


def _copy_bytes(plane: XPlane, line: XLine) -> Int64Array:
    """Return the bytes of each copy, from the stat `memcpy_details` (`kind_src:... size:N dest:...`)."""
    codes, texts = plane.texts(line, "memcpy_details")
    sizes = np.full(len(texts) + 1, NONE, dtype=np.int64)
    for i, text in enumerate(texts):
        for word in text.split():
            if word.startswith("size:") and (size := natural(word[5:])) is not None:
                sizes[i] = size
    return sizes[codes]


def _details(plane: XPlane, line: XLine, build: _Build) -> npt.NDArray[np.int32]:
    """Number the HLO operation of each event, -1 where none is recorded."""
    op, ops = plane.texts(line, "hlo_op")
    out = np.full(line.count, NONE, dtype=np.int32)
    chosen = np.flatnonzero(op >= 0)
    if not chosen.size:
        return out
    module, modules = plane.texts(line, "hlo_module")
    program = plane.integers(line, "program_id")
    triples, inverse = np.unique(np.stack([module[chosen], op[chosen], program[chosen]]), axis=1, return_inverse=True)
    codes = [
        build.details.setdefault((modules[m] if m >= 0 else "", ops[o], p), len(build.details))
        for m, o, p in triples.T.tolist()
    ]
    out[chosen] = np.array(codes, dtype=np.int32)[inverse.reshape(-1)]
    return out


def _host_plane(plane: XPlane, build: _Build) -> None:
    for line in plane.lines:
        thread = len(build.threads)
        build.threads.append(Thread(process=0, tid=line.number, name=line.name))
        if not line.count:
            continue
        codes, texts = _named(plane, line, build.names)
        detail = _details(plane, line, build)
        table = events(
            start_ns=line.start_ns, end_ns=line.end_ns, name=codes, process=0, thread=thread, detail=detail,
            correlation=plane.integers(line, "correlation_id"),
        )  # fmt: skip
        python = np.array([t.startswith("$") for t in texts], dtype=np.bool_)[_local(line)]
        kind = np.where(python, int(Kind.PYTHON), np.where(detail >= 0, int(Kind.CPU_OP), int(Kind.OTHER)))
        kind[plane.integers(line, "step_num") >= 0] = int(Kind.ANNOTATION)  # a StepTraceAnnotation of the program
        kind[_runtime(texts)[_local(line)]] = int(Kind.RUNTIME)  # some name the operation they launch
        if line.name.lower().startswith(("python", "main")):
            kind[(kind == Kind.OTHER) & _marked(texts)[_local(line)]] = int(Kind.ANNOTATION)
        for code in np.unique(kind).tolist():
            build.parts.setdefault(Kind(code), []).append(table.take(kind == code))


#: What XLA, PjRt and JAX call their own ranges on the Python thread; the rest of that line is TraceAnnotation of the program.
_OWN = re.compile(
    r"::|^(np\.asarray|PjitFunction|PJRT_|PjRt|Pjit|ParseArguments|shard_args|DevicePut|PythonRefManager|cpp_pjit|Wait for |Handle input|Allocate|"
    r"Memory(Alloc|Dealloc)ation|RecordUsage|end: |backend_compile|Execute|Compile|XlaCompile|Transfer|CopyTo|MlirTo|Tfrt|Thunk|Gpu|Cpu)"
)


def _marked(texts: list[str]) -> npt.NDArray[np.bool_]:
    """Return which names of the Python thread the program gave itself: what is left of those of the runtime."""
    return np.array([bool(t) and not t.startswith("$") and _OWN.search(t) is None for t in texts], dtype=np.bool_)


def _runtime(texts: list[str]) -> npt.NDArray[np.bool_]:
    """Return which names are calls of a device's runtime."""
    return np.array(
        [t.startswith(("cuda", "cuLaunch", "cuMem", "cuStream", "cuEvent", "hip")) for t in texts], dtype=np.bool_
    )


_PART = re.compile(r"\d (SparseCore \d+)$")  # of a TPU: a core of its own, which works beside the others


def _device(plane: XPlane, number: int) -> Device:
    stats = plane.stats
    name = stats.get("device_type_string") or stats.get("gpu_device_name") or stats.get("device_name")
    unknown = Unknown("not in the file")

    def whole(key: str, factor: int = 1) -> int | Unknown:
        value = stats.get(key)
        return value * factor if isinstance(value, int) and value > 0 else unknown

    major, minor = stats.get("compute_cap_major"), stats.get("compute_cap_minor")
    part = _PART.search(plane.name)
    return Device(
        number=number,
        label=f"{number} {part[1]}" if part else "",
        name=name
        if isinstance(name, str) and name
        else Unknown("the plane does not name its device", ("the product name",)),
        multiprocessors=whole("core_count"),
        memory_bytes=whole("memory_size"),
        clock_hz=whole("clock_rate", 1000),
        compute_capability=f"{major}.{minor}" if major is not None and minor is not None else "",
    )


def _capped(space: XSpace, build: _Build) -> None:
    for plane in space.planes:
        for line in plane.lines:
            if line.count == _EVENT_CAP:
                text = f"{plane.name} {line.name} holds exactly {_EVENT_CAP} events, the cap of the profiler: later ones are missing"
                build.damage.append(Damage(code="event_cap", text=text, incomplete=True))


def _absent(
    space: XSpace, tables: Mapping[Kind, Events], kinds: frozenset[Kind] | None, build: _Build
) -> dict[Kind, str]:
    planes = ", ".join(p.name for p in space.planes)
    absent: dict[Kind, str] = {}
    for kind in Kind:
        if kind in tables:
            continue
        if kinds is not None and kind not in kinds:
            absent[kind] = f"{kind.name.lower()} events were not asked for"
        elif kind is Kind.PYTHON and kind in build.parts:
            absent[kind] = "Python frames are in the file and were left out, since nothing asked for them"
        elif kind in DEVICE_WORK and not build.devices:
            absent[kind] = f"the profile has no device plane, only {planes}"
        else:
            absent[kind] = f"the profile records no {kind.name.lower()} events"
    return absent


def _clock(space: XSpace) -> Clock:
    note = "ends are rounded down to whole nanoseconds from picoseconds"
    if space.epoch_ns is None:
        unknown = Unknown("the profile does not say when it started", ("a profile with profile_start_time",))
        return Clock(domain="capture", epoch_offset_ns=unknown, note=note)
    return Clock(domain="epoch" if space.epoch_ns == 0 else "capture", epoch_offset_ns=space.epoch_ns, note=note)


def _version(space: XSpace) -> str:
    for plane in space.planes:
        for key in ("jax_version", "jaxlib_version"):
            if isinstance(plane.stats.get(key), str):
                return f"{key.removesuffix('_version')} {plane.stats[key]}"
    return ""


def _pid(space: XSpace) -> int:
    for plane in space.planes:
        pid = plane.stats.get("process_id") or plane.stats.get("pid")
        if isinstance(pid, int):
            return pid
    return 0


def _plain(stats: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in stats.items() if isinstance(v, int | float | str)}
