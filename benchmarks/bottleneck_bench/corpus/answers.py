"""Ask the command line about a case's files, and score what it says against the truth."""

from __future__ import annotations

import contextlib
import io
import json
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corpus import kineto, nsys
from corpus.cases import Case
from corpus.truth import AREAS, truth_of

HEADROOM_RATIO = 0.10  # |found - true| / true
SHARE_POINTS = 5.0


@dataclass(slots=True, kw_only=True)
class Score:
    """One case, judged.

    Args:
        case, truth, answer: Its name, its true class, the class that was given.
        right: Whether that is right.
        share_error_points: Largest difference of a time share; None where it is not compared or not given.
        headroom_true_s, headroom_found_s: Headroom of the true class per step [s]; None where not compared or given.
        headroom_right: Whether it is within 10 %; None where it is not compared.
        forbidden: A class was given that the case forbids.
        false_memory: Memory verdicts without bytes.
        implausible: The share of the ceiling is called impossible, though every kernel was given a possible one.
        unsaid: Patterns that nothing in the answer matches.
        error: What went wrong.
        files: The files of the case.
    """

    case: str
    truth: str
    answer: str
    right: bool
    share_error_points: float | None = None
    headroom_true_s: float | None = None
    headroom_found_s: float | None = None
    headroom_right: bool | None = None
    forbidden: bool = False
    false_memory: int = 0
    implausible: bool = False
    unsaid: list[str] = field(default_factory=list)
    error: str = ""
    files: list[str] = field(default_factory=list)


def write_case(case: Case, folder: Path) -> tuple[list[Path], dict[str, Any]]:
    """Write the profiles of a case and its `truth.json`; return the files and the truth."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = case.build(zlib.crc32(case.name.encode()))
    files = []
    for index, program in enumerate(programs):
        suffix = "sqlite" if case.file_format == "nsys" else "json"
        path = folder / f"rank{index}.{suffix}"
        (nsys if case.file_format == "nsys" else kineto).write(program, path)
        files.append(path)
    truth = truth_of(programs[0], device=int(case.options.get("device") or 0), skip=case.skip)
    truth |= {"case": case.name, "class": case.truth, "accept": list(case.accept), "must_not": list(case.must_not)}
    truth |= {
        "must_say": list(case.must_say),
        "note": case.note,
        "file_format": case.file_format,
        "options": case.options,
    }
    truth["headroom_s"] = truth["headroom_by_area_s"][case.truth] if case.truth in AREAS and case.headroom else None
    truth["headroom_is"] = "time that counts for the class, less its demand over the declared ceiling, per step"
    m = programs[0].machine
    truth["ceilings"] = {
        "bf16_flop_per_s": m.bf16_flop_per_s,
        "hbm_bytes_per_s": m.hbm_bytes_per_s,
        "nvlink_bytes_per_s": m.nvlink_bytes_per_s,
        "pcie_bytes_per_s": m.pcie_bytes_per_s,
    }
    (folder / "truth.json").write_text(json.dumps(truth, indent=1), encoding="utf-8")
    return files, truth


def arguments(case: Case, files: list[Path]) -> list[str]:
    """Return the command line of a case."""
    options = case.options
    if case.verb == "ranks":
        return ["trace", "ranks", *map(str, files), "--json"]
    if case.verb == "mfu":
        return [
            "trace",
            "mfu",
            str(files[0]),
            "--region",
            options["region"],
            "--flops",
            options["flops"],
            "--dtype",
            "bf16",
            "--json",
        ]
    out = ["diagnose", str(files[0]), "--json"]
    for option in ("network_rate", "node_devices", "device"):
        if option in options:
            out += [f"--{option.replace('_', '-')}", str(options[option])]
    if "ceilings" in options:
        path = files[0].parent / "ceilings.json"
        path.write_text(json.dumps(_low_link()), encoding="utf-8")
        out += ["--ceilings", str(path)]
    return out


def _low_link() -> dict[str, Any]:
    """Return measured ceilings in which copies from the host reach a tenth of the link."""
    return {
        "schema": "ceilings/1",
        "tool_version": "0",
        "created": "2026-11-30T00:00:00+00:00",
        "environment": {},
        "ceilings": [
            {
                "resource": {"area": "host", "link": "host_to_device"},
                "value": 6.4e9,
                "unit": "B/s",
                "kind": "measured",
                "scope": "device",
                "source": "host_to_device benchmark",
            }
        ],
    }


def ask(argv: list[str]) -> tuple[dict[str, Any], str]:
    """Run `mansard` in this process; return its document and what went wrong."""
    from mansard.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    error = ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(argv)
        except SystemExit as stop:
            if stop.code not in (0, 1, 3, None):
                error = f"exit code {stop.code}"
        except Exception as defect:  # a traceback of the tool is an answer too: a wrong one
            error = f"{type(defect).__name__}: {defect}"
    try:
        return json.loads(out.getvalue()), error
    except ValueError:
        return {}, error or "no document"


def judge(case: Case, files: list[Path], truth: dict[str, Any]) -> tuple[Score, dict[str, Any]]:
    """Ask about a case and score the answer."""
    document, error = ask(arguments(case, files))
    names = [str(f) for f in files]
    text = json.dumps(document)
    if case.verb != "diagnose":
        answer = _verb_answer(case, document)
        score = Score(
            case=case.name, truth=case.truth, answer=answer, right=answer == case.truth, error=error, files=names
        )
    else:
        score = _judge_verdict(case, truth, document)
        score.error, score.files = error, names
    said = text if document else ""
    score.unsaid = [p for p in case.must_say if not re.search(p, said, re.IGNORECASE)]
    return score, document


def _verb_answer(case: Case, document: dict[str, Any]) -> str:
    """Return what another verb says: the straggler, or how many steps the FLOP leave out."""
    if case.verb == "ranks":
        return f"rank {document.get('straggler_rank', 'none')}"
    said = json.dumps(document.get("findings", ""))
    if document.get("steps_in_region") == 5 or re.search(r"\b5(\.0+)? (times|steps)|five", said):
        return "five steps"
    ratio = document.get("mfu_ratio")
    return f"mfu {ratio:.3f}" if isinstance(ratio, int | float) else "nothing"


def _judge_verdict(case: Case, truth: dict[str, Any], document: dict[str, Any]) -> Score:
    verdict = document.get("verdict") or {}
    answer = str(verdict.get("bound", "none"))
    score = Score(case=case.name, truth=case.truth, answer=answer, right=answer in (case.truth, *case.accept))
    score.forbidden = answer in case.must_not
    share = verdict.get("share_of_ceiling")
    score.implausible = case.truth in AREAS and not case.accept and isinstance(share, dict) and "implausible" in share
    score.false_memory = int(answer == "memory" and not case.memory_known)
    for row in document.get("operators") or []:
        score.false_memory += int(row.get("bound") == "memory" and not isinstance(row.get("bytes"), int | float))
    shares = document.get("time_shares")
    if case.shares and isinstance(shares, dict):
        given = {a: shares.get(a, 0.0) for a in (*AREAS, "unattributed")}
        if all(isinstance(v, int | float) for v in given.values()):
            score.share_error_points = 100 * max(abs(v - truth["shares"].get(a, 0.0)) for a, v in given.items())
    if truth["headroom_s"] is not None:
        true, found = truth["headroom_s"], verdict.get("headroom_s")
        score.headroom_true_s = true
        score.headroom_right = False
        if isinstance(found, int | float):
            score.headroom_found_s = float(found)
            score.headroom_right = abs(found - true) <= HEADROOM_RATIO * true
    return score
