"""`trace mfu` and `trace intensity` on the page: the share of the peak or the bound, how sure it is, and where the rest is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_bytes, format_bytes_per_s, format_flop, format_flop_per_s, format_ratio, format_s
from mansard.report.sections.blocks import Chart, Facts, Prose, Section, Series, number, reason_of, words
from mansard.report.sections.plain import facts, prose, value_text
from mansard.report.text import intensity

_SKIPPED = frozenset({
    "schema", "tool_version", "created", "environment", "damage", "findings", "definitions", "events_between",
    "missing_before_quoting", "source", "format", "version", "status", "start_s",
})  # fmt: skip
#: Keys whose words without their unit would say something else.
_NAMES = {
    "executed_flop": "executed FLOP", "recorded_flop": "recorded FLOP", "recorded_coverage_ratio": "kernels with recorded FLOP",
    "kernel_union_ratio": "share of the peak while its kernels run", "compute_ratio": "share of the peak", "other_flop": "other FLOP, not matrix work",
    "coverage_ratio": "kernel time with FLOP and bytes", "gpu_kernel_sum_s": "sum of its kernels", "gpu_kernel_union_s": "union of its kernels",
    "gpu_kernel_union_is": "the union is of",
}  # fmt: skip
_SMALL = 1e-12
#: Findings of kernels that may belong to a region and are not counted to it: no call launched them, or other threads did.
_NOT_COUNTED = ("other_threads", "unlinked_kernels")
#: From this share on, figures of some kernels are those of all.
_ALL = 0.9995


def section(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return a `trace_mfu` or `trace_intensity` document: sentences, a picture, then every figure with its source.

    Args:
        document: The document.
        key: Identifier of the section.
        name: Its file.
    """
    of_mfu = "mfu_ratio" in document
    plain = [k for k in document if k not in _SKIPPED]
    parts = [
        Facts(rows=_ceiling(part, document[part]))
        for part in ("peak", "bandwidth", "hardware")
        if isinstance(document.get(part), Mapping) and not reason_of(document[part])
    ]
    lines = _mfu_lines(document) if of_mfu else _intensity_lines(document)
    notes = [f"{k}: {v}." for k, v in (document.get("definitions") or {}).items()]
    return Section(
        key=key, title="Model FLOP utilisation" if of_mfu else "Arithmetic intensity",
        small=f"{name}: {document['format']}, {document['status']}",
        blocks=[
            Prose(lines=lines), *(_wall(document) if of_mfu else _roofline(document)), Facts(rows=[(_NAMES.get(k, n), v) for k in plain for n, v in facts(document, [k]).rows]),
            *[p for p in parts if p.rows], Prose(lines=[*prose(document).lines, *notes]),
        ],
    )  # fmt: skip


