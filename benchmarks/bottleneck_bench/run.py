"""Score `mansard diagnose` on a generated corpus of profiles whose bottleneck is known.

The corpus is made anew in a temporary folder, the same every time; its truth comes from its own construction.

    python benchmarks/bottleneck_bench/run.py
    python benchmarks/bottleneck_bench/run.py --only 'memory/*' --keep out/corpus
    python benchmarks/bottleneck_bench/run.py --json > out/bottleneck_bench.json
    python benchmarks/bottleneck_bench/run.py --live            # and the live programs, on an idle machine

Exit code 1 where a target is missed: 95 % of the classes right, 95 % of the headrooms within 10 % of the truth, no
memory verdict without bytes.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

from corpus import Case, all_cases  # noqa: E402
from corpus.answers import SHARE_POINTS, Score, judge, write_case  # noqa: E402

CLASS_TARGET, HEADROOM_TARGET = 0.95, 0.95


def score_corpus(cases: list[Case], folder: Path) -> list[Score]:
    """Write, ask and judge every case."""
    out = []
    for case in cases:
        at = folder / case.name
        files, truth = write_case(case, at)
        score, document = judge(case, files, truth)
        (at / "answer.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
        out.append(score)
    return out


def totals(scores: list[Score]) -> dict[str, Any]:
    """Return the figures that the targets are about."""
    headrooms = [s for s in scores if s.headroom_right is not None]
    shares = [s.share_error_points for s in scores if s.share_error_points is not None]
    return {
        "cases": len(scores),
        "class_right": sum(s.right for s in scores),
        "class_right_ratio": sum(s.right for s in scores) / max(1, len(scores)),
        "headroom_compared": len(headrooms),
        "headroom_right": sum(bool(s.headroom_right) for s in headrooms),
        "headroom_right_ratio": sum(bool(s.headroom_right) for s in headrooms) / max(1, len(headrooms)),
        "shares_compared": len(shares),
        "shares_within_points": sum(e <= SHARE_POINTS for e in shares),
        "forbidden": sum(s.forbidden for s in scores),
        "false_memory": sum(s.false_memory for s in scores),
        "implausible": sum(s.implausible for s in scores),
        "unsaid": sum(bool(s.unsaid) for s in scores),
        "errors": sum(bool(s.error) for s in scores),
    }


def met(total: dict[str, Any]) -> bool:
    """Return whether the targets are met."""
    return (
        total["class_right_ratio"] >= CLASS_TARGET
        and (total["headroom_right_ratio"] >= HEADROOM_TARGET or not total["headroom_compared"])
        and total["false_memory"] == 0
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f}"


def print_table(scores: list[Score]) -> None:
    """Print one line a case, then the totals."""
    print(
        f"{'case':42s} {'truth':13s} {'answer':13s} {'':3s} {'shares':>7s} {'true ms':>8s} {'found':>8s} "
        f"{'error':>7s}  remarks"
    )
    for s in scores:
        share = "-" if s.share_error_points is None else f"{s.share_error_points:.1f}"
        error = ""
        if s.headroom_true_s and s.headroom_found_s is not None:
            error = f"{s.headroom_found_s / s.headroom_true_s - 1:+.0%}"
        remarks = ["forbidden"] * s.forbidden + [f"{s.false_memory} false memory"] * bool(s.false_memory)
        remarks += (
            ["headroom"] * (s.headroom_right is False) + [f"unsaid {p!r}" for p in s.unsaid] + [s.error] * bool(s.error)
        )
        mark = "ok" if s.right else "--"
        print(
            f"{s.case:42s} {s.truth:13s} {s.answer[:13]:13s} {mark:3s} {share:>7s} {_ms(s.headroom_true_s):>8s} "
            f"{_ms(s.headroom_found_s):>8s} {error:>7s}  {'; '.join(remarks)}"
        )
    t = totals(scores)
    print(
        f"\nclass right      {t['class_right']} of {t['cases']} = {t['class_right_ratio']:.1%} "
        f"(target {CLASS_TARGET:.0%})\n"
        f"headroom in 10 % {t['headroom_right']} of {t['headroom_compared']} = {t['headroom_right_ratio']:.1%} "
        f"(target {HEADROOM_TARGET:.0%})\n"
        f"shares in {SHARE_POINTS:.0f} pt   {t['shares_within_points']} of {t['shares_compared']}\n"
        f"false memory     {t['false_memory']} (target 0)\nforbidden class  {t['forbidden']}\n"
        f"impossible share {t['implausible']}\nsomething unsaid {t['unsaid']}\nerrors           {t['errors']}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="GLOB", default="*", help="cases whose name matches")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep profiles, truth.json and answer.json there")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--live", action="store_true", help="run benchmarks/bottleneck_programs as well: minutes")
    args = parser.parse_args()
    cases = [c for c in all_cases() if fnmatch.fnmatch(c.name, args.only)]
    if not cases:
        parser.error(f"no case matches {args.only!r}")
    if args.list:
        print("\n".join(c.name for c in cases))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        scores = score_corpus(cases, args.keep or Path(temporary))
    total = totals(scores)
    if args.json:
        print(json.dumps({"totals": total, "met": met(total), "cases": [asdict(s) for s in scores]}, indent=1))
    else:
        print_table(scores)
    live = 0
    if args.live:
        command = [sys.executable, str(FOLDER.parent / "bottleneck_programs" / "run.py")]
        live = subprocess.run(command, check=False, stdout=sys.stderr if args.json else None).returncode
    return 0 if met(total) and live == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
