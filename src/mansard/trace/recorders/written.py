"""What the recorder writes: its windows, facts of the process and of the frameworks, and the file that holds them."""

from __future__ import annotations

import json
import resource
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mansard.trace.recorders.process import unmapping_s_per_byte, usage
from mansard.trace.recorders.session import Session


def opened_window(kind: str, directory: str, *, at_mark: bool, start_ns: int) -> dict[str, Any]:
    """Return a window that begins now.

    Args:
        kind: `profiled` or `unprofiled`.
        directory: Where its files are, relative to the recording.
        at_mark: Whether it begins at the end of a step.
        start_ns: The time [ns since 1970].
    """
    return {
        "kind": kind,
        "directory": directory,
        "files": {},
        "at_mark": at_mark,
        "rusage_start": usage(),
        "start_ns": start_ns,
        "end_ns": None,
        "thread": threading.get_native_id(),
    }


def closed_window(window: dict[str, Any], *, complete: bool, end_ns: int) -> dict[str, Any]:
    """Return a window that ends now.

    Args:
        window: The one that is open; it is changed.
        complete: Whether it holds what it was opened for.
        end_ns: The time [ns since 1970].
    """
    window["end_ns"] = end_ns
    window["rusage_end"] = usage()
    window["complete"] = complete
    return window


def facts_of_process(*, calibrate: bool) -> dict[str, Any]:
    """Return what is noted of the process itself.

    Args:
        calibrate: Whether there is time to measure what giving memory back costs.
    """
    return {
        "python": sys.version.split()[0],
        "main_thread": threading.main_thread().native_id,
        "page_bytes": resource.getpagesize(),
        "unmapping_s_per_byte": unmapping_s_per_byte() if calibrate else 0.0,
    }


def facts_of_sessions(
    sessions: Mapping[str, Session], say: Callable[[str, str], None], *, wanted: bool, calibrate: bool
) -> dict[str, Any]:
    """Return what each framework tells of itself; one that fails is a finding, and nothing the program sees.

    Args:
        sessions: By framework.
        say: Takes a finding, as its code and its text.
        wanted: Whether anything is to be asked yet.
        calibrate: Whether there is time to measure what an operation costs.
    """
    found: dict[str, Any] = {}
    for name, session in sessions.items():
        try:
            found[name] = session.metadata() if wanted else {}
            if calibrate:
                found[name]["calibration"] = session.calibrate()
        except Exception as error:
            say("recorder_failed", f"No facts from {name}: {type(error).__name__}: {error}")
    return found


def write_meta(directory: Path, document: Mapping[str, Any]) -> None:
    """Write the description of a recording; whoever reads meanwhile finds the one before, whole.

    Args:
        directory: Of the recording.
        document: What to write.
    """
    partial = directory / "meta.json.partial"
    partial.write_text(json.dumps(document))
    partial.replace(directory / "meta.json")
