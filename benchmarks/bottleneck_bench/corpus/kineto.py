"""Write a simulated program as the JSON that PyTorch's profiler (Kineto) writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corpus.program import Program, Run

PID, TID = 4242, 4242
BASE_NS = 1_751_410_836_000_000_000


def number(ns: int) -> float:
    """Return a time as Kineto writes it: microseconds with three decimals; exact for a capture of minutes."""
    return round(ns / 1000, 3)


def _at(start: int, end: int) -> dict[str, Any]:
    return {"ts": number(start), "dur": number(end - start)}


def _device_event(run: Run, program: Program) -> dict[str, Any]:
    work = run.work
    args: dict[str, Any] = {"device": run.device, "context": 1, "stream": run.stream, "correlation": run.correlation}
    if run.external:
        args = {"External id": run.external, **args}
    category = "kernel"
    if work.kind == "copy":
        category = "gpu_memcpy"
        args |= {"bytes": work.nbytes, "memory bandwidth (GB/s)": work.nbytes / max(1, run.end_ns - run.start_ns)}
    else:
        grid = max(1, min(65535, (run.end_ns - run.start_ns) // 40))
        if program.machine.runtime == "hip":  # roctracer knows no more of a dispatch
            args |= {"kind": "Dispatch Kernel", "grid": [grid, 1, 1], "block": [256, 1, 1], **work.record}
            return _event(run, category, args)
        args |= {
            "queued": 0,
            "registers per thread": 32,
            "shared memory": 0,
            "grid": [grid, 1, 1],
            "block": [256, 1, 1],
            "blocks per SM": grid / program.machine.multiprocessors,
            "est. achieved occupancy %": 50,
        }
        args |= work.record
    return _event(run, category, args)


def _event(run: Run, category: str, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": run.work.kernel,
        "pid": run.device,
        "tid": run.stream,
        **_at(run.start_ns, run.end_ns),
        "args": args,
    }


def _header(program: Program) -> dict[str, Any]:
    m = program.machine
    one = {
        "name": m.product,
        "totalGlobalMem": m.memory_bytes,
        "computeMajor": m.major,
        "computeMinor": 0,
        "maxThreadsPerBlock": 1024,
        "warpSize": 32,
        "numSms": m.multiprocessors,
    }
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": i, **one} for i in range(program.devices)]}
    if m.runtime == "hip":
        head |= {"roctracer_version": 4.1, "hip_runtime_version": 60443483, "hip_driver_version": 60443483}
    else:
        head |= {"cupti_version": 24, "cuda_runtime_version": 12040, "cuda_driver_version": 12090}
    head |= {"record_shapes": int(program.shapes), "with_stack": int(program.stacks)}
    if program.world > 1:
        ranks = list(range(program.world))
        head["distributedInfo"] = {
            "backend": "nccl",
            "rank": program.rank,
            "world_size": program.world,
            "pg_count": 1,
            "nccl_version": "2.21.5",
            "pg_config": [
                {
                    "pg_name": "0",
                    "pg_desc": "default_pg",
                    "backend_config": "cuda:nccl",
                    "pg_size": program.world,
                    "ranks": ranks,
                }
            ],
        }
    return head


def write(program: Program, path: Path) -> None:
    """Write the file."""
    where = {"pid": PID + program.rank, "tid": TID + program.rank}
    events: list[dict[str, Any]] = [
        {
            "name": "process_name",
            "ph": "M",
            "ts": number(0),
            "pid": where["pid"],
            "tid": 0,
            "args": {"name": "python3"},
        },
        {
            "name": "process_labels",
            "ph": "M",
            "ts": number(0),
            "pid": where["pid"],
            "tid": 0,
            "args": {"labels": "CPU"},
        },
    ]
    for span in program.spans:
        args = dict(span.args) or {"External id": 0, "Record function id": 0, "Ev Idx": 0}
        if span.category == "python_function":
            args = {"Python parent id": 1, "Python id": 2, "Ev Idx": 0}
        events.append(
            {
                "ph": "X",
                "cat": span.category,
                "name": span.name,
                **where,
                "tid": where["tid"] + span.thread,
                **_at(span.start_ns, span.end_ns),
                "args": args,
            }
        )
    launched = {run.correlation for run in program.runs}
    cbid = {"cudaLaunchKernel": 211, "cudaMemcpyAsync": 41, "cudaStreamSynchronize": 131, "cudaDeviceSynchronize": 165}
    for call in program.calls:
        args = {"cbid": cbid.get(call.name, 311), "correlation": call.correlation}
        if call.external:
            args = {"External id": call.external, **args}
        events.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": call.name.replace("cuda", program.machine.runtime, 1),
                **where,
                "tid": where["tid"] + call.thread,
                **_at(call.start_ns, call.end_ns),
                "args": args,
            }
        )
        if call.correlation in launched:
            flow = {"ph": "s", "id": call.correlation, **where, "tid": where["tid"] + call.thread}
            events.append({**flow, "ts": number(call.start_ns), "cat": "ac2g", "name": "ac2g"})
    for run in program.runs:
        events.append(_device_event(run, program))
        events.append(
            {
                "ph": "f",
                "id": run.correlation,
                "pid": run.device,
                "tid": run.stream,
                "ts": number(run.start_ns),
                "cat": "ac2g",
                "name": "ac2g",
                "bp": "e",
            }
        )
    end = {"traceName": f"rank{program.rank}.json", "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
    document = {**_header(program), "traceEvents": events, **end}
    path.write_text(json.dumps(document), encoding="utf-8")
