"""Benchmarks by name. Their modules import no framework, so that a plan is made without one."""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil

from mansard.core.errors import UsageError
from mansard.measure import benchmarks
from mansard.measure.points.benchmark import Benchmark


@functools.cache
def all_benchmarks() -> dict[str, Benchmark]:
    """Return every benchmark by its name."""
    found: dict[str, Benchmark] = {}
    for module in pkgutil.iter_modules(benchmarks.__path__):
        for benchmark in getattr(importlib.import_module(f"{benchmarks.__name__}.{module.name}"), "BENCHMARKS", ()):
            for name in (benchmark.name, *benchmark.aliases):
                if name in found:
                    raise RuntimeError(f"two benchmarks are called {name!r}")
                found[name] = benchmark
    return found


def benchmark_named(name: str) -> Benchmark:
    """Return a benchmark by its name or an alias.

    Raises:
        UsageError: there is none of that name.
    """
    known = all_benchmarks()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "`mansard measure --list` names them all"
    raise UsageError(f"no benchmark is called {name!r}", hint=hint, code="unknown_benchmark")
