"""Run `mansard run` on programs whose bottleneck is known, and score its answers.

Each program runs twice: alone, with its own clock (the truth), then under `mansard run -o FILE`, which leaves the
program its stdout, so that both outputs can be compared byte by byte. Run it on an idle machine.

    python benchmarks/bottleneck_programs/run.py                # the ten programs of the two frameworks
    python benchmarks/bottleneck_programs/run.py --group all    # and the variants, the real programs, the examples
    python benchmarks/bottleneck_programs/run.py --only mix --keep out/scores
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TRUTH_FILE = ROOT / "tests" / "programs" / "truth.py"
AREAS = ("compute", "memory", "network", "host", "latency")
WARM_UP = 3  # steps the program's own clock leaves out
SHARE_POINTS, FLOP_RATIO, FLOP_RATIO_REAL, ATTRIBUTED = 10.0, 0.01, 0.02, 0.95


def load_truth() -> Any:
    """Import the truth by path: it is no package."""
    spec = importlib.util.spec_from_file_location("program_truth", TRUTH_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["program_truth"] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, kw_only=True)
class Outcome:
    code: int
    stdout: str
    stderr: str
    wall_s: float


def execute(command: list[str], truth: Any, stdin: str, limit_s: float) -> Outcome:
    """Run a command; after `limit_s` it and everything it started are ended."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=truth.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    code = None
    try:
        stdout, stderr = process.communicate(stdin if truth.stdin else "", timeout=limit_s)
    except subprocess.TimeoutExpired:
        code = 124
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        stderr += f"\nended after {limit_s:.0f} s"
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    code = process.returncode if code is None else code
    return Outcome(code=code, stdout=stdout, stderr=stderr, wall_s=time.perf_counter() - start)


def true_shares(truth: Any, phases_file: Path) -> tuple[dict[str, float], float | None]:
    """Return the true share of each area and, where the program has a clock, the true step time [s]."""
    if not truth.phases:
        return dict(truth.shares), None
    phases = json.loads(phases_file.read_text(encoding="utf-8"))
    steady = {name: statistics.median(times[WARM_UP:]) for name, times in phases.items()}
    step_s = sum(steady.values())
    shares: dict[str, float] = {}
    for name, seconds in steady.items():
        area = truth.phases[name]
        shares[area] = shares.get(area, 0.0) + seconds / step_s
    return shares, step_s


def largest_share_error(found: Any, true: dict[str, float]) -> float | None:
    """Return the largest difference of a share, unattributed time included, in points; None without shares."""
    if not true or not isinstance(found, dict):
        return None
    numbers = {area: found.get(area, 0.0) for area in (*AREAS, "unattributed")}
    if not all(isinstance(value, int | float) for value in numbers.values()):
        return None
    return max(abs(value - true.get(area, 0.0)) for area, value in numbers.items()) * 100


def judge_flop(found: Any, truth: Any, *, full_square: Any = None) -> tuple[bool, str]:
    """Say whether FLOP per step is right, as a ratio to the truth in the causal convention.

    Attention written as plain products carries no mask, so its squares are counted in full. That is right where the
    document says so: its count and its full-square count are one number, and that number is the truth for full squares.
    """
    tolerance = FLOP_RATIO_REAL if truth.group == "real" else FLOP_RATIO
    if not isinstance(found, int | float):
        return False, "unknown"
    if truth.flop == 0:
        return found == 0, "0" if found == 0 else f"{found:.3g} for 0"
    low, high = truth.flop_range or (truth.flop, truth.flop)
    right = low * (1 - tolerance) <= found <= high * (1 + tolerance)
    if not right and truth.flop_full and found == full_square and abs(found / truth.flop_full - 1) <= tolerance:
        return True, f"{found / truth.flop_full:.4f} of full"
    note = ""
    for label, other in (("full", truth.flop_full), ("executed", truth.flop_executed)):
        if not right and other and abs(found / other - 1) < tolerance:
            note = f" ={label}"
            break
    return right, f"{found / truth.flop:.4f}{note}"


def attributed_share(operators: Any) -> float | None:
    """Return the share of operator time whose FLOP and bytes are known."""
    if not isinstance(operators, list):
        return None
    timed = [row for row in operators if isinstance(row.get("time_s"), int | float)]
    total = sum(row["time_s"] for row in timed)
    known = sum(row["time_s"] for row in timed if all(isinstance(row.get(k), int | float) for k in ("flop", "bytes")))
    return known / total if total else None


def find_overhead(document: Any) -> float | None:
    """Return the first number whose key names the overhead as a ratio."""
    if isinstance(document, dict):
        for key, value in document.items():
            if "overhead" in key and "ratio" in key and isinstance(value, int | float):
                return float(value)
        document = list(document.values())
    if isinstance(document, list):
        for value in document:
            found = find_overhead(value)
            if found is not None:
                return found
    return None


