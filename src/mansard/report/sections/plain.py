"""Any document as facts and tables: what it says, by the names of its keys, where no picture is made for its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mansard.core.errors import InputError
from mansard.core.units import (
    format_bytes,
    format_bytes_per_s,
    format_flop,
    format_flop_per_s,
    format_hz,
    format_ratio,
    format_s,
)
from mansard.report.sections.blocks import Cell, Facts, Prose, Section, Table, number, reason_of, words
from mansard.report.text import count, intensity

#: Keys that every document begins with; the page shows the environment by itself.
HEADER = frozenset({"schema", "tool_version", "created", "environment"})


def _tokens_per_s(value: float) -> str:
    """Return a rate of tokens in four digits, never as a power of ten.

    >>> _tokens_per_s(1160676.6), _tokens_per_s(636.04)
    ('1,161,000 token/s', '636 token/s')
    """
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f} token/s" if rounded >= 1000 else f"{rounded:g} token/s"


#: Suffix of a key -> how its figure is written. The longest that fits decides.
_WRITE: Mapping[str, Callable[[float], str]] = {
    "_s": format_s, "_bytes": format_bytes, "_flop": format_flop, "_flop_per_s": format_flop_per_s,
    "_bytes_per_s": format_bytes_per_s, "_hz": format_hz, "_ratio": format_ratio, "_flop_per_byte": intensity,
    "_tokens_per_s": _tokens_per_s, "_w": lambda v: f"{v:.4g} W", "_per_s": lambda v: f"{v:.4g} 1/s",
    "_tokens_per_s_and_device": _tokens_per_s, "_share": format_ratio, "_share_of_ceiling": format_ratio,
    "_usd": lambda v: f"{v:.4g} USD", "_usd_per_hour": lambda v: f"{v:.4g} USD/h",
}  # fmt: skip
#: Whole keys that are counts of bytes, FLOP or a share although they have no suffix.
_WHOLE = {k[1:]: w for k, w in _WRITE.items() if len(k) > 3}
#: Parts of a key that stay as they are; everything else is words.
_TITLES = {
    "flop": "FLOP",
    "mfu": "MFU",
    "hfu": "HFU",
    "gpu": "GPU",
    "cpu": "CPU",
    "tpot": "TPOT",
    "ttft": "TTFT",
    "kv": "KV",
}
_SENTENCES = ("notes", "assumed", "findings", "reasons", "ratios_say", "not_asked", "damage", "missing_before_quoting")


def _writer(key: str) -> tuple[Callable[[float], str], str]:
    """Return how a figure under a key is written, and the words of the key without what the writing says."""
    base, per = key, ""
    for tail in ("_per_step", "_per_token", "_per_layer", "_and_device", "_expected", "_trained"):
        if key.endswith(tail) and key != tail[1:]:
            base, per = key[: -len(tail)], tail
    if base in _WHOLE:
        return _WHOLE[base], key
    found = max((s for s in _WRITE if base.endswith(s)), key=len, default="")
    if not found:
        return count, key
    # A rate keeps its words, since "FLOP" alone would say something else; a share keeps "share".
    kept = base if "_per_" in found or found.endswith(("share", "ceiling")) else base[: -len(found)]
    return _WRITE[found], (kept or base) + per


def title(key: str) -> str:
    """Return the words of a key, without the unit that its figures carry.

    >>> title("step_s"), title("weight_bytes"), title("tokens_per_s"), title("flop_per_byte"), title("miss_bytes_per_step")
    ('step', 'weight', 'tokens/s', 'FLOP/byte', 'miss/step')
    """
    words_ = " ".join(_TITLES.get(w, w) for w in _writer(key)[1].split("_"))
    return words_.replace(" per s", "/s").replace(" per byte", "/byte")


def value_text(key: str, value: Any) -> str:
    """Return the value of a key for reading, with its unit; why it is not known where it is not.

    >>> value_text("step_s", 0.0125), value_text("hit_ratio", 0.5), value_text("fits", True), value_text("flop", 2e12)
    ('12.5 ms', '50 %', 'yes', '2.00 TFLOP')
    >>> value_text("step_s", {"unknown": "no clock", "needs": []}), value_text("devices", None)
    ('? no clock', '')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    known = number(value)
    if known is not None:
        mark = "! " if isinstance(value, Mapping) else ""
        return mark + _writer(key)[0](known)
    why = reason_of(value)
    if why:
        return f"? {why}"
    if isinstance(value, Mapping):
        return ", ".join(f"{title(str(k))} {value_text(str(k), v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list | tuple):
        return words((value_text(key, v) for v in value), most=12)
    return str(value)


def cell(key: str, value: Any) -> Cell:
    """Return the value of a key as a cell: `?` where it is not known, a dash where there is none."""
    known = number(value) if not isinstance(value, bool) else None
    if known is not None:
        return Cell(value_text(key, value), known)
    if value is None:
        return Cell("\u2013")
    return Cell("?") if reason_of(value) else Cell(value_text(key, value))


def table(
    label: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = (), *, filter_by: str | None = None,
    swatch: str | None = None, notes: Sequence[str] = (),
) -> Table:  # fmt: skip
    """Return objects as a table.

    Args:
        label: What it lists.
        rows: Objects; nested ones are told in words.
        columns: Keys in order; empty takes every key that some row has a value for.
        filter_by, swatch: Keys of the column to filter by, and of the one whose values have colours.
        notes: Sentences below it; why figures are not known is added.
    """
    keys = list(columns) or list(dict.fromkeys(k for r in rows for k, v in r.items() if v is not None))
    # What no row has is no column.
    keys = [k for k in keys if any(r.get(k) not in (None, "", [], {}) for r in rows)] or keys[:1]
    figures = {
        k for k in keys if any(number(r.get(k)) is not None and not isinstance(r.get(k), bool) for r in rows)
    }  # fmt: skip
    figures |= {k for k in keys if k not in figures and all(reason_of(r.get(k)) or r.get(k) is None for r in rows)}
    texts = frozenset(i for i, k in enumerate(keys) if k not in figures)
    body = [
        [cell(k, r.get(k)) if k in figures else value_text(k, r.get(k)) for k in keys] for r in rows
    ]  # fmt: skip
    reasons: dict[str, list[str]] = {}
    for r in rows:
        for k in keys:
            why = reason_of(r.get(k)) if k in figures else ""
            if why and title(k) not in reasons.setdefault(why, []):
                reasons[why].append(title(k))
    told = [f"? in {words(names)}: {why}." for why, names in list(reasons.items())[:6]]
    return Table(
        label=label, columns=[title(k) for k in keys], rows=body, texts=texts, total=len(rows), notes=[*notes, *told],
        filter_by=keys.index(filter_by) if filter_by in keys else None, swatch=keys.index(swatch) if swatch in keys else None,
    )  # fmt: skip


def facts(document: Mapping[str, Any], keys: Sequence[str] = ()) -> Facts:
    """Return the plain values of an object; those that are empty or objects themselves are left out.

    Args:
        document: The object.
        keys: Keys in order; empty takes every key.
    """
    chosen = keys or [k for k in document if k not in HEADER]
    rows = []
    for k in chosen:
        value = document.get(k)
        if value is None or value == [] or value == {} or _is_table(value) or _is_object(value):
            continue
        rows.append((k, value_text(k, value)))
    # Two keys that differ in their unit alone keep it.
    names = [title(k) for k, _ in rows]
    told = [n if names.count(n) == 1 else " ".join(k.split("_")) for n, (k, _) in zip(names, rows, strict=True)]
    return Facts(rows=[(n, text) for n, (_, text) in zip(told, rows, strict=True)])


def prose(document: Mapping[str, Any], keys: Sequence[str] = _SENTENCES) -> Prose:
    """Return the sentences of a document: notes, assumptions, findings."""
    lines = []
    for k in keys:
        word = {"assumed": "Assumed: ", "missing_before_quoting": "Missing before it is quoted: "}.get(k, "")
        for item in document.get(k) or ():
            text = item.get("text") or reason_of(item) if isinstance(item, Mapping) else item
            lines.append(f"{word}{text or value_text(k, item)}")
    return Prose(lines=list(dict.fromkeys(lines)))


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) and not reason_of(v) for v in value)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping) and number(value) is None and not reason_of(value)


