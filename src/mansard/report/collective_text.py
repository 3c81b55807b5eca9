"""The document of `mansard plan collective` as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.core.units import format_bytes, format_bytes_per_s, format_ratio, format_s
from mansard.hardware.topology import ALGORITHM_WORDS
from mansard.report.text import clean


def collective_text(document: Mapping[str, Any]) -> str:
    """Return the ceilings of a collective as a table, and what a measurement is against them.

    Args:
        document: `plan-collective/1` in plain JSON types.
    """
    whole = document["ranks"] == document["devices"]
    who = f"{document['ranks']} devices" if whole else f"{document['ranks']} of {document['devices']} devices"
    lines = [
        f"{document['operation']} over {who} of {clean(document['shape'])}",
        f"S is {document['size_means']}; busbw = {document['bus_factor']:.4g} S / t",
        "",
        *_table(document["rows"]),
    ]
    if any(row["effective"] for row in document["rows"]):
        lines += [
            "",
            "in-network: switches reduce on the way (NVLS, SHARP); busbw then counts more than a link carries",
        ]
    lines += _measured(document)
    if document["without_latency"]:
        left = ", ".join(document["without_latency"])
        lines += [
            "",
            f"Latency of {left} is on no record and left out: small messages take longer (--hop, --network-hop)",
        ]
    lines += ["", "Network:", *(f"  {clean(note)}" for note in document["notes"])]
    return "\n".join(lines)


def _table(rows: list[Mapping[str, Any]]) -> list[str]:
    table = [("S", "algorithm", "at least", "algbw", "busbw up to", "set by")]
    sizes = list(dict.fromkeys(row["size_bytes"] for row in rows))
    for size in sizes:
        # Of several sizes the fastest with and without reduction in the network; of one size every algorithm.
        mine = [row for row in rows if row["size_bytes"] == size]
        for i, c in enumerate(mine if len(sizes) == 1 else _fastest(mine)):
            table.append(
                (format_bytes(size) if i == 0 else "", ALGORITHM_WORDS[c["algorithm"]], format_s(c["time_s"]),
                 _rate(c["algbw_bytes_per_s"]), _rate(c["busbw_bytes_per_s"]), _set_by(c))
            )  # fmt: skip
    widths = [max(len(r[i]) for r in table) for i in range(len(table[0]))]
    return ["  " + "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in table]


def _fastest(ceilings: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    kinds = ([c for c in ceilings if not c["effective"]], [c for c in ceilings if c["effective"]])
    return [min(kind, key=lambda c: c["time_s"]) for kind in kinds if kind]


def _rate(value: Any) -> str:
    return "-" if isinstance(value, Mapping) else format_bytes_per_s(value)


def _set_by(ceiling: Mapping[str, Any]) -> str:
    latency = ceiling["latency_s"]
    if not isinstance(latency, Mapping) and latency > ceiling["bandwidth_s"]:
        return "hops"
    return clean(ceiling["limiting"])


def _measured(document: Mapping[str, Any]) -> list[str]:
    seen = document["measured"]
    if seen is None:
        return []
    lines = [
        "",
        f"Measured: {format_s(seen['time_s'])}, algbw {format_bytes_per_s(seen['algbw_bytes_per_s'])}, "
        f"busbw {format_bytes_per_s(seen['busbw_bytes_per_s'])}",
        f"  {clean(seen['verdict'])}",
    ]
    inside = seen["in_network_share_ratio"]
    if inside is not None and seen["algorithm"] != "in-network":
        lines.append(f"  {format_ratio(inside)} of what reduction in the network would allow, if it was at work")
    lines += [f"  may be: {clean(text)}" for text in seen["suspects"]]
    return lines
