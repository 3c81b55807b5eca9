"""Re-enact the 110B mixture-of-experts case: what its figures say, what they leave open, and what must not be made of them.

python examples/moe_110b/diagnose_case.py [-o case.json]        then: mansard diagnose case.json
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mansard.core import Ceilings, Demand, Grade, Implausible, Unknown, is_known, share_of
from mansard.core.document import dumps
from mansard.core.units import format_flop_per_s, format_ratio, parse_quantity
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.joint_gain import JointGain
from mansard.diagnose.partial import NO_BYTES, NO_FLOP
from mansard.diagnose.records import Diagnosis, Note
from mansard.hardware import ceilings, load
from mansard.report.document import to_document
from mansard.trace.run import Operator, Part, RunTrace, Steps, WaitCause

CASE = Path(__file__).with_name("case.toml")
PLATEAU = 0.7  # share of a dense peak from which a product counts as normal
DTYPES = ("bf16", "f8_e4m3")
STEPS = 10
MARK = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One way to read the reported rate.

    Args:
        scope: `chip` or `device`: what the rate is the rate of.
        dtype: Element type of the products.
        share: Of the dense peak; `Implausible` above 1, `Unknown` without a peak.
        verdict: What follows.
        chosen: Whether it is the one that the case assumes.
    """

    scope: str
    dtype: str
    share: float | Unknown | Implausible
    verdict: str
    chosen: bool