def document(content: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return any document as facts and tables, in the order of its keys.

    Raises:
        InputError: it has nothing but its header.
    """
    kind = str(content["schema"]).partition("/")[0].replace("_", " ").replace("-", " ")
    blocks: list[Any] = [facts(content, [k for k in content if k not in HEADER and k not in _SENTENCES])]
    blocks += [b for k, v in content.items() if k not in HEADER and k not in _SENTENCES for b in _blocks(k, v)]
    blocks.append(prose(content))
    blocks = [
        b for b in blocks if not (isinstance(b, Facts) and not b.rows) and not (isinstance(b, Prose) and not b.lines)
    ]
    if not blocks:
        raise InputError(
            f"{name} is a {content['schema']} document that holds nothing to show", hint="the file may be cut short"
        )
    return Section(key=key, title=kind.capitalize(), small=name, blocks=blocks[:40])


def _blocks(key: str, value: Any) -> list[Any]:
    """Return the tables and lists under one key, nested objects one level down."""
    name = title(key)
    if _is_table(value):
        return [table(name.capitalize(), value)]
    if not _is_object(value) or not value:
        return []
    inner = [v for v in value.values() if v is not None]
    if inner and all(_is_object(v) for v in inner):
        return [table(name.capitalize(), [{name: k, **v} for k, v in value.items() if v is not None])]
    plain = {f"{key}_{k}": v for k, v in value.items() if not _is_table(v) and not _is_object(v)}
    found: list[Any] = [facts(plain)] if facts(plain).rows else []
    return found + [b for k, v in value.items() if _is_table(v) or _is_object(v) for b in _blocks(f"{key}_{k}", v)][:8]
