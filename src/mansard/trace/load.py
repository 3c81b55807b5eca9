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
        UndecidedError: The program used no framework, nothing was profiled, or no operation ran.
    """
    meta = read_meta(directory)
    names = [n for n in meta["frameworks"] if _files(meta, n)]
    if not names:
        raise _nothing_profiled(meta)
    runs = {name: _load(name, Path(directory), meta) for name in names}
    if not any(run.op.size or run.wait_start_ns.size for run in runs.values()):
        raise UndecidedError(
            f"Nothing to judge: the program imported {' and '.join(names)}, but ran no operation while it was recorded.",
            hint="Run a program that computes something with PyTorch or JAX in its own process. Of a launcher the processes are not "
            "recorded: put mansard behind it, `torchrun --no-python mansard run SCRIPT`.",
            code="nothing_ran",
        )
    chosen = max(runs, key=lambda name: int((runs[name].end_ns - runs[name].start_ns).sum()))
    run = runs[chosen]
    findings = list(run.findings)
    findings += [f for f in _recorded(meta) if f not in findings]
    if len(runs) > 1:
        other = next(n for n in runs if n != chosen)
        text = f"The program used torch and jax; {chosen} took more time and is shown, {other} is not."
        findings.append(Finding(code="two_frameworks", text=text))
    return replace(run, findings=tuple(findings), cores_used=_cores_used(meta))


def _cores_used(meta: dict[str, Any]) -> float | None:
    """Return the processor time of the profiled windows over their wall time; None where it was not counted."""
    used_s = wall_s = 0.0
    for window in meta["windows"]:
        before, after = window.get("rusage_start") or {}, window.get("rusage_end") or {}
        if window["kind"] != "profiled" or not window["end_ns"] or "user_s" not in before or "user_s" not in after:
            continue
        used_s += sum(float(after[k]) - float(before[k]) for k in ("user_s", "system_s"))
        wall_s += (int(window["end_ns"]) - int(window["start_ns"])) * 1e-9
    return used_s / wall_s if wall_s > 0 else None


def _nothing_profiled(meta: dict[str, Any]) -> UndecidedError:
    used = " and ".join(meta["frameworks"])
    hint = "Run a program that uses PyTorch or JAX; a kernel of another is judged from Python: mansard.core.judge, see README.md"
    if used:
        text = f"Nothing was profiled: the program imported {used}, but ran nothing with it, or ended before it did."
        return UndecidedError(text, hint=hint, code="nothing_profiled")
    if meta["state"] != "finished":
        text = "Nothing was profiled: the program was killed, or became another one (exec), before it imported torch or jax."
        hint = "Where it starts another program, run that one."
    else:
        text = "Nothing was profiled: the program imported neither torch nor jax."
    return UndecidedError(text, hint=hint, code="no_framework")


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
