"""Arguments of trace events: what each kind records, and the details that many events share."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mansard.trace.launch_shape import LaunchShape
from mansard.trace.readers.chrome_damage import Tally
from mansard.trace.readers.kineto_text import ABSENT, raw_json
from mansard.trace.timeline import NONE, Detail, Kind

Raw = msgspec.Raw
_f = msgspec.field

#: Fields of a collective, and of a generated kernel, as PyTorch names them.
SHARED = {
    "collective": "Collective name", "in_elements": "In msg nelems", "out_elements": "Out msg nelems", "dtype": "dtype",
    "group_size": "Group size", "group_name": "Process Group Name", "group_text": "Process Group Description",
    "group_ranks": "Process Group Ranks", "in_split": "In split size", "out_split": "Out split size", "rank": "Rank",
    "source": "Src Rank", "target": "Dst Rank", "sequence_in_group": "Seq", "is_async": "Is asynchronized op",
    "backend": "kernel_backend", "file": "kernel_file", "kernel_flop": "kernel_flop", "kernel_gb": "kernel_num_gb",
}  # fmt: skip
_SHAPES = {"dims": "Input Dims", "types": "Input type", "strides": "Input Strides", "values": "Concrete Inputs"}


class CallArgs(msgspec.Struct, gc=False):
    """Arguments of a runtime call, and of kinds without more."""

    external_id: Any = _f(default=NONE, name="External id")
    external_old: Any = _f(default=NONE, name="external id")
    correlation: Any = NONE
    correlation_long: Any = _f(default=NONE, name="correlationId")
    correlation_xla: Any = _f(default=NONE, name="correlation_id")


class DeviceArgs(CallArgs, gc=False):
    """Arguments of kernels, copies and fills."""

    device: Any = NONE
    stream: Any = NONE
    context: Any = NONE
    nbytes: Any = _f(default=NONE, name="bytes")
    graph_node: Any = _f(default=NONE, name="graph node id")
    collective: Raw = _f(default=ABSENT, name=SHARED["collective"])
    in_elements: Raw = _f(default=ABSENT, name=SHARED["in_elements"])
    out_elements: Raw = _f(default=ABSENT, name=SHARED["out_elements"])
    dtype: Raw = ABSENT
    group_size: Raw = _f(default=ABSENT, name=SHARED["group_size"])
    group_name: Raw = _f(default=ABSENT, name=SHARED["group_name"])
    group_text: Raw = _f(default=ABSENT, name=SHARED["group_text"])
    group_ranks: Raw = _f(default=ABSENT, name=SHARED["group_ranks"])
    in_split: Raw = _f(default=ABSENT, name=SHARED["in_split"])
    out_split: Raw = _f(default=ABSENT, name=SHARED["out_split"])
    rank: Raw = _f(default=ABSENT, name=SHARED["rank"])
    source: Raw = _f(default=ABSENT, name=SHARED["source"])
    target: Raw = _f(default=ABSENT, name=SHARED["target"])
    sequence_in_group: Raw = _f(default=ABSENT, name=SHARED["sequence_in_group"])
    is_async: Raw = _f(default=ABSENT, name=SHARED["is_async"])
    backend: Raw = _f(default=ABSENT, name=SHARED["backend"])
    file: Raw = _f(default=ABSENT, name=SHARED["file"])
    kernel_flop: Raw = ABSENT
    kernel_gb: Raw = _f(default=ABSENT, name=SHARED["kernel_gb"])


class ShapedArgs(DeviceArgs, gc=False):
    """Arguments of kernels, with how they were launched."""

    grid: Raw = ABSENT
    block: Raw = ABSENT
    registers: Raw = _f(default=ABSENT, name="registers per thread")
    shared: Raw = _f(default=ABSENT, name="shared memory")


class HostArgs(CallArgs, gc=False):
    """Arguments of operators and annotations."""

    sequence: Any = _f(default=NONE, name="Sequence number")
    forward_thread: Any = _f(default=NONE, name="Fwd thread id")
    dims: Raw = _f(default=ABSENT, name="Input Dims")
    types: Raw = _f(default=ABSENT, name="Input type")
    strides: Raw = _f(default=ABSENT, name="Input Strides")
    values: Raw = _f(default=ABSENT, name="Concrete Inputs")
    collective: Raw = _f(default=ABSENT, name=SHARED["collective"])
    in_elements: Raw = _f(default=ABSENT, name=SHARED["in_elements"])
    out_elements: Raw = _f(default=ABSENT, name=SHARED["out_elements"])
    dtype: Raw = ABSENT
    group_size: Raw = _f(default=ABSENT, name=SHARED["group_size"])
    group_name: Raw = _f(default=ABSENT, name=SHARED["group_name"])
    group_text: Raw = _f(default=ABSENT, name=SHARED["group_text"])
    group_ranks: Raw = _f(default=ABSENT, name=SHARED["group_ranks"])
    in_split: Raw = _f(default=ABSENT, name=SHARED["in_split"])
    out_split: Raw = _f(default=ABSENT, name=SHARED["out_split"])
    rank: Raw = _f(default=ABSENT, name=SHARED["rank"])
    source: Raw = _f(default=ABSENT, name=SHARED["source"])
    target: Raw = _f(default=ABSENT, name=SHARED["target"])
    sequence_in_group: Raw = _f(default=ABSENT, name=SHARED["sequence_in_group"])
    is_async: Raw = _f(default=ABSENT, name=SHARED["is_async"])
    backend: Raw = _f(default=ABSENT, name=SHARED["backend"])
    file: Raw = _f(default=ABSENT, name=SHARED["file"])
    kernel_flop: Raw = ABSENT
    kernel_gb: Raw = _f(default=ABSENT, name=SHARED["kernel_gb"])


class PlainArgs(CallArgs, gc=False):
    """Arguments of events without a category, which the XLA profiler writes: its own count of an operation's cost."""

    step_number: Any = _f(default=NONE, name="step_num")
    model_flop: Any = _f(default=NONE, name="model_flops")
    flop: Any = _f(default=NONE, name="flops")
    accessed: Any = _f(default=NONE, name="bytes_accessed")
    accessed_raw: Any = _f(default=NONE, name="raw_bytes_accessed")


