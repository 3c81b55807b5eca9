"""The catalogue in a terminal: plain aligned columns, so that a look-up starts quickly and can be piped."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import (
    format_binary_bytes,
    format_bytes,
    format_bytes_per_s,
    format_flop_per_s,
    format_hz,
    format_ratio,
    format_s,
)
from mansard.core.unknown import Implausible, Unknown, is_known
from mansard.hardware.detect import Detection, Device
from mansard.hardware.matching import Match
from mansard.hardware.records import Sku


def columns(rows: Sequence[Sequence[str]], *, indent: str = "  ", width: int | None = None) -> list[str]:
    """Return rows as lines of aligned columns; the last column is not padded.

    Args:
        rows: Cells.
        indent: Before each line.
        width: Longest line: the last column goes on below itself, or below the others where they leave it no room.
    """
    if not rows:
        return []
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]) - 1)]
    lines: list[str] = []
    for r in rows:
        head = indent + "".join(f"{c.ljust(w)}  " for c, w in zip(r, widths, strict=False))
        line = (head + r[-1]).rstrip()
        if width is None or len(line) <= width:
            lines.append(line)
        elif len(head) <= width // 2:
            lines += textwrap.wrap(r[-1], width, initial_indent=head, subsequent_indent=" " * len(head))
        else:
            lines += [head.rstrip(), *_wrapped(r[-1], width, f"{indent}  ")]
    return lines


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, max(width, 20), initial_indent=indent, subsequent_indent=indent)


def _rate(value: Any) -> str:
    return format_flop_per_s(value) if isinstance(value, int | float) else "-"


def _receipt(item: Mapping[str, Any]) -> str:
    return f"{item['source']} ({item['date']}, {item['certainty']})"


def _key(item: Mapping[str, Any]) -> str:
    return f"{item['dtype']} {item['engine']} into {item['accumulate']}"


class _Sources:
    """Numbers the receipts of a page, so that each figure points to one without repeating it."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def mark(self, item: Mapping[str, Any]) -> str:
        """Return `[n]` of an item's receipt."""
        return f"[{self.known.setdefault(_receipt(item), len(self.known) + 1)}]"

    def lines(self) -> list[str]:
        """Return the numbered receipts."""
        return ["", "Sources (date, certainty)", *(f"  [{n}] {text}" for text, n in self.known.items())]


def show_lines(document: Mapping[str, Any], *, width: int | None = None) -> list[str]:
    """Return a product with the receipt of each number, in lines of at most `width` characters."""
    package, sources = document["package"], _Sources()
    out = [f"{document['name']}: {document['product']}"]
    out.append(f"  file: {document['origin']}")
    if package["devices"] > 1:
        out.append(f"  a device is {package['device']}: {package['devices']} devices per package; figures are of one")
    if document["peaks"]:
        out += ["", "Peaks, dense"]
        out += columns([["", "declared", "derived", "", "", ""], *_peak_table(document["peaks"], sources)], width=width)
    out += ["", "Memory"] if document["memory"] else []
    out += columns([
        [m["level"], format_binary_bytes(m["capacity_bytes"]) + (f" x {m['instances']}" if m["instances"] > 1 else ""),
         format_bytes_per_s(m["bytes_per_s"]) if isinstance(m["bytes_per_s"], float) else "bandwidth unknown",
         sources.mark(m), "; ".join(t for t in ("at most; as bought" if m["configurable"] else "", m["note"] or "") if t)]
        for m in document["memory"]
    ], width=width)  # fmt: skip
    if document["links"]:
        out += ["", "Links, one way"]
        out += columns([
            [link["name"], format_bytes_per_s(link["bytes_per_s"]),
             "latency unknown" if link["latency_s"] is None else format_s(link["latency_s"]), sources.mark(link),
             link["topology"]]
            for link in document["links"]
        ], width=width)  # fmt: skip
    out += ridge_lines(document["ridge_points"], width=width)
    out += ["", "Units"]
    out += columns([[u["name"], _count(u), sources.mark(u), u["note"] or ""] for u in document["units"]], width=width)
    facts = [[f"{c['name']} clock", format_hz(c["hz"]), sources.mark(c), ""] for c in document["clocks"]]
    if document["power"]:
        facts.append(["TDP", f"{document['power']['tdp_w']:g} W", sources.mark(document["power"]), ""])
    facts += [["price", f"{p['usd_per_hour']:g} USD/h", sources.mark(p), p["offer"]] for p in document["prices"]]
    out += ["", "Other"] if facts else []
    out += columns(facts, width=width)
    identity = document["identity"]
    names = [*document["aliases"], *(f"PCI {p}" for p in identity["pci"]), *identity["cpuid"]]
    if names:
        out += ["", f"Matched by {sources.mark(identity)}: {'; '.join(names)}"]
    out += [f"Note: {n}" for n in document["notes"]]
    return _fitted([*out, *sources.lines()], width)


