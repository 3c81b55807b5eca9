"""The reference of every benchmark's parameters as Markdown, made from the registry so that it cannot go stale."""

from __future__ import annotations

from mansard.measure.config.common import COMMON, default_of
from mansard.measure.config.published import PUBLISHED
from mansard.measure.points.benchmark import REQUIRED, Benchmark, Parameter
from mansard.measure.points.registry import all_benchmarks

BEGIN = "<!-- parameters: begin -->"
END = "<!-- parameters: end -->"


def parameter_reference() -> str:
    """Return one table of what every benchmark has, and one for each benchmark, sorted by area and name."""
    by_name = {b.name: b for b in all_benchmarks().values()}
    parts = ["### Every benchmark", "", *_table(COMMON)]
    for area in sorted({b.area for b in by_name.values()}):
        parts += ["", f"### {area.replace('_', ' ').capitalize()}"]
        for benchmark in sorted((b for b in by_name.values() if b.area == area), key=lambda b: b.name):
            parts += ["", *_benchmark(benchmark)]
    absent = sorted(name for name in PUBLISHED if name not in all_benchmarks())
    if absent:
        parts += ["", "### Names of the published suite without a benchmark here", ""]
        parts += ["Their points are planned and waived: " + ", ".join(f"`{name}`" for name in absent) + "."]
    return "\n".join(parts) + "\n"


def _benchmark(benchmark: Benchmark) -> list[str]:
    also = f" (also {', '.join(f'`{a}`' for a in benchmark.aliases)})" if benchmark.aliases else ""
    impls = ", ".join(f"`{name}`" for name in benchmark.implementations)
    head = [f"**`{benchmark.name}`**{also}: {benchmark.summary}. Implementations: {impls}."]
    return [*head, "", *_table(benchmark.parameters)] if benchmark.parameters else head


def _table(parameters: tuple[Parameter, ...]) -> list[str]:
    rows = ["| parameter | kind | default | meaning |", "|---|---|---|---|"]
    for p in parameters:
        names = ", ".join(f"`{name}`" for name in (p.name, *p.aliases))
        kind = " \\| ".join(str(c) for c in p.choices) if p.choices else p.kind
        if p.minimum is not None:
            kind += f", at least {p.minimum:g}"
        rows.append(f"| {names} | {kind} | {_default(p)} | {p.text.replace('|', chr(92) + '|')} |")
    return rows


def _default(parameter: Parameter) -> str:
    if parameter.default is REQUIRED:
        return "required"
    value = default_of(parameter)
    if value is None or value == "":
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
