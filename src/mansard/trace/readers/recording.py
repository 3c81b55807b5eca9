"""Read a recording of `mansard run` as a timeline: the profiler's file of its last profiled window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mansard.core.errors import InputError
from mansard.trace.recorders.record import ending, read_meta
from mansard.trace.run import Finding
from mansard.trace.timeline import Kind, Timeline

#: Framework -> the ending of the profiler's own file, and the module that reads it.
_FILES = {"torch": (".json", "chrome"), "jax": (".xplane.pb", "xplane_timeline")}


def read(
    path: Path,
    *,
    kinds: frozenset[Kind] | None = None,
    memory_limit: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Timeline:
    """Read a recording.

    Args:
        path: The folder that a run was recorded into.
        kinds: Kinds of event that are wanted; None takes all but Python functions.
        memory_limit: Bytes the events may take [B].
        progress: Called with what is read and the share that is done.

    Raises:
        InputError: It holds no profiled window, or the window's file cannot be read.
    """
    import importlib

    path = Path(path)
    meta = read_meta(path)
    found = _profiled(path, meta)
    if not found:
        raise InputError(
            f"{path} is a recording without a profiled window: the program used no framework, or ended before it did",
            hint="record it again with mansard run",
            code="nothing_profiled",
        )
    number, framework, file = found[-1]
    reader = importlib.import_module(f"mansard.trace.readers.{_FILES[framework][1]}")
    timeline: Timeline = reader.read(file, kinds=kinds, memory_limit=memory_limit, progress=progress)
    findings = list(timeline.findings)
    if len(found) > 1:
        text = f"the recording has {len(found)} profiled windows; this is the last one (number {number + 1}), after warm-up"
        findings.append(Finding(code="last_window", text=text))
    findings += [Finding(code="recorded", text=f["text"]) for f in meta.get("findings", []) if "text" in f]
    findings += ending(dict(meta)) if {"exit", "state"} <= set(meta) else []
    return replace(
        timeline, source=str(path), format="recording", version=f"recording of {framework}", findings=tuple(findings)
    )


def _profiled(path: Path, meta: Mapping[str, Any]) -> list[tuple[int, str, Path]]:
    """Return window number, framework and file of each profiled window whose file is there."""
    found = []
    for number, window in enumerate(meta.get("windows", [])):
        if not isinstance(window, dict) or window.get("kind") != "profiled":
            continue
        for framework, names in (window.get("files") or {}).items():
            ending_of = _FILES.get(framework, ("",))[0]
            for name in names:
                file = path / f"window-{number}" / framework / str(name)
                if ending_of and str(name).endswith(ending_of) and file.is_file():
                    found.append((number, framework, file))
    return found