def _peak_table(peaks: Sequence[Mapping[str, Any]], sources: _Sources) -> list[list[str]]:
    """Return one row per key: declared and derived figure, clock, receipt, formula."""
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for p in peaks:
        rows.setdefault(_key(p), {})[p["kind"]] = p
    found = []
    for key, kinds in rows.items():
        either = kinds.get("declared") or kinds["derived"]
        cells = [_rate(kinds[k]["flop_per_s"]) if k in kinds else "-" for k in ("declared", "derived")]
        how = kinds["derived"]["formula"] if "derived" in kinds else either.get("note") or ""
        found.append([key, *cells, _clock(either), sources.mark(either), how])
    return found


def _clock(p: Mapping[str, Any]) -> str:
    if p["clock_hz"] is None:
        return "clock unknown"
    return f"at {format_hz(p['clock_hz'])}" + (", solved from the peak" if p["clock_basis"] == "solved" else "")


def _count(u: Mapping[str, Any]) -> str:
    groups = "any number of" if u["groups"] is None else str(u["groups"])
    width = f", {u['width_bits']} bits" if u["width_bits"] else ""
    return f"{u['per_group']} per {u['group']}, {groups} {u['group']}s{width}"


def ridge_lines(ridges: Sequence[Mapping[str, Any]], *, width: int | None = None) -> list[str]:
    """Return the ridge points as a table, or nothing."""
    if not ridges:
        return []
    seen: dict[tuple[str, str, str], list[str]] = {}
    for r in ridges:
        text = f"{r['flop_per_byte']:.1f} FLOP/B"
        # Products on vector units have the ridge of the vector units; one line says it.
        row = [_key(r), r["level"], text, f"square product from N = {r['gemm_size']:.0f}"]
        seen.setdefault((f"{r['dtype']} into {r['accumulate']}", r["level"], text), row)
    rows = list(seen.values())
    return ["", "Ridge points (compute-bound above)", *columns(rows, width=width)]


def peak_lines(d: Mapping[str, Any], *, width: int | None = None) -> list[str]:
    """Return derived beside declared peaks and the views that were asked for."""
    scope = (
        f"{d['cores']:g} core" + ("s" if d["cores"] != 1 else "")
        if d["cores"] and d["scope"] == "core"
        else str(d["scope"])
    )
    head = f"{d['name']}: {d['product']}, one {scope}" if not d["cores"] else f"{d['name']}: {d['product']}, {scope}"
    if d["device"] not in (None, "the package"):
        head += f" ({d['device']})"
    out = [head]
    if d["clock_hz"]:
        out.append(f"clock {format_hz(d['clock_hz'])}, named by the user")
    if d["rows"]:
        out += ["", "Peaks, dense"]
        out += columns([["", "derived", "declared", "ratio", ""], *(_peak_cells(r) for r in d["rows"])], width=width)
        out += [f"  = {text}" for text in d["ratios_say"]]
        out += _differences(d["rows"])
    if "no_peak" in d:
        out += ["", d["no_peak"].reason]
    if d["unit_peaks"]:
        out += ["", "By unit"]
        out += columns([[u["unit"], f"{u['dtype']} into {u['accumulate']}", _rate(u["flop_per_s"]), u["formula"]]
                        for u in d["unit_peaks"]], width=width)  # fmt: skip
        out += dict.fromkeys(f"  ! {u['unit']}: {u['note']}" for u in d["unit_peaks"] if u["note"])
    if d["partial_ceilings"]:
        out += ["", "Ceilings below the peak"]
        out += columns([[f"{p['dtype']} {p['engine']}", p["what"], _rate(p["flop_per_s"]), f"{p['ratio']:.3g} of it"]
                        for p in d["partial_ceilings"]], width=width)  # fmt: skip
    out += ridge_lines(d.get("ridge_points", ()), width=width)
    return _fitted([*out, *_view_lines(d, width=width), *(f"Note: {n}" for n in d["notes"])], width)


