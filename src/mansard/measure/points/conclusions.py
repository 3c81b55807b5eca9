"""What several points say together: size laws, padding gains, cliffs, regimes, drift, comparisons, time against memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mansard.core.ceilings import MemoryLevel
from mansard.core.collectives import fit_alpha_beta
from mansard.core.units import format_binary_bytes, format_flop_per_s, format_ratio, format_s
from mansard.core.unknown import MaybeFloat, Unknown, is_known
from mansard.measure.points.cliffs import cliffs, labelled, to_json
from mansard.measure.points.conditions import BUSY_RATIO, STEAL_RATIO
from mansard.measure.points.output import result_of_element
from mansard.measure.points.regimes import two_regimes
from mansard.measure.points.side_by_side import comparisons, pareto_tables, sentence
from mansard.measure.points.sustained import drift

Element = Mapping[str, Any]
LEAST_FOR_LAW = 3
WORST_OF_LAW = 0.5  # relative distance of a point up to which a size law is called one


def conclusions(elements: Sequence[Element], levels: Sequence[MemoryLevel] = ()) -> list[dict[str, Any]]:
    """Return what the points of a run say together, each with a `kind` and the benchmark and implementation it is of.

    Args:
        elements: Elements of `detailed.json`; those that failed, were waived or are implausible are left out, except of
            comparisons, where they are listed with the reason.
        levels: Memory levels, nearest first.
    """
    sound = [e for e in elements if e["state"] == "done" and e.get("verdict") != "implausible"]
    found: list[dict[str, Any]] = []
    for (name, impl), members in _families(sound).items():
        head = {"benchmark": name, "impl": impl}
        if name == "gemm_sweep":
            found += [{**head, **law} for law in size_laws(members)]
        if name == "gemm_alignment":
            found += [{**head, **gain} for gain in padding_gains(members)]
        if name == "memory_sweep":
            found += [{**head, **curve} for curve in working_set_curves(members, levels)]
    for element in sound:
        meta = element["metadata"]
        head = {"benchmark": meta["benchmark_name"], "impl": meta["impl"], "test_name": meta["test_name"]}
        found += [{**head, **one} for one in _of_one(element)]
    found += comparisons([result_of_element(e) for e in elements])
    found += pareto_tables([result_of_element(e) for e in sound])
    return found


def _families(elements: Sequence[Element]) -> dict[tuple[str, str], list[Element]]:
    groups: dict[tuple[str, str], list[Element]] = {}
    for e in elements:
        groups.setdefault((e["metadata"]["benchmark_name"], e["metadata"]["impl"]), []).append(e)
    return groups


def seconds_of(element: Element) -> list[float]:
    """Return the times of one operation, in their order [s]."""
    return [float(t) * 1e-3 for t in element["raw_times_ms"]]


def windows_of(element: Element) -> list[list[float]]:
    """Return the times in the windows they were taken in [s]."""
    seconds, at, parts = seconds_of(element), 0, []
    for _, size in (element.get("samples") or {}).get("windows") or [(0, len(seconds))]:
        parts.append(seconds[at : at + int(size)])
        at += int(size)
    return [p for p in parts if p]


def _split(elements: Sequence[Element], *without: str) -> list[list[Element]]:
    """Return groups of points that differ in the parameters of `without` alone."""
    groups: dict[str, list[Element]] = {}
    for e in elements:
        kept = {k: v for k, v in e["metadata"]["params"].items() if k not in without}
        groups.setdefault(repr(sorted(kept.items(), key=lambda kv: kv[0])), []).append(e)
    return list(groups.values())


def size_laws(elements: Sequence[Element]) -> Iterator[dict[str, Any]]:
    """Yield t = T0 + FLOP / rate of every sweep over N, with N at which half of the rate is reached.

    Source: Hockney, Parallel Computing 20(3), 1994 (n_half), with FLOP in the place of bytes.
    """
    for members in _split(elements, "size"):
        samples = {float(e["metrics"]["flop"]): seconds_of(e) for e in members}
        fit = fit_alpha_beta(samples) if len(samples) >= LEAST_FOR_LAW else Unknown("a law needs three sizes")
        if isinstance(fit, Unknown):
            yield {"kind": "size_law", "law": fit.to_json()}
            continue
        half = fit.n_half_bytes
        curve = sorted((int(e["metadata"]["params"]["size"]), _rate(e), e["metrics"].get("mfu_ratio")) for e in members)
        yield {
            "kind": "size_law", "model": "t = T0 + FLOP / rate", "fixed_s": fit.alpha_s, "fixed_ci95_s": list(fit.alpha_ci95_s),
            "flop_per_s": _plain(fit.beta_bytes_per_s),
            "half_rate_n": (half / 2.0) ** (1.0 / 3.0) if is_known(half) else _plain(half),
            "error_ratio": fit.error_ratio,
            "points": [{"n": n, "flop_per_s": rate, "mfu_ratio": mfu} for n, rate, mfu in curve],
        }  # fmt: skip


def _plain(value: MaybeFloat) -> Any:
    return value.to_json() if isinstance(value, Unknown) else value


def _rate(element: Element) -> float:
    return float(element["metrics"]["flop"]) / float(element["metrics"]["median_s"])


def padding_gains(elements: Sequence[Element]) -> Iterator[dict[str, Any]]:
    """Yield for every padded size how much sooner the same result is there, the padded work included.

    A gain is claimed only where the intervals of the two times do not overlap.
    """
    for members in _split(elements, "size"):
        base = int(members[0]["metadata"]["params"]["base"])
        own = next((e for e in members if int(e["metadata"]["params"]["size"]) == base), None)
        if own is None:
            continue
        for e in sorted(members, key=lambda e: int(e["metadata"]["params"]["size"])):
            size = int(e["metadata"]["params"]["size"])
            if size == base:
                continue
            before, after = own["metrics"], e["metrics"]
            gain = float(before["median_s"]) / float(after["median_s"])
            low = float(before["ci95_low_s"]) / float(after["ci95_high_s"])
            high = float(before["ci95_high_s"]) / float(after["ci95_low_s"])
            verdict = "pad" if low > 1.0 else "do not pad" if high < 1.0 else "no difference seen"
            yield {
                "kind": "padding", "base": base, "padded": size, "gain_ratio": gain, "ci95": [low, high], "verdict": verdict,
                "extra_flop_ratio": float(after["flop"]) / float(before["flop"]) - 1.0,
                "flop_per_s": [_rate(own), _rate(e)],
            }  # fmt: skip


def working_set_curves(elements: Sequence[Element], levels: Sequence[MemoryLevel]) -> Iterator[dict[str, Any]]:
    """Yield the sweep over the working set, its points labelled, with the cliffs found in the data."""
    for members in _split(elements, "working_set_bytes"):
        points = [
            (float(e["metrics"]["working_set_bytes"]), float(e["metrics"]["bytes"]) / float(e["metrics"]["median_s"]))
            for e in members
        ]
        noisy = {p[0] for p, e in zip(points, members, strict=True) if e.get("verdict") == "noisy"}
        clear = [p for p in points if p[0] not in noisy]
        told = len(clear) > len(points) / 2.0  # of a sweep that is mostly noise no cliff is said
        own = {float(e["metrics"]["working_set_bytes"]): e["metrics"].get("level") for e in members}
        scope = "core" if int(members[0]["metadata"]["params"].get("threads") or 0) == 1 else "node"
        facts = members[0]["audit"].get("benchmark", {})
        yield {
            "kind": "working_set", "mix": facts.get("mix"), "page": facts.get("page"), "store": facts.get("store"),
            "scope": scope, "unit": "B/s", "points": [{**p, "level": p["level"] or own[p["working_set_bytes"]]} for p in to_json(labelled(points, levels, scope, clear if told else ()))],
            "cliffs": [{"after_bytes": size, "rate_ratio": ratio} for size, ratio in cliffs(clear if told else ())],
            "noisy_points": len(noisy),
        }  # fmt: skip


def _of_one(element: Element) -> Iterator[dict[str, Any]]:
    """Yield what the samples of one point say of the machine: two regimes, and a rate that does not last.

    On a busy machine both would be the doing of others, so nothing is said.
    """
    seen = element.get("conditions") or {}
    if (seen.get("foreign_ratio") or 0.0) > BUSY_RATIO or (seen.get("steal_ratio") or 0.0) > STEAL_RATIO:
        return
    found = two_regimes(windows_of(element))
    if found is not None:
        yield {"kind": "two_regimes", **found.to_json()}
    lasting = drift(seconds_of(element), int((element.get("samples") or {}).get("per_sample") or 1))
    if lasting is not None and (lasting.throttles or element["metadata"]["benchmark_name"] == "gemm_throttling"):
        yield {"kind": "sustained", **lasting.to_json()}


def in_words(conclusion: Mapping[str, Any]) -> str:
    """Return a conclusion as one line.

    >>> in_words({"kind": "padding", "benchmark": "gemm_alignment", "impl": "jax", "base": 4000, "padded": 4096,
    ...           "gain_ratio": 1.25, "ci95": [1.2, 1.3], "verdict": "pad", "extra_flop_ratio": 0.0737})
    'gemm_alignment[jax]: 4000 padded to 4096 is 1.25x as fast (1.20 to 1.30), its 7.4 % more work included: pad'
    """
    name = f"{conclusion['benchmark']}[{conclusion['impl']}]"
    return f"{conclusion.get('test_name') or name}: {_WORDS[conclusion['kind']](conclusion)}"


def _size_law_words(c: Mapping[str, Any]) -> str:
    rate, half = c.get("flop_per_s"), c.get("half_rate_n")
    if not isinstance(rate, float):
        return "the sweep gives no law of time over size"
    if float(c["error_ratio"]) > WORST_OF_LAW:
        return f"times do not follow T0 + FLOP / rate: a point is {format_ratio(float(c['error_ratio']))} away"
    if not isinstance(half, float):
        return f"{format_flop_per_s(rate)} at large N; a fixed cost per call cannot be told from the noise"
    return (
        f"a call costs {format_s(float(c['fixed_s']))} and then {format_flop_per_s(rate)}; half of that rate is reached at "
        f"N = {half:.0f}, and no point is farther than {format_ratio(float(c['error_ratio']))} from that"
    )


def _padding_words(c: Mapping[str, Any]) -> str:
    low, high = c["ci95"]
    return (
        f"{c['base']} padded to {c['padded']} is {c['gain_ratio']:.2f}x as fast ({low:.2f} to {high:.2f}), its "
        f"{format_ratio(float(c['extra_flop_ratio']))} more work included: {c['verdict']}"
    )


def _working_set_words(c: Mapping[str, Any]) -> str:
    drops = [f"{format_binary_bytes(d['after_bytes'])} (to {format_ratio(d['rate_ratio'])})" for d in c["cliffs"]]
    noisy, count = int(c.get("noisy_points") or 0), len(c["points"])
    if noisy and 2 * noisy >= count:
        return f"{noisy} of {count} points are noisy: where the {c['mix']} bandwidth drops is not said"
    wrong = sorted({str(p["level"]).upper() for p in c["points"] if p["confirmed"] is False})
    text = f"{c['mix']} bandwidth drops after {', '.join(drops)}" if drops else f"{c['mix']} bandwidth has no cliff"
    return text + (f"; the stated size of {', '.join(wrong)} is not confirmed" if wrong else "")


def _regime_words(c: Mapping[str, Any]) -> str:
    return (
        f"two regimes: {format_s(c['fast_s'])} in {format_ratio(c['fast_share_ratio'])} of the samples, else "
        f"{format_s(c['slow_s'])} ({c['slow_over_fast_ratio']:.2f}x); {c['switches']} switches in {c['windows']} windows"
    )


def _sustained_words(c: Mapping[str, Any]) -> str:
    low, high = c["ci95"]
    return (
        f"over {format_s(c['duration_s'])} one operation went from {format_s(c['burst_s'])} to {format_s(c['sustained_s'])} "
        f"({c['sustained_over_burst_ratio']:.3f}x, {low:.3f} to {high:.3f}): "
        + ("it throttles" if c["throttles"] else "the rate is sustained")
    )


_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "size_law": _size_law_words, "padding": _padding_words, "working_set": _working_set_words,
    "two_regimes": _regime_words, "sustained": _sustained_words, "comparison": sentence, "pareto": sentence,
}  # fmt: skip
