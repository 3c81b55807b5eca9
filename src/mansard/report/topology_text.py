"""The document of `mansard plan topology` as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.core.units import format_bytes, format_bytes_per_s, format_ratio, format_s
from mansard.report.text import clean

_NAMES = {"tensor": "tensor", "expert": "expert", "context": "context"}


def _data(document: Mapping[str, Any]) -> str:
    return "FSDP" if document["phase"] == "train" and document["zero"] == 3 else "data"


def _used(axes: Mapping[str, Mapping[str, int]], data: str) -> str:
    """Such as `x: FSDP 4, y: tensor 2`."""
    parts = []
    for name, degrees in axes.items():
        parts.append(f"{name}: " + " ".join(f"{_NAMES.get(kind, data)} {n}" for kind, n in degrees.items()))
    return ", ".join(parts) or "one device"


def topology_text(document: Mapping[str, Any]) -> str:
    """Return the comparison of shapes, then the reasons for the best one.

    Args:
        document: `plan-topology/1` in plain JSON types.
    """
    data = _data(document)
    size = f"batch {document['batch']}" + (f" x {document['seq']} tokens" if document["seq"] else "")
    lines = [
        f"{clean(document['model'])} on {clean(document['environment']['machine'])}, {document['phase']}, {size}",
        "",
    ]
    table = [("shape", "devices", "step at least", "messages", "tok/s/device", "memory", "axes")]
    bad = []
    for row in document["shapes"]:
        best = row["best"]
        if "unknown" in best:
            bad.append(f"  {row['shape']}: {clean(best['unknown'])}")
            continue
        memory = format_bytes(best["memory_bytes"]) + (" does not fit" if best["fits"] is False else "")
        table.append(
            (row["shape"], str(row["devices"]), format_s(best["step_s"]), format_s(best["messages_s"]),
             _rate(best), memory, _used(best["axes"], data))
        )  # fmt: skip
    if len(table) > 1:
        widths = [max(len(r[i]) for r in table) for i in range(len(table[0]))]
        lines += ["  " + "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in table]
    if bad:
        lines += ["", "Not possible:", *bad]
    lines += _beside(document)
    first = document["shapes"][0]
    if "unknown" not in first["best"]:
        lines += ["", *_detail(first, data)]
    lines += ["", "Assumed:", *(f"  {clean(text)}" for text in document["assumed"])]
    return "\n".join(lines)


def _beside(document: Mapping[str, Any]) -> list[str]:
    """Why the first shape is first, and what its times leave out."""
    rows = [row for row in document["shapes"] if "unknown" not in row["best"]]
    lines: list[str] = []
    if len(rows) > 1:
        one, two = rows[0], rows[1]
        why = f"{two['shape']} does not fit" if two["best"]["fits"] is False and one["best"]["fits"] is not False else (
            f"{_rate(one['best'])} tokens a second and device against {_rate(two['best'])}, messages {_share(one)} of the step "
            f"against {_share(two)}"
        )  # fmt: skip
        same = all(
            f"{one['best'][k]:.4g}" == f"{two['best'][k]:.4g}" for k in ("tokens_per_s_and_device", "messages_s")
        )
        if same and one["best"]["fits"] == two["best"]["fits"]:
            lines += [
                "",
                f"{one['shape']} and {two['shape']} are as good here: as many tokens a second and device, as long messages",
            ]
        else:
            lines += ["", f"{one['shape']} before {two['shape']}: {why}"]
    left = sorted({name for row in rows for name in row["without_latency"]})
    if left:
        lines += [
            "",
            f"Latency of {', '.join(left)} is on no record and left out (--hop, --network-hop): small messages,",
        ]
        lines += ["as in decode, then take longer than shown, the more the more devices share them."]
    return lines


def _rate(best: Mapping[str, Any]) -> str:
    """Return tokens per second and device with four digits, whole ones in full."""
    value = float(best["tokens_per_s_and_device"])
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _share(row: Mapping[str, Any]) -> str:
    return format_ratio(row["best"]["messages_s"] / row["best"]["step_s"])


def _detail(row: Mapping[str, Any], data: str) -> list[str]:
    """The traffic of the best shape, the reasons, and what is next best."""
    best = row["best"]
    lines = [f"{row['shape']}, axis by axis:"]
    lines += [f"  {_named(text, data)}" for text in row["reasons"]]
    if best["traffic"]:
        lines += ["", "Messages of one device and step, at their ceilings:"]
    for item in best["traffic"]:
        kind = _NAMES.get(item["kind"], data)
        lines.append(
            f"  {kind} over {item['ranks']}: {item['calls']:.0f} x {', '.join(item['operations'])}, "
            f"{format_bytes(item['sent_bytes'])} in {format_s(item['time_s'])} "
            f"({format_bytes_per_s(item['bytes_per_s'])}, set by {item['limiting']})"
        )
    lines.append(f"  kernels {format_s(best['compute_s'])}, messages {format_s(best['messages_s'])}")
    if row["others"]:
        lines += ["", f"Next best of {row['tried']} ways to use {row['shape']}:"]
    for other in row["others"]:
        note = ", does not fit" if other["fits"] is False else ""
        lines.append(
            f"  {_used(other['axes'], data)}: step {format_s(other['step_s'])}, messages {format_s(other['messages_s'])}{note}"
        )
    for why, count in row["refused"].items():
        lines.append(f"  {count} way(s) refused: {clean(why)}")
    lines += ["", "Network:", *(f"  {clean(note)}" for note in row["notes"])]
    return lines


def _named(text: str, data: str) -> str:
    """The reasons call data parallelism by its name in training."""
    return clean(text) if data == "data" else clean(text).replace("data ", f"{data} ")
