"""A profile of host operators alone, such as a Kineto trace of a program on the CPU: diagnosed like a run of one's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mansard.core import Ceilings
from mansard.core.errors import UndecidedError
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.records import Diagnosis, Note
from mansard.trace.readers.kineto import read_kineto
from mansard.trace.timeline import Kind, Timeline
from mansard.trace.torch_run import Piece, run_of

_NO_RECORD: dict[str, list[Any]] = {"marks": [], "windows": [], "loops": [], "rusage": [], "tracing": []}


def diagnose_host(timeline: Timeline, path: Path, ceilings: Ceilings | None) -> Diagnosis:
    """Return the diagnosis of a Kineto profile without any device.

    Args:
        timeline: The profile as opened.
        path: Its file.
        ceilings: The machine that ran it; there is no other way to know it.

    Raises:
        UndecidedError: It holds no operators, it is of another format, or the machine is not known.
    """
    if timeline.format != "kineto" or not len(timeline.of(Kind.CPU_OP)):
        why = "; ".join(sorted(set(timeline.absent.values()))[:2])
        raise UndecidedError(
            f"no device did any work in this profile, so there is nothing to diagnose{f' ({why})' if why else ''}",
            hint="record kernels as well; a program on the CPU is diagnosed by `mansard run SCRIPT`",
            code="no_device_work",
        )
    if ceilings is None:
        raise UndecidedError(
            "this profile holds operators of the host alone, and what that machine can do is in no profile",
            hint="add its ceilings: `mansard measure -o FOLDER` there, then `mansard diagnose PROFILE FOLDER/ceilings.json`",
            code="no_ceilings",
        )
    trace = read_kineto(path)
    if not trace.start_ns.size:
        raise UndecidedError("the profile holds no events with a length", code="no_device_work")
    threads = int(ceilings.machine.get("threads") or 1)
    meta = {**_NO_RECORD, "argv": [str(path)], "frameworks": {"torch": {"threads": threads}}}
    window = (int(trace.start_ns.min()), int(trace.end_ns.max()))
    diagnosis = diagnose_run(run_of([Piece(trace=trace, window_ns=window)], meta), ceilings, program=str(path))
    text = (
        f"the profile does not say with how many threads it ran: {threads}, as the ceilings were measured, are assumed"
    )
    assumed = Note(code="threads_assumed", text=text)
    return replace(diagnosis, findings=(*diagnosis.findings, assumed))
