"""FLOP and bytes of a window for `mansard trace intensity`: given, measured, or counted, each with its grade and coverage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mansard.core.unknown import Unknown
    from mansard.trace.kernel_demand import Counted
    from mansard.trace.run import Finding
    from mansard.trace.timeline import Timeline

WHOLE = 0.99  # from this share of kernel time on, what is counted may stand beside what is given for all of it
_PLAIN_DTYPES = ("bf16", "f16", "f64", "f8e4m3", "f8e5m2")  # float32 products may run in TF32: their peak must be named


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """FLOP and bytes of one device in a window.

    Args:
        flop, bytes: The amounts [FLOP], [B].
        rows: Which kernels they are of, a mask of the kernel table; None means all of the device.
        dtype: Element type of the matrix work; None where nothing tells.
        findings: What a reader should know.
        evidence: Sources, grades and coverage, for the document.
    """

    flop: float | Unknown
    bytes: float | Unknown
    rows: npt.NDArray[np.bool_] | None
    dtype: str | None
    findings: list[Finding] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)


def amounts(timeline: Timeline, options: Mapping[str, Any], device: int) -> Amounts:
    """Return what is given, and for the rest what the profile tells.

    Args:
        timeline: The window, with demand columns.
        options: Of the command.
        device: Index of the device.
    """
    from mansard.trace.kernel_demand import Counted, counted
    from mansard.trace.timeline import Kind

    flop, moved, findings = _given(timeline, options, device)
    found = counted(timeline, timeline.of(Kind.KERNEL).device == device)
    if not isinstance(found, Counted):
        return Amounts(flop=_or(flop, "FLOP", "--flops"), bytes=_or(moved, "bytes", "--bytes"), rows=None,
                       dtype=options["dtype"], findings=findings, evidence=_evidence(flop, moved, None))  # fmt: skip
    dtype = options["dtype"] or _dtype(found, findings)
    evidence = _evidence(flop, moved, found)
    if flop is None and moved is None:
        mask = np.zeros(len(timeline.of(Kind.KERNEL)), dtype=np.bool_)
        mask[np.flatnonzero(timeline.of(Kind.KERNEL).device == device)[found.covered]] = True
        if mask.any():
            return Amounts(flop=found.flop, bytes=found.bytes, rows=mask, dtype=dtype,
                           findings=[*findings, *_coverage(found)], evidence=evidence)  # fmt: skip
    whole_flop = found.any_flop if found.flop_coverage_ratio >= WHOLE else None
    whole_bytes = found.bytes if found.coverage_ratio >= WHOLE else None
    return Amounts(
        flop=flop if flop is not None else whole_flop if whole_flop is not None else _partly("FLOP", found.flop_coverage_ratio),
        bytes=moved if moved is not None else whole_bytes if whole_bytes is not None else _partly("bytes", found.bytes_coverage_ratio),
        rows=None, dtype=dtype, findings=findings, evidence=evidence,
    )  # fmt: skip


def _or(value: float | None, what: str, option: str) -> float | Unknown:
    from mansard.core.unknown import Unknown

    needs = (option, "a profile with record_shapes=True", "--ncu REPORT.csv")
    return (
        value if value is not None else Unknown(f"the {what} are not given, and the profile does not tell them", needs)
    )


def _partly(what: str, share: float) -> Unknown:
    from mansard.core.unknown import Unknown

    option = "--flops" if what == "FLOP" else "--bytes"
    return Unknown(f"the {what} are known for {share:.1%} of the kernel time only", (option, "--ncu REPORT.csv"))


def _dtype(found: Counted, findings: list[Finding]) -> str | None:
    from mansard.trace.run import Finding

    if found.dtype in _PLAIN_DTYPES:
        text = f"the element type of the matrix work is {found.dtype} by what was recorded"
        findings.append(Finding(code="recorded_dtype", text=text))
        return found.dtype
    return None


def _coverage(found: Counted) -> list[Finding]:
    from mansard.trace.run import Finding

    if found.coverage_ratio > 0.9995:
        return []
    text = (
        f"FLOP and bytes are known for kernels with {found.coverage_ratio:.1%} of the device's kernel time; every figure here is "
        "of those kernels alone, and of them together: trace kernels has each"
    )
    return [Finding(code="coverage", text=text)]


def _evidence(flop: float | None, moved: float | None, found: Counted | None) -> dict[str, Any]:
    given = ({"source": "given on the command line", "grade": "declared"},)
    sources = found.sources if found is not None else None

    def named(value: float | None, which: str) -> list[dict[str, str]]:
        if value is not None:
            return list(given)
        return [{"source": s, "grade": str(g)} for s, g in (getattr(sources, which) if sources is not None else ())]

    return {
        "flop_from": named(flop, "flop"),
        "bytes_from": named(moved, "bytes"),
        "other_flop": found.other_flop if found is not None and flop is None else None,
        "coverage_ratio": found.coverage_ratio if found is not None else None,
        "not_covered": [
            {"reason": r, "share_of_kernel_time": s, "kernels": n} for r, s, n in (found.unknown[:8] if found else ())
        ],
    }


def _given(
    timeline: Timeline, options: Mapping[str, Any], device: int
) -> tuple[float | None, float | None, list[Finding]]:
    """Return the FLOP and bytes that were given; those of a whole profile are scaled to a window, never left whole."""
    from mansard.core.errors import UsageError
    from mansard.core.units import positive_amount as amount
    from mansard.trace.run import Finding

    flop, moved = amount(options["flops"], "flop", "--flops"), amount(options["moved"], "bytes", "--bytes")
    findings: list[Finding] = []
    share = 1.0
    if options["trim"] and (flop is not None or moved is not None):
        if options["flops_of"] is None:
            raise UsageError(
                "with --trim it must be said whether --flops and --bytes are those of the window or of the whole profile",
                hint="--flops-of window, or --flops-of profile to scale them by kernel time",
                code="scope_of_flop",
            )
        if options["flops_of"] == "profile":
            share = _window_share(timeline, options, device)
            text = f"FLOP and bytes of the whole profile are scaled by the window's share of kernel time, {share:.4f}; assumed: the work is alike everywhere"
            findings.append(Finding(code="scaled_to_window", text=text))
    elif options["flops_of"] is not None and not options["trim"]:
        raise UsageError("--flops-of belongs to --trim")
    return (None if flop is None else flop * share), (None if moved is None else moved * share), findings


def _window_share(window: Timeline, options: Mapping[str, Any], device: int) -> float:
    """Return the window's share of the device's summed kernel time."""
    from mansard.cli.trace.common import read
    from mansard.trace.timeline import Kind

    whole = read({**options, "trim": None}, kinds=(Kind.KERNEL,))
    kernels, part = whole.of(Kind.KERNEL), window.of(Kind.KERNEL)
    number = window.devices[device].number
    mask = [whole.devices[d].number == number for d in range(len(whole.devices))]
    total = sum(int(kernels.duration_ns[kernels.device == d].sum()) for d, hit in enumerate(mask) if hit)
    return int(part.duration_ns[part.device == device].sum()) / total