def score(truth: Any, stdin: str, limit_s: float, keep: Path) -> dict[str, Any]:
    """Run one program twice and compare what the tool says with what is true."""
    stem = truth.name.replace("/", "-").replace(" ", "-")
    phases, document_file = keep / f"{stem}.phases.json", keep / f"{stem}.json"
    command = [*truth.command, "--phases", str(phases)] if truth.phases else list(truth.command)
    alone = execute([sys.executable, *command], truth, stdin, limit_s)
    tool = Path(sys.executable).with_name("mansard")
    options = ["run", "--force", "-o", str(document_file)]
    guest = execute([str(tool), *options, *truth.command], truth, stdin, limit_s)
    (keep / f"{stem}.stderr.txt").write_text(guest.stderr, encoding="utf-8")
    result: dict[str, Any] = {
        "name": truth.name,
        "group": truth.group,
        "alone_code": alone.code,
        "code": guest.code,
        "stdout_same": alone.code == 0 and alone.stdout == guest.stdout,
        "alone_wall_s": alone.wall_s,
        "wall_s": guest.wall_s,
    }
    if alone.code:
        return {**result, "failure": f"the program alone fails: {alone.stderr.strip()[-200:]}"}
    try:
        document = json.loads(document_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return {**result, "failure": f"no document ({error}); stderr ends {guest.stderr.strip()[-200:]!r}"}
    if "verdict" not in document:
        return {**result, "failure": f"a document without verdict: {str(document.get('error'))[:200]}"}
    return {**result, **compare(truth, document, phases)}


def compare(truth: Any, document: dict[str, Any], phases: Path) -> dict[str, Any]:
    shares, step_s = true_shares(truth, phases)
    bound = document["verdict"].get("bound")
    flop_right, flop_text = judge_flop(
        document.get("flop_per_step"), truth, full_square=document.get("full_square_flop_per_step")
    )
    found_step_s = (document.get("step") or {}).get("median_s")
    known = step_s is not None and isinstance(found_step_s, int | float)
    return {
        "bound": bound,
        "verdict_right": bound in truth.bounds if truth.bounds else None,
        "true_shares": shares,
        "found_shares": document.get("time_shares"),
        "share_error_points": largest_share_error(document.get("time_shares"), shares),
        "flop_right": flop_right,
        "flop": flop_text,
        "attributed": attributed_share(document.get("operators")),
        "overhead": find_overhead(document),
        "step_ratio": found_step_s / step_s if known else None,  # type: ignore[operator]
        "steps": (document.get("step") or {}).get("count"),
    }


def text(value: Any, form: str = "{}") -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return form.format(value) if isinstance(value, int | float | str) else "?"


COLUMNS = (
    ("program", 32), ("verdict", 14), ("right", 6), ("share err", 10), ("FLOP ratio", 17), ("attributed", 11),
    ("step ratio", 11), ("overhead", 9), ("exit", 5), ("stdout", 7), ("wall", 12),
)  # fmt: skip


def line(result: dict[str, Any]) -> str:
    cells = (
        result["name"],
        text(result.get("bound")),
        text(result.get("verdict_right")),
        text(result.get("share_error_points"), "{:.1f}"),
        text(result.get("flop")) + ("" if result.get("flop_right", True) else " NO"),
        text(result.get("attributed"), "{:.1%}"),
        text(result.get("step_ratio"), "{:.3f}"),
        text(result.get("overhead"), "{:.1%}"),
        text(result["code"]),
        "same" if result["stdout_same"] else "DIFFERS",
        f"{result['alone_wall_s']:.0f} > {result['wall_s']:.0f} s",
    )
    row = " ".join(cell.ljust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True)).rstrip()
    return row + (f"\n    {result['failure']}" if "failure" in result else "")


def tally(results: list[dict[str, Any]]) -> tuple[str, bool]:
    """Return the score line and whether nothing is missing."""
    checks = {
        "verdicts right": [bool(r.get("verdict_right")) for r in results if r.get("verdict_right", False) is not None],
        f"shares within {SHARE_POINTS:.0f} points": [
            r["share_error_points"] is not None and r["share_error_points"] <= SHARE_POINTS
            for r in results
            if r.get("true_shares")
        ],
        "FLOP right": [bool(r.get("flop_right")) for r in results],
        f"attributed {ATTRIBUTED:.0%}": [(r.get("attributed") or 0.0) >= ATTRIBUTED for r in results],
        # 3 is ours where the program's is 0 and no bound could be named
        "exit code": [
            r["code"] == (r["alone_code"] or (3 if r.get("bound") == "undetermined" else 0)) for r in results
        ],
        "stdout same": [r["stdout_same"] for r in results],
    }
    line_text = "score: " + ", ".join(f"{name} {sum(found)}/{len(found)}" for name, found in checks.items())
    return line_text, all(all(found) for found in checks.values()) and not any("failure" in r for r in results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", choices=["main", "variant", "real", "example", "all"], default="main")
    parser.add_argument("--framework", choices=["torch", "jax"])
    parser.add_argument("--only", default="", help="programs whose name contains this text, of every group")
    parser.add_argument("--limit", type=float, default=180.0, help="longest time of one run [s]")
    parser.add_argument("--keep", type=Path, help="keep documents and stderr in this folder")
    args = parser.parse_args()

    truth_module = load_truth()
    chosen = [
        truth
        for truth in truth_module.all_truths()
        if (args.only in truth.name if args.only else args.group in ("all", truth.group))
        and args.framework in (None, truth.framework)
    ]
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # the scratch folder goes as well
    with tempfile.TemporaryDirectory(prefix="mansard-score-") as scratch:
        keep = (args.keep or Path(scratch)).resolve()
        keep.mkdir(parents=True, exist_ok=True)
        print(" ".join(name.ljust(width) for name, width in COLUMNS).rstrip())
        results = []
        for truth in chosen:
            results.append(score(truth, truth_module.stdin_rows(), args.limit, keep))
            print(line(results[-1]), flush=True)
        (keep / "scores.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    summary, perfect = tally(results)
    print(summary)
    return 0 if perfect else 1


if __name__ == "__main__":
    sys.exit(main())
