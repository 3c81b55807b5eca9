"""Planes and lines of the XLA profiler: which hold device work, and which only repeat it in another grouping."""

from __future__ import annotations

import re

from mansard.trace.timeline import CopyKind, Kind

_DEVICE = re.compile(r"^/device:(GPU|TPU|XPU|CUSTOM|ROCM|CUDA)[:_](\d+)", re.IGNORECASE)
_STREAM = re.compile(r"^Stream #(\d+)(?:\(([^)]*)\))?")

#: Lines that a converter derives from the device's own: the same time once more, by module, scope or source.
DERIVED = (
    "XLA Modules", "Steps", "Framework Name Scope", "Framework Ops", "TensorFlow Name Scope", "TensorFlow Ops", "Source code", "Source",
    "Launch Stats", "XLA TraceMe", "Async XLA Ops", "Sparse Core Steps", "Tensorflow Ops", "Scope range IDs",
    "Sparse Core Modules", "Host Offload Ops", "_counters_",
)  # fmt: skip


def device_of(plane: str) -> tuple[str, int] | None:
    """Return the type and number of the device a plane belongs to, None for a host or metadata plane.

    >>> device_of("/device:GPU:3"), device_of("/device:TPU:0 (pod)"), device_of("/host:CPU")
    (('GPU', 3), ('TPU', 0), None)
    """
    found = _DEVICE.match(plane)
    return (found.group(1).upper(), int(found.group(2))) if found else None


def line_kind(plane: str, line: str) -> Kind:
    """Return what the events of a line of a device plane are.

    On GPUs the lines called `Stream #n(...)` are what ran, and `XLA Ops` repeats it by operation; on TPUs `XLA Ops` is what ran.

    >>> line_kind("/device:GPU:0", "Stream #3(Compute)").name, line_kind("/device:GPU:0", "XLA Ops").name
    ('KERNEL', 'DEVICE_ANNOTATION')
    >>> line_kind("/device:TPU:0", "XLA Ops").name, line_kind("/device:TPU:0", "Steps").name
    ('KERNEL', 'DEVICE_ANNOTATION')
    >>> sparse = "/device:TPU:0 SparseCore 1"
    >>> line_kind(sparse, "Sparse Core Ops").name, line_kind(sparse, "Sparse Core Modules").name
    ('KERNEL', 'DEVICE_ANNOTATION')
    """
    device = device_of(plane)
    if device is None:
        return Kind.OTHER
    if line.startswith(DERIVED) or (line.startswith("XLA Ops") and device[0] != "TPU"):
        return Kind.DEVICE_ANNOTATION
    return Kind.KERNEL


def stream_of(line: str, otherwise: int) -> int:
    """Return the number of a stream from the name of its line.

    >>> stream_of("Stream #12(MemcpyH2D)", 7), stream_of("XLA Ops", 7)
    (12, 7)
    """
    found = _STREAM.match(line)
    return int(found.group(1)) if found else otherwise


_COPIES = (
    (re.compile(r"memcpy\s*H(?:ost)?(?:2|To)D|HostToDevice|HtoD", re.IGNORECASE), CopyKind.HOST_TO_DEVICE),
    (re.compile(r"memcpy\s*D(?:evice)?(?:2|To)H|DeviceToHost|DtoH", re.IGNORECASE), CopyKind.DEVICE_TO_HOST),
    (re.compile(r"memcpy\s*D(?:evice)?(?:2|To)D|DeviceToDevice|DtoD", re.IGNORECASE), CopyKind.DEVICE_TO_DEVICE),
    (re.compile(r"HostToHost|HtoH|memcpy\s*H2H", re.IGNORECASE), CopyKind.HOST_TO_HOST),
    (re.compile(r"PtoP|Peer|memcpy\s*P2P", re.IGNORECASE), CopyKind.PEER_TO_PEER),
)


def copy_kind(name: str) -> CopyKind:
    """Return the direction of a copy from its name.

    >>> copy_kind("Memcpy HtoD (Pinned -> Device)").name, copy_kind("MemcpyD2H").name, copy_kind("Memcpy").name
    ('HOST_TO_DEVICE', 'DEVICE_TO_HOST', 'UNKNOWN')
    """
    for pattern, kind in _COPIES:
        if pattern.search(name):
            return kind
    return CopyKind.UNKNOWN


_HOST_MEMORY = re.compile(r"(Pageable|Pinned|Managed|Unified)", re.IGNORECASE)


def host_memory(name: str) -> int:
    """Return how the host's side of a copy is held, from its name: 0 pageable, 1 pinned, 2 managed, -1 where it does not tell.

    >>> host_memory("Memcpy HtoD (Pageable -> Device)"), host_memory("Memcpy DtoH (Device -> Pinned)"), host_memory("MemcpyD2H")
    (0, 1, -1)
    """
    found = {word.lower() for word in _HOST_MEMORY.findall(name)}
    if len(found) != 1:
        return -1
    return {"pageable": 0, "pinned": 1}.get(found.pop(), 2)


_MEMSET = re.compile(r"^mem(?:ory)?\s*set", re.IGNORECASE)
_MEMCPY = re.compile(r"^(?:mem(?:ory)?\s*cpy|Copy(?:Host|Device)To(?:Host|Device)$)", re.IGNORECASE)
_ONLY_COPIES = re.compile(r"\((?:Memcpy\w*)(?:,\s*Memcpy\w*)*\)$")


def only_copies(line: str) -> bool:
    """Return whether a stream's line holds copies alone, as the kind in its brackets says.

    >>> only_copies("Stream #8(MemcpyOther)"), only_copies("Stream #3(Compute,MemcpyH2D)")
    (True, False)
    """
    return _ONLY_COPIES.search(line) is not None


def device_event_kind(name: str) -> Kind:
    """Return whether an event of a stream is a kernel, a copy or a fill, from its name.

    >>> device_event_kind("MemcpyH2D").name, device_event_kind("Memset").name, device_event_kind("fusion.3").name
    ('COPY', 'MEMSET', 'KERNEL')
    """
    if _MEMSET.match(name):
        return Kind.MEMSET
    return Kind.COPY if _MEMCPY.match(name) else Kind.KERNEL
