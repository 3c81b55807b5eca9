"""FLOP and bytes of the kernels of an XLA profile, from the programs (HLO) that the profile holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from mansard.core.demand import Demand
from mansard.core.errors import InputError
from mansard.core.evidence import Grade
from mansard.core.unknown import Unknown
from mansard.trace.hlo.cost import ModuleCosts
from mansard.trace.hlo.programs import Programs
from mansard.trace.hlo.text import parse_module
from mansard.trace.kernel_demand import KernelDemand
from mansard.trace.launches import Launches
from mansard.trace.timeline import NONE, Kind, Timeline

_SOURCE = (
    "counted from the program (HLO) in the profile, each operand and result once; an operation is assumed to have run as often "
    "as the least frequent of its kernels"
)
_NUMBERED = re.compile(r"^(?P<name>.*?)\((?P<id>\d+)\)$")
#: Runs in a process of its own: XLA ends the process on a program it cannot read.
_CHILD = """
import json, sys
from jaxlib import _hlo
out = {}
for name, text in json.load(sys.stdin).items():
    try:
        out[name] = _hlo.HloModule.from_serialized_hlo_module_proto(bytes.fromhex(text)).to_string()
    except Exception as error:
        out[name] = None
json.dump(out, sys.stdout)
"""


def program_texts(protos: Mapping[str, bytes]) -> tuple[dict[str, str], str]:
    """Return the text of programs that are stored as HloProto messages, and why some are missing, empty where none is.

    Args:
        protos: Messages by name, as a profile holds them; read by jaxlib, where it is installed.
    """
    modules = {n: m.hex() for n, p in protos.items() if (m := _module_bytes(p))}
    if not modules:
        return {}, "the profile holds no programs that can be read"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD], input=json.dumps(modules), capture_output=True, text=True, timeout=120, check=False
        )  # fmt: skip
        found = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.SubprocessError, ValueError):
        found = None
    if found is None:
        return {}, "jaxlib, which reads the programs in the profile, is not installed or cannot read them"
    texts = {n: t for n, t in found.items() if t}
    lost = len(protos) - len(texts)
    return texts, f"{lost} of {len(protos)} programs in the profile cannot be read" if lost else ""


def _module_bytes(proto: bytes) -> bytes:
    """Return field 1 (the module) of an HloProto message."""
    at = 0
    while at < len(proto):
        key, at = _varint(proto, at)
        if key & 7 != 2:
            return b""
        size, at = _varint(proto, at)
        if size > len(proto) - at:
            return b""
        if key >> 3 == 1:
            return proto[at : at + size]
        at += size
    return b""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 63:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return 0, len(data)


def load(protos: Mapping[str, bytes]) -> tuple[Programs, str]:
    """Return the programs of a profile with their costs, and why some are missing."""
    texts, problem = program_texts(protos)
    entries = []
    for name, text in texts.items():
        numbered = _NUMBERED.match(name)
        try:
            costs = ModuleCosts(parse_module(text))
        except (InputError, ValueError, KeyError, IndexError, RecursionError):
            problem = f"the program {name} cannot be read"
            continue
        ids = frozenset({int(numbered["id"])}) if numbered else frozenset()
        entries.append((numbered["name"] if numbered else name, ids, costs))
    return Programs(entries), problem


def demand_of_programs(timeline: Timeline, launches: Launches) -> list[KernelDemand]:
    """Return the demand of each kernel whose HLO operation the profile records, on the kernel or on the call that launched it.

    Args:
        timeline: A profile of XLA with `extras["programs"]`.
        launches: Its joined launches.
    """
    table = timeline.of(Kind.KERNEL)
    programs, problem = load(timeline.extras["programs"])
    rows = np.flatnonzero(launches.kind == int(Kind.KERNEL))
    call = launches.call[rows]
    detail = np.where(table.detail >= 0, table.detail, NONE)
    if len(launches.calls):
        detail = np.where((detail < 0) & (call >= 0), launches.calls.detail[call], detail)
    groups: dict[int, list[int]] = defaultdict(list)
    for row, code in enumerate(detail.tolist()):
        groups[code].append(row)
    ops: dict[str, set[str]] = defaultdict(set)
    for code in groups:
        if code >= 0:
            args = timeline.details[code].args
            ops[str(args.get("hlo_module", ""))].add(str(args.get("hlo_op", "")))
    columns = np.full((len(table), 3), np.nan)
    reasons: dict[str, int] = {}
    reason = np.full(len(table), NONE, dtype=np.int32)
    dtypes: dict[str, int] = {}
    dtype = np.full(len(table), NONE, dtype=np.int32)
    length = table.duration_ns.astype(np.float64)
    for code, members in groups.items():
        found = _demand(timeline, programs, ops, code, problem)
        if isinstance(found, Unknown):
            reason[members] = reasons.setdefault(found.reason, len(reasons))
            continue
        for device in np.unique(table.device[members]).tolist():
            mine = np.array([m for m in members if table.device[m] == device])
            runs = int(np.unique(table.name[mine], return_counts=True)[1].min())
            total = length[mine].sum()
            share = length[mine] / total if total > 0 else np.full(mine.size, 1.0 / mine.size)
            figures = (found.total_flop, sum(float(v) for v in found.vector_flop.values()), found.bytes)
            columns[mine] = np.array([[float(f) * runs for f in figures]]) * share[:, None]
            used = {d for (d, _), f in found.flop.items() if float(f) > 0}
            dtype[mine] = dtypes.setdefault(used.pop(), len(dtypes)) if len(used) == 1 else NONE
    return [KernelDemand(
        flop=columns[:, 0], other_flop=columns[:, 1], bytes=columns[:, 2], reason=reason, reasons=tuple(reasons), dtype=dtype,
        dtypes=tuple(dtypes), flop_source=_SOURCE, bytes_source=_SOURCE, flop_grade=Grade.MODELLED, bytes_grade=Grade.MODELLED,
    )]  # fmt: skip


def _demand(
    timeline: Timeline, programs: Programs, ops: Mapping[str, set[str]], code: int, problem: str
) -> Demand | Unknown:
    if code < 0:
        return Unknown("neither the kernel nor the call that launched it names its HLO operation")
    args = timeline.details[code].args
    module, op = str(args.get("hlo_module", "")), str(args.get("hlo_op", ""))
    number = args.get("program_id", -1)
    candidates = programs.candidates(module, number if isinstance(number, int) else -1, frozenset(ops[module]))
    cost = programs.cost(candidates, op, module)
    if isinstance(cost, Unknown):
        return Unknown(problem, cost.needs) if problem and not candidates else cost
    if cost.control:
        return Unknown(f"{op} is a loop or branch, whose kernels are not told apart")
    return cost.demand


def demand_of_stats(timeline: Timeline) -> list[KernelDemand]:
    """Return the FLOP and bytes that the XLA profiler itself writes beside each operation; empty where it wrote none.

    Args:
        timeline: A `trace.json` of the XLA profiler, or an XPlane whose operations hold `flops` and `bytes_accessed`.
    """
    table = timeline.of(Kind.KERNEL)
    columns = [table.extras.get(n) for n in ("model_flop", "accessed")]
    if all(c is None for c in columns):
        return []
    flop, moved = (
        np.full(len(table), np.nan) if c is None else np.where(c >= 0, c.astype(np.float64), np.nan) for c in columns
    )
    known = ~(np.isnan(flop) | np.isnan(moved))
    none = np.full(len(table), NONE, dtype=np.int32)
    text = "the profile holds no model_flops or no bytes_accessed of its operation"
    return [KernelDemand(
        flop=flop, other_flop=np.where(np.isnan(flop), np.nan, 0.0), bytes=moved, reason=np.where(known, none, 0).astype(np.int32),
        reasons=(text,), dtype=none, flop_source="model_flops as the XLA profiler counts them",
        bytes_source="bytes_accessed as the XLA profiler counts them", flop_grade=Grade.MODELLED, bytes_grade=Grade.MODELLED,
    )]  # fmt: skip
