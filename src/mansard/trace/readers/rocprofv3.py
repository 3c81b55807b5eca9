"""Read rocprofv3 traces, JSON or CSV, into a Timeline. Times are nanoseconds of the ROCm clock."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mansard.core.errors import InputError
from mansard.trace.readers.rocprofv3_build import only
from mansard.trace.readers.rocprofv3_csv import from_csv, in_folder
from mansard.trace.readers.rocprofv3_json import from_json
from mansard.trace.timeline import Damage, Kind, Timeline


def read(
    path: Path,
    *,
    kinds: frozenset[Kind] | None = None,
    memory_limit: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    launch_shapes: bool = False,
) -> Timeline:
    """Read a trace.

    Args:
        path: A `_results.json` file, one of the CSV files of a recording, which are then read together, or their folder;
            gzip or not; the content decides.
        kinds: Kinds of event that are wanted; None takes all.
        memory_limit: Bytes the reader may hold [B]; the file is decoded as a whole.
        progress: Called with what is read and the share that is done.
        launch_shapes: Whether how kernels were launched is wanted.

    Raises:
        InputError: The file cannot be read, is damaged, or needs more memory than allowed.
    """
    path = Path(path)
    if path.is_dir():
        path = in_folder(path) or path
    data, cut = _bytes(path, memory_limit)
    if progress is not None:
        progress(f"reading {path.name}", 0.5)
    if data.lstrip()[:1] == b"{":
        timeline = from_json(path, data, cut=cut, launch_shapes=launch_shapes)
    else:
        timeline = from_csv(path, data, lambda other: _bytes(other, memory_limit)[0], launch_shapes=launch_shapes)
    if cut and not timeline.incomplete:
        text = "the gzip file is cut short; what could be unpacked was read"
        timeline = replace(timeline, damage=(*timeline.damage, Damage(code="truncated", text=text, incomplete=True)))
    return only(timeline, kinds)


def _bytes(path: Path, memory_limit: int | None) -> tuple[bytes, bool]:
    """Return the text of a file, and whether its gzip packing is cut short."""
    cut = False
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            unpacking = zlib.decompressobj(wbits=31)
            data = unpacking.decompress(data)
            cut = not unpacking.eof
    except (OSError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot read {path}: {reason}", hint="check the path, or copy the file again", code="unreadable"
        ) from None
    if memory_limit is not None and 3 * len(data) > memory_limit:
        raise InputError(
            f"{path} holds {len(data)} bytes of text; reading it needs about {3 * len(data)}, the memory limit is {memory_limit}",
            hint="raise --memory-limit, or use the CSV output of rocprofv3",
            code="memory_limit",
        )
    return data.removeprefix(b"\xef\xbb\xbf"), cut