class SyncArgs(CallArgs, gc=False):
    """Arguments of a wait."""

    device: Any = NONE
    stream: Any = NONE
    context: Any = NONE
    sync_kind: Any = _f(default="", name="cuda_sync_kind")


HOST_KINDS = (Kind.CPU_OP, Kind.ANNOTATION)
ARGS: dict[Kind, Any] = {
    Kind.KERNEL: DeviceArgs, Kind.COPY: DeviceArgs, Kind.MEMSET: DeviceArgs, Kind.DEVICE_ANNOTATION: DeviceArgs,
    Kind.CPU_OP: HostArgs, Kind.ANNOTATION: HostArgs, Kind.SYNC: SyncArgs,
}  # fmt: skip


def loose(shape: Any, raw: bytes, tally: Tally) -> Any:
    """Return the arguments of one event that does not decode with the others of its batch."""
    if not raw or raw == b"null":
        return shape()
    try:
        return _one(shape).decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        value = json.loads(raw, strict=False, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        tally.add("odd_arguments", 1)
        return shape()
    out = {}
    for item in msgspec.structs.fields(shape):
        if item.encode_name in value:
            got = value[item.encode_name]
            out[item.name] = raw_json(got) if item.type is Raw else got
    return shape(**out)


_ONES: dict[Any, msgspec.json.Decoder[Any]] = {}


def _one(shape: Any) -> msgspec.json.Decoder[Any]:
    if shape not in _ONES:
        _ONES[shape] = msgspec.json.Decoder(shape)
    return _ONES[shape]


class DetailTable:
    """Numbers for details by their JSON text; each is decoded once, at the end."""

    def __init__(self) -> None:
        self._codes: dict[tuple[bool, bytes], int] = {}

    def codes(self, decoded: Sequence[Any], *, host: bool) -> npt.NDArray[np.int32] | None:
        """Return the detail of each event, -1 where nothing was recorded; None where that is so for all."""
        known = self._codes
        out = np.full(len(decoded), NONE, dtype=np.int32)
        found = False
        for i, a in enumerate(decoded):
            shared = a.collective is not ABSENT or a.backend is not ABSENT or a.kernel_flop is not ABSENT
            if host and not shared:
                if a.dims is ABSENT and a.types is ABSENT:
                    continue
                key = (True, b"\0".join((a.dims, a.types, a.strides, a.values)))
            elif shared:
                shapes = (a.dims, a.types, a.strides, a.values) if host else (b"",) * 4
                key = (host, b"\0".join((*shapes, *[getattr(a, n) for n in SHARED])))
            else:
                continue
            out[i] = known.setdefault(key, len(known))
            found = True
        return out if found else None

    def table(self) -> tuple[Detail, ...]:
        """Return the details."""
        return tuple(_detail(text) for _, text in self._codes)


def _detail(text: bytes) -> Detail:
    parts = text.split(b"\0")
    dims, types, strides, values = (_list(p) for p in parts[:4])
    args = {}
    for name, part in zip(SHARED.values(), parts[4:], strict=False):
        if part:
            try:
                args[name] = json.loads(part, parse_constant=lambda _: None)
            except ValueError:
                args[name] = part.decode("utf-8", "replace")
    return Detail(dims=dims, types=tuple(str(t) for t in types), strides=strides, values=values, args=args)


def _list(raw: bytes) -> tuple[Any, ...]:
    if not raw:
        return ()
    try:
        value = json.loads(raw, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return ()
    return tuple(value) if isinstance(value, list) else ()


class ShapeTable:
    """Numbers for launch shapes by their JSON text; each is decoded once, at the end."""

    def __init__(self) -> None:
        self._codes: dict[tuple[bytes, bytes, bytes, bytes], int] = {}

    def codes(self, decoded: Sequence[ShapedArgs]) -> npt.NDArray[np.int32]:
        """Return the shape of each kernel, -1 where neither grid nor block was recorded."""
        known = self._codes
        return np.array(
            [
                NONE
                if a.grid is ABSENT or a.block is ABSENT
                else known.setdefault((bytes(a.grid), bytes(a.block), bytes(a.registers), bytes(a.shared)), len(known))
                for a in decoded
            ],
            dtype=np.int32,
        )

    def table(self) -> tuple[LaunchShape, ...]:
        """Return the shapes."""
        return tuple(
            LaunchShape(
                blocks=_product(grid), threads=_product(block), registers=_count(registers), shared_bytes=_count(shared)
            )
            for grid, block, registers, shared in self._codes
        )


def _product(raw: bytes) -> int:
    sizes = _list(raw)
    whole = [n for n in sizes if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    return math.prod(whole) if sizes and len(whole) == len(sizes) else NONE


def _count(raw: bytes) -> int:
    return int(raw) if raw.isdigit() else NONE
