"""The document of `mansard plan scale` as text, with a small plot of the speedup."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mansard.core.units import format_ratio, format_s
from mansard.report.text import clean

_ROWS = 12


def scale_text(document: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    """Return what is known about scaling, a table and a plot.

    Args:
        document: `plan-scale/1` in plain JSON types.
        ascii_only: Draw with ASCII alone.
    """
    lines = [*_head(document), "", *_table(document), "", *_plot(document, ascii_only=ascii_only)]
    if document["notes"]:
        lines += ["", *(f"note: {clean(note)}" for note in document["notes"])]
    return "\n".join(lines)


def _head(document: Mapping[str, Any]) -> list[str]:
    fit = document["fit"]
    lines = []
    if fit is None:
        lines.append("From parts that were given, nothing was measured: " + document["model"])
    else:
        kind = "strong scaling, the same work" if document["scaling"] == "strong" else "weak scaling, work grows with N"
        lines.append(f"Measured: {kind}; {fit['law']}: {document['model']}")
        interval = fit["serial_ci95_ratio"]
        known = not isinstance(interval, Mapping)
        spread = f"95 % {interval[0]:.3g} to {interval[1]:.3g}" if known else f"interval unknown: {interval['unknown']}"
        lines.append(
            f"serial share {fit['serial_ratio']:.3g} ({spread}); T(1) {format_s(fit['one_device_s'])}; "
            f"points within {format_ratio(fit['error_ratio'])} of the fit"
        )
    limit = document["limit"]
    if isinstance(limit, Mapping):
        lines.append(f"limit: {limit['unknown']}")
    else:
        lines.append(f"speedup at most {limit:.4g}x, however many devices")
    last = document["last_n_above"]
    floor = format_ratio(document["efficiency_floor"])
    stops = str(document["stops_paying"])
    where = "adding devices stops paying at N = " if stops[:1].isdigit() else "N where adding devices stops paying: "
    lines.append(f"{where}{stops}")
    lines.append(f"last N with {floor} efficiency: " + ("none, it stays above" if last is None else str(last)))
    return lines


def _table(document: Mapping[str, Any]) -> list[str]:
    weak = document["scaling"] == "weak"
    measured = {row["n"]: row for row in document["measured"]}
    head = ["N", "time", "speedup", "efficiency"]
    parts = document["from"] == "parts"  # of a fit of strong scaling, weak scaling was not measured
    if parts:
        head += ["weak efficiency", "scaled speedup"]
    if measured:
        head += ["measured", "its efficiency"]
    table = [head]
    for row in document["rows"]:
        main = row["weak_efficiency_ratio"] if weak else row["strong_efficiency_ratio"]
        time = f"{row['time_s']:.4g} T(1)" if document["relative"] else format_s(row["time_s"])
        cells = [str(row["n"]), time, f"{row['speedup']:.3g}x", format_ratio(main)]
        if parts:
            cells += [format_ratio(row["weak_efficiency_ratio"]), f"{row['scaled_speedup']:.3g}x"]
        if measured:
            seen = measured.get(row["n"])
            cells += [format_s(seen["time_s"]), format_ratio(seen["efficiency_ratio"])] if seen else ["", ""]
        table.append(cells)
    widths = [max(len(r[i]) for r in table) for i in range(len(head))]
    return ["  " + "  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in table]


def _plot(document: Mapping[str, Any], *, ascii_only: bool) -> list[str]:
    """Speedup over N, both by powers of two: `/` one device's worth each, `o` the model, `*` measured."""
    rows = document["rows"]
    top_n = max(max(row["n"] for row in rows), 2)
    high = max(math.log2(top_n), 1.0)
    width = 4 * _ROWS
    grid = [[" "] * (width + 1) for _ in range(_ROWS + 1)]

    def put(n: float, speedup: float, mark: str) -> None:
        x, y = round(math.log2(n) / high * width), round(math.log2(max(speedup, 1e-9)) / high * _ROWS)
        if 0 <= x <= width and 0 <= y <= _ROWS:
            grid[_ROWS - y][x] = mark

    for step in range(width + 1):
        put(2.0 ** (step / width * high), 2.0 ** (step / width * high), "/")
    for row in rows:
        put(row["n"], row["speedup"], "o")
    weak = document["scaling"] == "weak"
    one = None if document["fit"] is None else document["fit"]["one_device_s"]
    for row in document["measured"]:
        gained = one / row["time_s"] * (row["n"] if weak else 1)
        put(row["n"], gained, "*")
    bar, corner, dash = ("|", "+", "-") if ascii_only else ("\u2502", "\u2514", "\u2500")
    out = []
    for i, cells in enumerate(grid):
        value = 2.0 ** ((_ROWS - i) / _ROWS * high)
        label = f"{round(value)}x" if value > 99 else f"{value:.3g}x"
        out.append(f"{label if i % 3 == 0 else '':>8} {bar}{''.join(cells)}".rstrip())
    out.append(" " * 9 + corner + dash * (width + 1))
    out.append(" " * 10 + "1" + f"N = {top_n}".rjust(width))
    legend = "/ every device counts fully   o " + ("fit" if document["measured"] else "model")
    out.append(" " * 10 + legend + ("   * measured" if document["measured"] else ""))
    return out