def read(path: Path = CASE) -> dict[str, Any]:
    """Return the case."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def machine(case: Mapping[str, Any], scope: str) -> Ceilings:
    """Return what one chip, or one of the devices it shows, can do on paper."""
    sku = load(case["assumed"]["hardware"])
    return ceilings(sku, scope="node", devices=sku.package.devices if scope == "chip" else 1)


def rate_of(case: Mapping[str, Any]) -> float:
    """Return the reported rate of the forward pass [FLOP/s]."""
    return parse_quantity(case["reported"]["forward_flop_per_s"], "flop_per_s")


def readings(case: Mapping[str, Any]) -> list[Reading]:
    """Return every reading of the rate in the element types and scopes that it may be of."""
    found = []
    for scope in ("chip", "device"):
        for dtype in DTYPES:
            peak = machine(case, scope).peak(dtype, scope="node")
            share: float | Unknown | Implausible = (
                peak if isinstance(peak, Unknown) else share_of(rate_of(case) / peak.value, 1.0)
            )
            chosen = (scope, dtype) == (case["assumed"]["scope"], case["assumed"]["dtype"])
            found.append(Reading(scope=scope, dtype=dtype, share=share, verdict=_verdict(share), chosen=chosen))
    return found


def _verdict(share: float | Unknown | Implausible) -> str:
    if isinstance(share, Implausible):
        return "cannot be: above the dense peak"
    if isinstance(share, Unknown):
        return f"not known: {share.reason}"
    if share >= PLATEAU:
        return "compute-bound, on the matrix plateau: memory tuning does not help it"
    return "compute is its ceiling, with headroom: not on the plateau"


def gain_of(case: Mapping[str, Any]) -> JointGain:
    """Return the gain of the step, as one."""
    told = case["reported"]
    return JointGain(
        reduction_ratio=told["step_reduction"], changes=tuple(told["changes"]), of=f"the step of the {case['name']}"
    )


def run_of(case: Mapping[str, Any]) -> RunTrace:
    """Return a run with the reported rates: products at the forward rate, attention and routing at their share of memory."""
    drawn, dtype = case["assumed"]["step"], case["assumed"]["dtype"]
    memory = machine(case, case["assumed"]["scope"]).bandwidth(case["assumed"]["ceiling_of_share"], scope="node")
    if isinstance(memory, Unknown):
        raise SystemExit(memory.reason)
    step_s, operators, lengths = drawn["step_s"], [], []
    for name in ("products", "attention", "routing"):
        time_s = drawn[name] * step_s
        if name == "products":
            demand = Demand(flop={(dtype, "f32"): rate_of(case) * time_s}, uncounted=(NO_BYTES,))
        else:
            traffic = drawn[f"share_of_{name}"] * memory.value * time_s
            demand = Demand(level_bytes={case["assumed"]["ceiling_of_share"]: traffic}, uncounted=(NO_FLOP,))
        category = {"products": "gemm", "attention": "attention", "routing": "gather"}[name]
        operators.append(
            Operator(name=name, category=category, part=Part.FORWARD, shapes="", demand=demand, formula=MARK)
        )
        lengths.append(round(time_s * 1e9))
    edges = np.arange(STEPS + 1, dtype=np.int64) * round(step_s * 1e9)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    start = (edges[:-1, None] + starts[None, :]).ravel()
    return RunTrace(
        framework="profile", operators=tuple(operators), op=np.tile(np.arange(3, dtype=np.int32), STEPS), start_ns=start,
        wait_start_ns=edges[:-1] + sum(lengths), wait_end_ns=edges[1:], wait_cause=(WaitCause.UNEXPLAINED,) * STEPS,
        end_ns=start + np.tile(np.array(lengths, dtype=np.int64), STEPS), lane=np.zeros(start.size, dtype=np.int32),
        steps=Steps(start_ns=edges[:-1], end_ns=edges[1:], source="given", note="one drawn step"), window_ns=(0, int(edges[-1])),
        threads=2, devices=(load(case["assumed"]["hardware"]).name,),
    )  # fmt: skip


def diagnose(case: Mapping[str, Any]) -> Diagnosis:
    """Return the diagnosis of the drawn step, with everything that is assumed named as such."""
    assumed = {k: v for k, v in case["assumed"].items() if k != "step"}
    words = ", ".join(f"{k} {v}" for k, v in assumed.items())
    found = diagnose_run(run_of(case), machine(case, case["assumed"]["scope"]), program=case["name"])
    gain = gain_of(case)
    notes = (
        Note(code=MARK, text=f"not reported, assumed: {words}"),
        Note(
            code=MARK,
            text="the division of the step is drawn, not reported: seconds and shares of the step are no findings",
        ),
        Note(code="joint_gain", text=gain.text()),
    )
    operators = tuple(replace(row, grade=Grade.ASSUMED) for row in found.operators)
    verdict = replace(found.verdict, grade=Grade.ASSUMED)
    receipt = {
        **found.receipt,
        "assumed": {**assumed, "step": dict(case["assumed"]["step"])},
        "joint_gain": gain.to_json(),
    }
    return replace(found, verdict=verdict, operators=operators, findings=(*notes, *found.findings), receipt=receipt)


def lines(case: Mapping[str, Any]) -> list[str]:
    """Return the answer for reading."""
    told, gain = case["reported"], gain_of(case)
    out = [
        case["name"],
        "",
        f"forward at {format_flop_per_s(rate_of(case))} on {case['assumed']['hardware']} (assumed):",
    ]
    for r in readings(case):
        ratio = r.share.value if isinstance(r.share, Implausible) else r.share
        shown = format_ratio(ratio) if is_known(ratio) else "?"
        mark = f"  <- {MARK}" if r.chosen else ""
        out.append(f"  per {r.scope:<6} in {r.dtype:<7} {shown:>5} of the dense peak: {r.verdict}{mark}")
    low, high = told["share_of_ceiling"]
    out += [
        "", f"routing and attention at {format_ratio(low)} to {format_ratio(high)} of their ceiling (assumed: memory):",
        f"  headroom: they can become {1 / high:.2f} to {1 / low:.2f} times as fast, not more, with the same bytes", "",
        f"{gain.text()}", f"  of this step: {gain.speedup_ratio:.3f} times as fast",
    ]  # fmt: skip
    for change in gain.changes:
        part = gain.of_change(change)
        out.append(
            f"  {change} alone: {f'not known: {part.reason}' if isinstance(part, Unknown) else format_ratio(part)}"
        )
    for share in (low, high):
        part = gain.least_part_ratio(share)
        if not isinstance(part, Implausible):
            out.append(
                f"  if all of it ran at {format_ratio(share)} of its ceiling before, it was at least {format_ratio(part)} of the step"
            )
    out += ["", "operators of the drawn step (their division of it is assumed)"]
    for row in diagnose(case).operators:
        shown = format_ratio(row.share_of_ceiling) if is_known(row.share_of_ceiling) else "?"
        out.append(f"  {row.name:<10} {row.bound.value:<8} {shown:>5} of {row.limiting_ceiling}")
    return out


def main() -> int:
    """Print the answer, and write the document of the drawn step where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", type=Path, default=CASE, help="the case, with its own assumptions")
    parser.add_argument("-o", "--output", type=Path, help="write the diagnosis as a document")
    options = parser.parse_args()
    case = read(options.case)
    print("\n".join(lines(case)))
    if options.output is not None:
        options.output.write_text(dumps(to_document(diagnose(case), schema="diagnose/1")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
