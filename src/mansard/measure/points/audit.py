"""Is the number what it says it is? Every point is asked the same questions, and each answer is a fact or a finding."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator, Mapping
from typing import Any

from mansard.core.dtypes import DTYPE_BYTES, dtype_bytes
from mansard.core.units import format_binary_bytes, format_bytes, format_flop, format_ratio, format_s
from mansard.core.unknown import Unknown
from mansard.measure.points.conditions import BUSY_RATIO, STEAL_RATIO
from mansard.measure.points.evidence import Evidence
from mansard.measure.points.result import Finding
from mansard.measure.points.timing import returns_early
from mansard.measure.points.verdict import half_ratio

FLOP_TOLERANCE = 0.05
BYTES_TOLERANCE = 0.05
EXTRA_TRAFFIC = 1.10  # more than this over the compulsory bytes is said
CONSTANT_SHARE = 0.25  # of the read bytes that a constant inside the program may hold
CONSTANT_BYTES = 65536.0  # smaller ones are tables
HUGE_PAGE_BYTES = 2.0**21
HUGE_FAULT_S = 2e-4  # clearing 2 MiB at 10 GB/s, the slowest that is likely
FAULT_S = 2e-6  # clearing 4 KiB and the trap: 65,537 faults made 512 MiB of traffic 125 ms longer
FAULT_TIME_SHARE = 0.05
ZERO_SHARE = 0.99
DENORMAL_SHARE = 0.01
FLOOR_MULTIPLE = 5.0
FAULT_SHARE = 0.25  # of the written bytes that were touched for the first time
DRIFT_RATIO = 0.05

Facts = dict[str, Any]


def audit(e: Evidence) -> tuple[Facts, tuple[Finding, ...]]:
    """Return the facts of the audit and what it found.

    Args:
        e: The point. A question that cannot be asked (no compiler count, arrays not shown) is a fact with the reason.
    """
    facts: Facts = {"benchmark": dict(e.prepared.get("facts", {})), "convention": e.work.convention}
    found: list[Finding] = []
    for ask in (
        _result,
        _compiled,
        _flop,
        _bytes,
        _constants,
        _operands,
        _peak,
        _waits,
        _level,
        _floor,
        _faults,
        _calm,
    ):
        found += ask(e, facts)
    return facts, tuple(found)


def _count(e: Evidence) -> Mapping[str, Any]:
    return e.prepared.get("count") or {"unknown": "nothing was asked of a compiler", "needs": []}


def _known(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _result(e: Evidence, facts: Facts) -> Iterator[Finding]:
    for when, place in (("before", e.prepared), ("after", e.finished)):
        check = place.get("check")
        if check is None:
            continue
        ratio = check["error_ratio"]
        facts[f"result_{when}"] = {"error_ratio": ratio, "against": check["against"]}
        if ratio is None:
            text = (
                f"the result {when} the samples is not finite, or of another shape (compared with {check['against']})"
            )
            yield Finding(code="not_finite", text=text, fatal=True)
        elif ratio > 1.0:
            text = f"the result {when} the samples is {ratio:.3g} times its tolerance away from {check['against']}"
            yield Finding(code="wrong_result", text=text, fatal=True)


def _compiled(e: Evidence, facts: Facts) -> Iterator[Finding]:
    count = _count(e)
    facts["compiler"] = dict(count)
    if "unknown" in count:
        return
    operations, expected = tuple(count.get("operations", ())), tuple(count.get("expected", ()))
    if expected and not set(operations) & set(expected):
        there = ", ".join(operations[:8]) or "nothing"
        text = f"the compiled program holds none of {', '.join(expected)}: it was optimised away ({there} is there)"
        yield Finding(code="operation_missing", text=text, fatal=True)


def _flop(e: Evidence, facts: Facts) -> Iterator[Finding]:
    counted = _known(_count(e).get("flop"))
    claimed = e.work.compiler_flop if e.work.compiler_flop is not None else e.executed_flop
    vector = math.fsum(float(v) for v in e.work.demand.vector_flop.values())
    facts["flop_claimed"], facts["flop_counted"] = claimed, counted
    if counted is None:
        return
    if claimed <= 0.0:
        if vector > 0.0 and counted < FLOP_TOLERANCE * vector and e.work.headline == "bytes":
            text = f"claims {format_flop(vector)} of elementwise work, the compiled program does {format_flop(counted)}"
            yield Finding(code="flop_mismatch", text=text + ": it was simplified away", fatal=True)
        return
    # Elementwise work beside the products is counted by some compilers: never more than a few per byte that moves.
    most = (claimed + vector) * (1.0 + FLOP_TOLERANCE) + float(e.work.demand.bytes)
    text = f"claims {format_flop(claimed)}, the compiler counts {format_flop(counted)} ({counted / claimed:.3g} times)"
    if counted < claimed * (1.0 - FLOP_TOLERANCE):
        yield Finding(code="flop_mismatch", text=text, fatal=True)
    elif counted > most:
        text += ": work that is not needed, or a claim that is too low"
        yield Finding(code="flop_above_claim", text=text)


def _bytes(e: Evidence, facts: Facts) -> Iterator[Finding]:
    claimed, counted = float(e.work.demand.bytes), _known(_count(e).get("bytes"))
    shown = _shown_bytes(e)
    facts["bytes_claimed"], facts["bytes_counted"], facts["bytes_of_operands"] = claimed, counted, shown
    if e.work.composite:  # what lies between its operations is among the bytes and not among the arrays
        shown = None
    moved = e.work.transfer
    if (
        e.work.headline == "transfer" and moved is not None and moved.participants > 1
    ):  # arrays of one device, bytes of all
        shown, counted = None, None
    for source, other in (("the compiler counts", counted), ("its arrays hold", shown)):
        if not other or claimed <= 0.0:
            continue
        text = f"claims {format_bytes(claimed)}, {source} {format_bytes(other)} ({other / claimed:.3g} times)"
        if claimed > other * (1.0 + BYTES_TOLERANCE):
            yield Finding(code="bytes_mismatch", text=text, fatal=e.work.headline == "bytes")
        elif other > claimed * EXTRA_TRAFFIC and e.work.headline == "bytes":
            text += ": traffic that is not needed, or a claim that is too low"
            yield Finding(code="bytes_above_claim", text=text)


def _shown_bytes(e: Evidence) -> float | None:
    operands = e.finished.get("operands")
    if not operands:
        return None
    return math.fsum(float(o["bytes"]) * (2.0 if o["role"] == "in_place" else 1.0) for o in operands)


def _constants(e: Evidence, _facts: Facts) -> Iterator[Finding]:
    count = _count(e)
    if e.prepared.get("inputs_are_constant"):
        text = "its inputs are constants of the compiled program, which may be folded into the result"
        yield Finding(code="constant_inputs", text=text, fatal=True)
    elif count.get("parameters") == 0:
        text = "the compiled program takes no arguments: its inputs became constants"
        yield Finding(code="constant_inputs", text=text, fatal=True)
    elif float(count.get("constant_bytes") or 0.0) > max(
        CONSTANT_BYTES, CONSTANT_SHARE * float(e.work.demand.read_bytes)
    ):
        text = f"the compiled program holds a constant of {format_bytes(float(count['constant_bytes']))}"
        yield Finding(code="constant_inputs", text=text + ", as large as its inputs", fatal=True)


def _operands(e: Evidence, facts: Facts) -> Iterator[Finding]:
    operands = e.finished.get("operands")
    if not operands:
        facts["operands"] = "not shown"
    else:
        facts["operands"] = operands
        for operand in operands:
            yield from _data(operand)
        yield from _overlaps(operands)
    if e.prepared.get("facts", {}).get("aliased"):
        yield Finding(code="aliased", text=f"aliased: {e.prepared['facts']['aliased']}", fatal=True)


def _data(operand: Mapping[str, Any]) -> Iterator[Finding]:
    looked, name = int(operand.get("looked_at", 0)), operand["name"]
    if not looked:
        return
    if operand["not_finite"]:
        text = f"{operand['not_finite']} of {looked} elements of {name} are not finite: they change power and speed"
        yield Finding(code="not_finite", text=text, fatal=True)
    if operand["role"] == "input" and looked >= 16:
        if operand["zeros"] >= ZERO_SHARE * looked:
            text = f"{name} is all zeros: untouched pages and idle switching make that faster than real data"
            yield Finding(code="zero_inputs", text=text, fatal=True)
        elif operand["distinct"] == 1:
            text = f"all elements of {name} are equal: constant data draws less power than real data"
            yield Finding(code="constant_data", text=text, fatal=True)
    if operand["denormal"] > DENORMAL_SHARE * looked:
        text = f"{operand['denormal']} of {looked} elements of {name} are denormal, which some cores slow down for"
        yield Finding(code="denormals", text=text)


def _overlaps(operands: list[Mapping[str, Any]]) -> Iterator[Finding]:
    placed = [o for o in operands if o.get("address") is not None and o["bytes"] > 0]
    for out in (o for o in placed if o["role"] == "output"):
        for other in (o for o in placed if o["role"] == "input"):
            low = max(out["address"], other["address"])
            high = min(out["address"] + out["bytes"], other["address"] + other["bytes"])
            if high > low:
                text = (
                    f"{out['name']} and {other['name']} share {format_bytes(high - low)} of memory: nothing was moved"
                )
                yield Finding(code="aliased", text=text, fatal=True)


def _peak(e: Evidence, facts: Facts) -> Iterator[Finding]:
    facts["peak"] = list(e.work.peak) if e.work.peak else None
    if e.work.peak is None:
        return
    dtype, accumulate, engine = e.work.peak
    demand = e.work.demand
    kinds = set(demand.flop) if engine == "matrix" else {(d, accumulate) for d in demand.vector_flop}
    if kinds and (dtype, accumulate) not in kinds:
        held = ", ".join(f"{d} into {a}" for d, a in sorted(kinds))
        text = f"is judged against the {dtype} into {accumulate} peak, and its work is {held}"
        yield Finding(code="peak_mismatch", text=text, fatal=True)
    executed = e.prepared.get("facts", {}).get("computed_in")
    read = [d for d in _count(e).get("dtypes", ()) if d] or ([str(executed)] if executed else [])
    if not read or dtype in read:
        return
    text = f"is called {dtype}, and the compiled program multiplies {', '.join(read)}"
    sizes = [DTYPE_BYTES[d] for d in read if d in DTYPE_BYTES]
    narrower = bool(sizes) and min(sizes) < dtype_bytes(dtype)
    yield Finding(code="narrower_dtype" if narrower else "wider_dtype", text=text, fatal=narrower)


def _waits(e: Evidence, facts: Facts) -> Iterator[Finding]:
    seen = e.finished.get("unwaited")
    facts["unwaited"] = seen
    if not seen:
        return
    lag = seen["check_s"] - seen["check_at_rest_s"]
    if returns_early(seen):
        text = (
            f"a call returned after {format_s(seen['run_s'])}, and reading its result took {format_s(lag)} longer "
            "than at rest: it does not wait for its work"
        )
        yield Finding(code="not_synchronised", text=text, fatal=True)


def _level(e: Evidence, facts: Facts) -> Iterator[Finding]:
    level, size = e.level(), float(e.work.demand.working_set)
    facts["working_set_bytes"] = size
    facts["level"] = None if isinstance(level, Unknown) else level
    if isinstance(level, Unknown) or e.work.level is None:
        return
    names = [v.level for v in e.memory_levels]
    if e.work.level not in names:
        return
    if names.index(level) < names.index(e.work.level):
        text = f"its working set of {format_binary_bytes(size)} fits {level.upper()}: this is a cache bandwidth"
        yield Finding(code="cache_resident", text=text + f", not that of {e.work.level.upper()}")
        return
    cache = e.partly_in(e.work.level)
    if cache is not None:
        held = cache.capacity(e.scope)
        text = f"its working set of {format_binary_bytes(size)} is only {size / held:.3g} times {cache.level.upper()}"
        text += f" ({format_binary_bytes(held)}): part of it is found there"
        yield Finding(code="partly_cached", text=text)


def _floor(e: Evidence, facts: Facts) -> Iterator[Finding]:
    floor, time_s = e.samples.floor_s, e.time_s
    facts["floor_s"], facts["slope_s"] = floor, e.samples.slope_s
    if not e.samples.steady:
        yield Finding(code="not_steady", text="the warm-up did not settle within its bound")
    if floor is not None and time_s < FLOOR_MULTIPLE * floor:
        text = f"one operation takes {format_s(time_s)}, an empty call {format_s(floor)}: part of it is dispatch"
        if e.samples.slope_s is not None:
            text += f" (by the slope inside one dispatch it takes {format_s(e.samples.slope_s)})"
        yield Finding(code="near_floor", text=text)


def _faults(e: Evidence, facts: Facts) -> Iterator[Finding]:
    faults, calls = e.conditions.minor_faults, e.calls
    facts["minor_faults"] = faults
    fresh = bool(e.prepared.get("output_is_fresh"))
    facts["output_is_fresh"] = fresh
    if not faults or not calls:
        return
    per_call, written = faults / calls, float(e.work.demand.write_bytes)
    # One fault may bring in a huge page, and nothing tells which did: memory that is kept faults hardly at all.
    small = per_call * float(resource.getpagesize()) >= FAULT_SHARE * written
    small = small and per_call * FAULT_S >= FAULT_TIME_SHARE * e.time_s  # fewer are not seen in the time
    huge = per_call >= max(2.0, FAULT_SHARE * written / HUGE_PAGE_BYTES)
    huge = huge and per_call * HUGE_FAULT_S >= FAULT_TIME_SHARE * e.time_s
    if written >= 2.0**20 and (small or huge):
        text = f"{per_call:.0f} page faults per call: it writes into new memory, and the kernel's work is in the time"
        yield Finding(code="page_faults", text=text)


def _calm(e: Evidence, facts: Facts) -> Iterator[Finding]:
    c = e.conditions
    if c.foreign_ratio is not None and c.foreign_ratio > BUSY_RATIO:
        text = f"other programs used {format_ratio(c.foreign_ratio)} of the processors: a lower bound"
        yield Finding(code="foreign_load", text=text)
    if c.steal_ratio is not None and c.steal_ratio > STEAL_RATIO:
        text = f"the hypervisor took {format_ratio(c.steal_ratio)} of the processors: a lower bound"
        yield Finding(code="steal", text=text)
    if c.throttled_s:
        text = f"the control group was throttled for {format_s(c.throttled_s)}: the quota is in the time"
        yield Finding(code="throttled", text=text)
    drift = drift_ratio(e)
    facts["drift_ratio"] = drift
    if drift is not None and drift > DRIFT_RATIO and drift > 2.0 * half_ratio(e):
        text = (
            f"inside a process the later windows are {format_ratio(drift)} slower than the first: it is not sustained"
        )
        yield Finding(code="drift", text=text)


def drift_ratio(e: Evidence) -> float | None:
    """Return by how much the last window of a process is slower than its first, the median over them; None for one."""
    by_process: dict[int, list[float]] = {}
    at = 0
    for process, size in e.samples.windows:
        part = sorted(e.samples.seconds[at : at + size])
        at += size
        if part:
            by_process.setdefault(process, []).append(part[len(part) // 2])
    ratios = sorted(m[-1] / m[0] - 1.0 for m in by_process.values() if len(m) > 1 and m[0] > 0)
    return ratios[len(ratios) // 2] if ratios else None
