"""Turn a recording into a `RunTrace`, whatever framework the program used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mansard.core.errors import UndecidedError
from mansard.trace.recorders.record import ending, read_meta
from mansard.trace.run import Finding, RunTrace


def load_run(directory: Path) -> RunTrace:
    """Load a recording.

    Where a program used both frameworks, the one whose operations take more time is taken, and a finding says so.

    Args:
        directory: What `record` wrote.

    Raises:
        InputError: There is no recording, or its files cannot be read.
        UndecidedError: The program used no framework, or nothing was profiled.
    """
    meta = read_meta(directory)
    names = [n for n in meta["frameworks"] if _files(meta, n)]
    if not names:
        used = ", ".join(meta["frameworks"])
        raise UndecidedError(
            f"Nothing was profiled: the program used {used}, but ended too early."
            if used
            else "Nothing was profiled: the program imported neither torch nor jax.",
            hint="Run a program that uses PyTorch or JAX; for others, measure its machine and model its work.",
            code="nothing_profiled" if used else "no_framework",
        )
    runs = {name: _load(name, Path(directory), meta) for name in names}
    chosen = max(runs, key=lambda name: int((runs[name].end_ns - runs[name].start_ns).sum()))
    run = runs[chosen]
    findings = list(run.findings)
    findings += [f for f in _recorded(meta) if f not in findings]
    if len(runs) > 1:
        other = next(n for n in runs if n != chosen)
        text = f"The program used torch and jax; {chosen} took more time and is shown, {other} is not."
        findings.append(Finding(code="two_frameworks", text=text))
    return replace(run, findings=tuple(findings))


def _files(meta: dict[str, Any], framework: str) -> bool:
    return any(w["kind"] == "profiled" and w["end_ns"] and w["files"].get(framework) for w in meta["windows"])


def _load(framework: str, directory: Path, meta: dict[str, Any]) -> RunTrace:
    if framework == "torch":
        from mansard.trace.torch_run import load_torch_run

        return load_torch_run(directory, meta)
    from mansard.trace import jax_run

    return jax_run.load(directory, meta)


def _recorded(meta: dict[str, Any]) -> list[Finding]:
    """Findings of the recorder, and how the program ended."""
    return [Finding(code=f["code"], text=f["text"]) for f in meta["findings"]] + ending(meta)
