"""Which parameter of which benchmark a written word means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mansard.measure.config.common import COMMON, COMMON_NAMES, default_of
from mansard.measure.config.published import ALSO_CALLED, PUBLISHED, WITHOUT_EFFECT, canonical
from mansard.measure.config.yamlfile import Place, unknown_name
from mansard.measure.points.benchmark import REQUIRED, Benchmark, Parameter
from mansard.measure.points.registry import all_benchmarks


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a written word means.

    Args:
        parameter: The parameter; None for a word that is accepted without effect.
        why: Why it has no effect.
    """

    parameter: Parameter | None = None
    why: str = ""


def all_names() -> tuple[str, ...]:
    """Return every benchmark name that a configuration may use: registered ones and the published suite's."""
    return tuple(dict.fromkeys([*all_benchmarks(), *PUBLISHED]))


def find_benchmark(name: str, place: Place | None) -> Benchmark | None:
    """Return the benchmark of a written name; None for a name of the published suite that is not here.

    Raises:
        UsageError: the name is neither.
    """
    registered = all_benchmarks()
    for word in (name, canonical(name)):
        if word in registered:
            return registered[word]
    if canonical(name) in PUBLISHED:
        return None
    raise unknown_name(place, "benchmark", name, all_names())


def meaning_of(word: str, benchmark: Benchmark, name: str) -> Meaning | None:
    """Return what `word` means for a benchmark that was written as `name`; None if it means nothing.

    A benchmark's own parameters come first, then those that every benchmark has, then the published suite's other
    words for them, then its parameters that change nothing.
    """
    own = _by_word(benchmark.parameters)
    if word in own:
        return Meaning(parameter=own[word])
    common = _by_word(COMMON)
    if word in common and word != "dtype":
        return Meaning(parameter=common[word])
    other = ALSO_CALLED.get(word)
    if other is not None and other in own and word in (*PUBLISHED.get(canonical(name), ()), *_suite_words(benchmark)):
        return Meaning(parameter=own[other])
    if word in WITHOUT_EFFECT and word in (*PUBLISHED.get(canonical(name), ()), *_suite_words(benchmark)):
        return Meaning(why=WITHOUT_EFFECT[word])
    return None


def known_words(benchmark: Benchmark | None, name: str) -> tuple[str, ...]:
    """Return every word that an entry of this name may give, for the hint of an error."""
    published = PUBLISHED.get(canonical(name), ())
    if benchmark is None:
        return (*published, *sorted(COMMON_NAMES))
    words = [word for p in benchmark.parameters for word in (p.name, *p.aliases)]
    more = [w for w in (*published, *COMMON_NAMES) if meaning_of(w, benchmark, name) is not None]
    return tuple(dict.fromkeys([*words, *more]))


def filled(benchmark: Benchmark, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return all parameters of a benchmark with the defaults filled in, and the names of required ones not given."""
    out: dict[str, Any] = {}
    lacking: list[str] = []
    for parameter in benchmark.parameters:
        if parameter.name in given:
            out[parameter.name] = given[parameter.name]
        elif parameter.default is REQUIRED:
            lacking.append(parameter.name)
        else:
            out[parameter.name] = default_of(parameter)
    return out, tuple(lacking)


def point_name(benchmark: Benchmark, impl: str, params: Mapping[str, Any]) -> str:
    """Return the stable name of a point: it depends on what is done and on nothing else that stands in the file.

    The first parameter, sizes and element types are always in it; other parameters where they differ from their
    default. How long a point is measured, and when, is not part of its name.
    """
    words = [f"{benchmark.name}[{impl}]"]
    for index, parameter in enumerate(benchmark.parameters):
        value = params.get(parameter.name)
        if value is None or value == "" or not (index == 0 or _is_shown(parameter, value)):
            continue
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, float):
            text = repr(int(value)) if value.is_integer() else repr(value)
        else:
            text = str(value)
        words.append(f"{parameter.name}={text}")
    if params.get("cache") == "cold":  # another figure, not another way to take it
        words.append("cache=cold")
    return " ".join(words)


def _is_shown(parameter: Parameter, value: Any) -> bool:
    if parameter.default is REQUIRED or parameter.kind == "dtype":
        return True
    default = default_of(parameter)
    # A size has a default above 1; a flag, a factor and a seed have not.
    return bool(value != default or (parameter.kind in ("int", "float") and default is not None and default > 1))


def _by_word(parameters: Iterable[Parameter]) -> dict[str, Parameter]:
    return {word: p for p in parameters for word in (p.name, *p.aliases)}


def _suite_words(benchmark: Benchmark) -> tuple[str, ...]:
    """Return what the suite's files may give to any of a benchmark's names."""
    return tuple(w for name in (benchmark.name, *benchmark.aliases) for w in PUBLISHED.get(name, ()))
