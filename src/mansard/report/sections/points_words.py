"""Measured points in words: what they come to, what to do first, and names short enough for a bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard.core.units import format_binary_bytes, format_ratio
from mansard.measure.points.conclusions import Element
from mansard.measure.points.result import NOISY_RATIO
from mansard.measure.points.verdict import QUIET_RATIO
from mansard.report.points_text import rate_text, share_text, short_names
from mansard.report.sections.blocks import number, words

#: Characters that the axis of a bar chart has room for.
_BAR_NAME = 42


def headline(elements: Sequence[Element]) -> str:
    """Return what the points of a file come to, in one sentence."""
    done = [e for e in elements if e["state"] == "done"]
    counts: dict[str, int] = {}
    for e in done:
        counts[e.get("verdict") or "not judged"] = counts.get(e.get("verdict") or "not judged", 0) + 1
    other = len(elements) - len(done)
    said = words(f"{n} {verdict}" for verdict, n in sorted(counts.items(), key=lambda c: -c[1]))
    return (
        f"{len(done)} of {len(elements)} points were measured"
        + (f": {said}" if said else "")
        + (f"; {other} failed or could not run here." if other else ".")
    )


def first(elements: Sequence[Element]) -> list[str]:
    """Return what to do first: repeat what is mostly noise, then what is low, above its ceiling, or cannot be true."""
    done = [e for e in elements if e["state"] == "done"]
    names = bar_names(short_names([e["metadata"]["test_name"] for e in done]))
    of = {
        v: [(n, e) for n, e in zip(names, done, strict=True) if e.get("verdict") == v]
        for v in ("noisy", "low", "implausible")
    }
    out = []
    if 2 * len(of["noisy"]) > len(done):
        loads = [
            x for _, e in of["noisy"] if (x := number((e.get("conditions") or {}).get("foreign_ratio"))) is not None
        ]
        span = dict.fromkeys(map(format_ratio, (min(loads), max(loads)))) if loads and max(loads) > QUIET_RATIO else ()
        used = f"; other programs used {' to '.join(span)} of the processors" if span else ""
        wide = f"a 95\u00a0% interval wider than \u00b1{format_ratio(NOISY_RATIO)} that leaves the verdict open"
        out.append(
            f"Try first: measure again on an idle machine. {len(of['noisy'])} of {len(done)} points are noisy ({wide}){used}."
        )
    if of["low"]:
        found = [f"{n} ({share_text(e['metrics'])})" for n, e in of["low"]]
        out.append(f"{'Then look' if out else 'Try first: look'} at what is low: {words(found, 3)}.")
    above = [(n, e) for n, e in of["implausible"] if _is_above(e)]
    if above:
        found = [f"{n} with {rate_text(e['metrics'])}, {share_text(e['metrics']).replace('!', '')}" for n, e in above]
        out.append(f"Above its ceiling, so the point or the ceiling is wrong: {words(found, 3)}.")
    if wrong := [n for n, e in of["implausible"] if not _is_above(e)]:
        out.append(f"Cannot be true: {words(wrong, 3)}; the table says why.")
    return out


def _is_above(element: Element) -> bool:
    """Return whether the one thing that is wrong with a point is that it lies above its ceiling."""
    fatal = {f["code"] for f in (element.get("audit") or {}).get("findings") or () if f.get("fatal")}
    share = element["metrics"].get("share_of_ceiling")
    return isinstance(share, Mapping) and "implausible" in share and fatal <= {"above_ceiling"}


def bar_names(titles: Sequence[str]) -> list[str]:
    """Return a name of each bar; those that would look the same keep what tells them apart, or get a number.

    >>> bar_names(["gemm[jax] k=2", "gemm[jax] k=2"])
    ['gemm[jax] k=2', 'gemm[jax] k=2 #2']
    """
    short = [brief(t) for t in titles]
    out: list[str] = []
    for title, name in zip(titles, short, strict=True):
        chosen = name if short.count(name) == 1 else title
        seen = sum(o == chosen or o.startswith(f"{chosen} #") for o in out)
        out.append(f"{chosen} #{seen + 1}" if seen else chosen)
    return out


def brief(title: str, room: int = _BAR_NAME) -> str:
    """Return the name of a point for a bar or a row: where it is long, the values of its parameters without their names.

    >>> brief("gemm[jax] m=1 k=2"), brief("gemm_generalized[jax] m=2048 k=2048 n=2000 in_dtype=f32")
    ('gemm[jax] m=1 k=2', 'gemm_generalized[jax] 2048 2048 2000 f32')
    """
    if len(title) <= room:
        return title
    head, *rest = title.split(" ")
    return " ".join([head, *map(_value_of, rest)])


def _value_of(word: str) -> str:
    """Return the value of a parameter, bytes with their unit.

    >>> _value_of("m=2048"), _value_of("working_set_bytes=67108864"), _value_of("#2")
    ('2048', '64 MiB', '#2')
    """
    name, _, value = word.partition("=")
    return format_binary_bytes(float(value)) if name.endswith("_bytes") and value.isdigit() else value or word