def _differences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the file says of derived peaks that differ from declared ones, like ones together."""
    texts: dict[str, list[str]] = {}
    for r in rows:
        if r["difference"]:
            texts.setdefault(r["difference"], []).append(f"{r['dtype']} {r['engine']}")
    return [f"  ! {', '.join(keys)}: {text}" for text, keys in texts.items()]


def _peak_cells(r: Mapping[str, Any]) -> list[str]:
    derived, declared, ratio = r["derived_flop_per_s"], r["declared_flop_per_s"], r["ratio"]
    how = r["formula"] or _receipt(r)
    if r["clock_basis"] == "solved" and r["clock_hz"] == r["declared_clock_hz"]:
        how += " (clock solved from the peak: no independent check)"
    if not r["derivation_holds"]:
        how += " (does not hold)"
    return [_key(r), _rate(derived), _rate(declared), f"{ratio:.3f}" if is_known(ratio) else "-", how]


def _view_lines(d: Mapping[str, Any], *, width: int | None = None) -> list[str]:
    out: list[str] = []
    if d.get("matmul_in_cache"):
        out += ["", "Matrix product from a cache, at most (pebble game, sqrt(M/b)/b)"]
        out += columns([[m["level"], m["dtype"], format_binary_bytes(m["capacity_bytes"]), f"{m['flop_per_byte']:.0f} FLOP/B"]
                        for m in d["matmul_in_cache"]], width=width)  # fmt: skip
    if d.get("gemm"):
        out += ["", f"Square product of N = {d['gemm'][0]['size']}"]
        out += columns([[_key(g), g["level"], f"{g['flop_per_byte']:.1f} FLOP/B", _rate(g["attainable_flop_per_s"]),
                         f"{g['bound']}-bound, N* = {g['ridge_size']:.0f}"] for g in d["gemm"]], width=width)  # fmt: skip
    if d.get("hidden"):
        out += ["", f"Square product that hides a fixed cost of {format_s(d['hidden'][0]['fixed_s'])} (80 %)"]
        out += columns([[_key(h), f"N = {h['gemm_size']:.0f}"] for h in d["hidden"]], width=width)
    if d.get("in_flight"):
        out += ["", f"Bytes under way at a latency of {format_s(d['in_flight'][0]['latency_s'])} (Little's law)"]
        out += columns([[f["what"], f"{format_bytes(f['bytes_to_fill'])} fill {format_bytes_per_s(f['bytes_per_s'])}",
                         f"{format_bytes(f['in_flight_bytes'])} give {format_bytes_per_s(f['reached_bytes_per_s'])}"
                         if "in_flight_bytes" in f else ""] for f in d["in_flight"]], width=width)  # fmt: skip
    return out


def mix_lines(mix: Mapping[str, Any]) -> list[str]:
    """Return the peak of work in several element types."""
    parts = ", ".join(
        f"{format_ratio(p['share_of_flop'])} in {p['dtype']} at {_rate(p['flop_per_s'])}" for p in mix["parts"]
    )
    return [
        f"peak of the mix {_rate(mix['flop_per_s'])}: {parts}; parts that share units take their times one after the other"
    ]


def share_lines(d: Mapping[str, Any]) -> list[str]:
    """Return what a rate is of a peak, and of which."""
    out = [f"achieved {format_flop_per_s(d['achieved_flop_per_s'])}"]
    share = d["share"]
    if isinstance(share, Unknown):
        return [*out, f"share of peak unknown: {share.reason}", *(f"  needs: {n}" for n in share.needs)]
    named = d["peak_from"]
    which = named if isinstance(named, str) else _named_peak(named)
    out.append(f"peak {format_flop_per_s(d['peak_flop_per_s'])}: {which}")
    if isinstance(share, Implausible):
        return [*out, f"implausible: {share.value:.2f} times the peak", *(f"  suspect: {s}" for s in share.suspects)]
    out.append(f"share of peak {format_ratio(share)}")
    if "shortfall" in d:
        out.append(d["shortfall"]["text"])
    return out


def _named_peak(p: Mapping[str, Any]) -> str:
    clock = f" at {format_hz(p['clock_hz'])}" if p["clock_hz"] else ""
    return f"{p['kind']}{clock}, {_key(p)}, dense; {_receipt(p)}"


def match_lines(name: str, found: Match) -> list[str]:
    """Return the answer to "which product is this?"."""
    shown = name if len(name) <= 80 else name[:77] + "..."
    if found.sku is not None:
        return [f"{shown!r} is {found.sku.slug}: {found.sku.name}", f"  because: {found.reason}"]
    out = [f"{shown!r} is {found.status}: {found.reason}"]
    if found.candidates:
        word = "could be" if found.status == "ambiguous" else "nearest names, for reading only"
        out.append(f"  {word}: {', '.join(found.candidates)}")
    return [*out, *(f"  needs: {n}" for n in found.needs)]


def device_lines(found: Detection, *, width: int | None = None) -> list[str]:
    """Return the devices of a machine with the product of each, in lines of at most `width` characters."""
    out: list[str] = []
    for d in found.devices:
        out.append(f"{d.kind} {d.index}: {d.name or 'no name'} ({d.source})")
        out += [f"  {line}" for line in _device(d)]
    out += [f"not asked: {n.reason}" for n in found.notes]
    return _fitted(out, width)


def _fitted(lines: Sequence[str], width: int | None) -> list[str]:
    return list(lines) if width is None else [part for line in lines for part in _hanging(line, width)]


def _hanging(line: str, width: int) -> list[str]:
    """Return a line in parts; what does not fit goes on below it, further in."""
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line.lstrip(), max(width, 20), initial_indent=indent, subsequent_indent=f"{indent}  ")


def _device(d: Device) -> list[str]:
    lines = []
    if d.match.sku is not None:
        lines.append(f"{d.match.sku.slug}: {d.match.reason}")
    else:
        lines.append(f"{d.match.status}: {d.match.reason}")
        if d.match.candidates:
            lines.append(f"could be: {', '.join(d.match.candidates)}")
    if d.family is not None:
        units = ", ".join(f"{u.name} {u.per_group} x {u.width_bits or 'matrix'}" for u in d.family.units)
        lines.append(f"family {d.family.slug}: {units}")
    facts = [
        format_bytes(d.memory_bytes) if d.memory_bytes else "",
        f"PCI {d.pci}" if d.pci else "",
        format_hz(d.clock_hz) if d.clock_hz else "",
        f"limit {d.power_limit_w:g} W" if d.power_limit_w else "",
    ]
    if any(facts):
        lines.append(", ".join(f for f in facts if f))
    return lines


def list_lines(skus: Sequence[tuple[Sku, Mapping[str, Any]]], *, width: int | None = None) -> list[str]:
    """Return the catalogue as a table: short name, product, bf16 or f16 peak and memory of one device.

    Where `width` is too narrow for it, product names are left out, and a line says so.
    """
    rows = [["name", "product", "peak", "memory", "bandwidth", ""]]
    for sku, d in skus:
        peak = next((p for p in d["peaks"] if p["dtype"] in ("bf16", "f16") and p["engine"] == "matrix"), None)
        peak = peak or next((p for p in d["peaks"] if p["dtype"] == "f32"), None)
        outer = d["memory"][-1] if d["memory"] and sku.kind != "cpu-family" else None
        rate = outer["bytes_per_s"] if outer else None
        size = ("<= " if outer["configurable"] else "") + format_binary_bytes(outer["capacity_bytes"]) if outer else "-"
        rows.append([
            sku.slug, sku.name, f"{peak['dtype']} {_rate(peak['flop_per_s'])}" if peak else _per_cycle(sku), size,
            format_bytes_per_s(rate) if isinstance(rate, float) else "-",
            f"1 of {sku.package.devices} devices" if sku.package.devices > 1 else "",
        ])  # fmt: skip
    lines = columns(rows, indent="")
    if width is None or max(len(line) for line in lines) <= width:
        return lines
    lines = columns([[r[0], *r[2:]] for r in rows], indent="", width=width)
    return [*lines, "", "without product names: they need a wider terminal, or mansard hardware show NAME"]


def _per_cycle(sku: Sku) -> str:
    """Return what one core of a processor family does in a cycle, at best."""
    rates = [u.per_group * u.fma("f32") * 2.0 for u in sku.units]
    best = max((r for r in rates if is_known(r)), default=None)
    return f"f32 {best:g} FLOP/cycle" if best is not None else "-"