def _ceiling(part: str, held: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what is known of a ceiling or a product; a value is written with its unit."""
    write = {"FLOP/s": format_flop_per_s, "B/s": format_bytes_per_s}.get(str(held.get("unit")))
    value = number(held.get("value"))
    if write is None or value is None:
        return [(f"{part}: {k}", v) for k, v in facts(held).rows]
    rest = facts({k: v for k, v in held.items() if k not in ("value", "unit")}).rows
    return [(part, write(value)), *((f"{part}: {k}", v) for k, v in rest)]


def headline_of_mfu(document: Mapping[str, Any]) -> str:
    """Return the verdict of an MFU: the share, of what, and where most of the rest is lost."""
    region, mfu = document["region"], document["mfu_ratio"]
    hfu = number(document.get("hfu_ratio"))
    if number(mfu) is None:
        executed = f" With what was executed (HFU): {format_ratio(hfu)} of the dense peak." if hfu is not None else ""
        return f"MFU of region {region} is not known: {reason_of(mfu)}.{executed}"
    if not isinstance(mfu, int | float):
        return f"MFU of region {region} cannot be true: {value_text('mfu_ratio', mfu)}."
    count = document.get("devices") or 1
    where = "1 device" if count == 1 else f"{count} devices"
    missing = len(document.get("missing_before_quoting") or ())
    said = f"Region {region} uses {'about ' if missing else ''}{format_ratio(mfu)} of the dense peak of {where} (MFU)"
    if missing:
        said += f", not yet to be quoted ({missing} {'fact' if missing == 1 else 'facts'} missing)"
    lost, left_out = _losses(document), _left_out(document)
    if lost is None:
        return f"{said}; what it counts is a part: {left_out}." if left_out else f"{said}."
    least, slow, without = lost
    if left_out:  # what no range can claim may run in the time that looks empty
        return f"{said}; none of its kernels runs in at most {format_ratio(without)} of its time, an upper limit since {left_out}."
    most = (
        f"no kernel of it runs in {format_ratio(without)} of its time"
        if without >= slow
        else f"its kernels run at {format_ratio(least / (least + slow))} of the peak"
    )
    return f"{said}; most of the rest: {most}."


def _left_out(document: Mapping[str, Any]) -> str:
    """Return the findings that kernels which may be its work are not counted to the region, as a clause; empty where all are."""
    found = [f for f in document.get("findings") or () if isinstance(f, Mapping) and f.get("code") in _NOT_COUNTED]
    texts = [str(f.get("text", "")).split(", so ")[0].rstrip(".") for f in found]
    return "; ".join(text for text in texts if text)


def _losses(document: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Return the parts of the wall time, as ratios: at the peak rate, kernels beyond that, and without a kernel.

    MFU = kernel-union ratio x union of kernels / wall time, so the three add up to 1. None where one of them is not known.
    """
    mfu, inside = number(document["mfu_ratio"]), number(document.get("kernel_union_ratio"))
    wall, union = number(document.get("wall_time_s")), number(document.get("gpu_kernel_union_s"))
    if mfu is None or inside is None or not wall or union is None or not 0 < inside <= 1:
        return None
    busy = mfu / inside
    if not mfu <= busy <= 1 + 1e-6 or abs(busy - union / wall) > 0.02:
        return None
    return mfu, busy - mfu, max(0.0, 1.0 - busy)


def _grade(part: Any, write: Any) -> str:
    """Return a ceiling in words: its value, kind and source."""
    if not isinstance(part, Mapping) or number(part.get("value")) is None:
        return ""
    dtype = f" {part['dtype']}" if part.get("dtype") not in (None, "unstated") else ""
    return f"{write(float(part['value']))}{dtype}, {part['kind']} ({part['source']})"


def _mfu_lines(document: Mapping[str, Any]) -> list[str]:
    wall, flop = number(document.get("wall_time_s")), number(document.get("flop"))
    lines = []
    if wall is not None and flop is not None:
        lines.append(
            f"{format_flop(flop)} of model work in {format_s(wall)}; {document['flop_source']}. "
            f"Time: {document['wall_time_is']}."
        )
    peak = _grade(document.get("peak"), format_flop_per_s)
    if peak:
        lines.append(f"Judged against the dense peak of a device: {peak}.")
    lost = _losses(document)
    if lost is not None:
        least, slow, without = lost
        first = (
            "the time without kernels: mansard trace overlap tells its causes"
            if without >= slow
            else "the kernels themselves: mansard diagnose tells which and why"
        )
        if _left_out(document):
            none = (
                f"and in up to {format_ratio(without)} none of its kernels runs: kernels that may be its own are left out of it, "
                "so this is an upper limit, as is the share of the peak while its kernels run"
            )
            first = "which kernels those are: mansard diagnose counts all of them, whoever launched them"
        else:
            none = f"and in {format_ratio(without)} none of its kernels runs"
        lines.append(
            f"Of its time {format_ratio(least)} would do the work at the peak, {format_ratio(slow)} is what its kernels take beyond that, "
            f"{none}. Look first at {first}."
        )
    missing = document.get("missing_before_quoting") or ()
    if missing:
        lines.append(
            f"Not to be quoted as an MFU yet: {len(missing)} things are not stated, listed below, and the model FLOP are taken as given."
            if str(document.get("flop_source", "")).startswith("given")
            else f"Not to be quoted as an MFU yet: {len(missing)} things are not stated, listed below."
        )
    return lines


def _wall(document: Mapping[str, Any]) -> list[Chart]:
    """Return the wall time of the region as stretches that add up to it."""
    lost, wall = _losses(document), number(document.get("wall_time_s"))
    if lost is None or wall is None:
        return []
    none = "no kernel that can be assigned to it runs" if _left_out(document) else "no kernel of it runs"
    named = (("the work at the peak rate", "compute"), ("kernels beyond that", "latency"), (none, "unattributed"))
    series = [
        Series(name=name, colour=colour, mode="bars", x=[str(document["region"])], y=[ratio * wall],
               text=[f"{name}: {format_s(ratio * wall)}, {format_ratio(ratio)}"])
        for (name, colour), ratio in zip(named, lost, strict=True)
    ]  # fmt: skip
    return [
        Chart(label="Where the time of the region goes", x_title="time, s", y_title="", sideways=True, series=series)
    ]


def headline_of_intensity(document: Mapping[str, Any]) -> str:
    """Return the verdict of an intensity: the bound, its share of the ceiling, and the ridge point that decides it."""
    known, bound = number(document["flop_per_byte"]), str(document["bound"])
    if known is None:
        return "Arithmetic intensity is not known: without FLOP and bytes nothing says whether memory or compute bounds it."
    value, ridge = f"{intensity(known)} FLOP/byte", number(document.get("ridge_flop_per_byte"))
    if bound == "undetermined":
        why = str(document.get("reason") or "the ceilings are not known")
        return f"The intensity is {value}; what bounds it is undetermined: {why}."
    share = number(document.get("share_of_ceiling"))
    reached = f", at {format_ratio(share)} of its {document['limiting_ceiling']}" if share is not None else ""
    side = ""
    if ridge is not None:
        side = f": {value} lies {'below' if known < ridge else 'above'} the ridge point of {intensity(ridge)}"
    covered = number(document.get("coverage_ratio"))
    if covered is not None and covered < _ALL:  # a mean over some kernels is no bound of each, nor of the device
        return (
            f"Device {document['device']}: kernels with {format_ratio(covered)} of its kernel time, taken together, are {bound} bound{reached}"
            f"{side}. Single kernels may be bound otherwise."
        )
    return f"Device {document['device']} is {bound} bound{reached}{side}, its kernels taken together."


def _sources(rows: Any) -> str:
    return words(f"{r['grade']}, {r['source']}" for r in rows or ())


def _intensity_lines(document: Mapping[str, Any]) -> list[str]:
    lines = []
    flop, moved = number(document.get("flop")), number(document.get("bytes"))
    if flop is not None and moved is not None:
        lines.append(f"{format_flop(flop)} and {format_bytes(moved)} of traffic in the {document['scope']}.")
    for name, part, write in (("peak", document.get("peak"), format_flop_per_s), ("bandwidth", document.get("bandwidth"), format_bytes_per_s)):  # fmt: skip
        told = _grade(part, write)
        lines += [f"Judged against a {name} of {told}."] if told else []
    for name in ("flop", "bytes"):
        told = _sources(document.get(f"{name}_from"))
        lines += [f"{'FLOP' if name == 'flop' else 'Bytes'}: {told}."] if told else []
    covered = number(document.get("coverage_ratio"))
    if covered is not None and covered < _ALL:
        lines.append(
            f"These figures are of kernels with {format_ratio(covered)} of the kernel time, whose FLOP and bytes are both known, and of "
            "them together: single kernels may be bound otherwise. Look first at the kernels: mansard trace kernels."
        )
    return lines


def _roofline(document: Mapping[str, Any]) -> list[Chart]:
    """Return the roof of the device with the point that was reached."""
    at, rate = number(document["flop_per_byte"]), number(document.get("achieved_flop_per_s"))
    ceilings = [document.get("peak"), document.get("bandwidth")]
    peak, bandwidth = (number(c.get("value")) if isinstance(c, Mapping) else None for c in ceilings)
    if at is None or rate is None or peak is None or bandwidth is None or min(at, rate, peak, bandwidth) <= _SMALL:
        return []
    ridge = peak / bandwidth
    low, high = min(at, ridge) / 10.0, max(at, ridge) * 10.0
    # The colour of the point is that of its bound.
    return [
        Chart(
            label="Roofline of the device", x_title="arithmetic intensity, FLOP/byte", y_title="achieved, FLOP/s", x_log=True, y_log=True,
            series=[
                Series(name="roof", x=[low, ridge, high], y=[low * bandwidth, peak, peak], mode="lines", colour="undetermined",
                       dash=_dash(ceilings)),
                Series(name="these kernels together", x=[at], y=[rate], mode="markers", colour=str(document["bound"]),
                       text=[f"{intensity(at)} FLOP/byte, {format_flop_per_s(rate)}; the roof there is {format_flop_per_s(min(peak, at * bandwidth))}"]),
            ],
            uprights=((ridge, f"ridge point, {intensity(ridge)} FLOP/byte"),),
            notes=["The roof is the bandwidth times the intensity up to the ridge point, and the dense peak beyond it."],
        )
    ]  # fmt: skip


def _dash(ceilings: Sequence[Any]) -> str:
    """Return the stroke of the less certain of two ceilings: dotted where one is declared, dashed where one is derived."""
    kinds = {str(c["kind"]) for c in ceilings}
    return "dot" if "declared" in kinds else "dash" if "derived" in kinds else "solid"
