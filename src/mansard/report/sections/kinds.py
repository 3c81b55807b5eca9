"""Which kinds of document a page shows, with what: one place for all that Mansard writes, and why some are not for a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mansard.report.sections import history, measured, others, plain, plans, searches, traces, trends, use
from mansard.report.sections.blocks import Section

Builder = Callable[..., Section]


@dataclass(frozen=True, slots=True)
class Shown:
    """How a kind of document is shown.

    Args:
        build: Makes its section of the document, `key` and `name`.
        headline: Makes the sentence on top of a page that has no run.
    """

    build: Builder
    headline: Callable[[Mapping[str, Any]], str]


def _said(text: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda _: text


def _estimate(document: Mapping[str, Any]) -> str:
    phase, model = document["phase"], document["model"]["name"]
    return f"An estimate: {phase} of {model}." if phase else f"The parameters of {model}."


def _estimate_section(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return an estimate; one of a model alone has no kernels and is told as it is."""
    return (others.estimate if document["phase"] else plain.document)(document, key=key, name=name)


def _change(document: Mapping[str, Any]) -> str:
    total = str(document.get("verdict") or document.get("outcome") or "no verdict").replace("_", " ")
    figures = len(document["results"])
    return f"Did it change: {total}, {figures} {'figure' if figures == 1 else 'figures'} compared."


def _history(document: Mapping[str, Any]) -> str:
    if "baselines" in document:
        return f"{len(document['baselines'])} baselines, {len(document.get('records') or ())} results."
    return f"Baseline {document['name']}: {len(document['entries'])} results."


#: Kind of document -> how it is shown, beside runs, diagnoses, ceilings and points, which the page is built around.
KINDS: Mapping[str, Shown] = {
    "estimate/1": Shown(_estimate_section, _estimate),
    "estimate-sweep/1": Shown(plain.document, lambda d: f"A sweep of {len(d['rows'])} estimates, {d['phase']}."),
    "diagnose_points/1": Shown(measured.section, lambda d: str(d["headline"])),
    "trace_ranks/1": Shown(others.ranks, lambda d: f"{len(d['ranks'])} ranks of one job."),
    "run_ranks/1": Shown(plain.document, lambda d: f"{len(d['ranks'])} ranks of one job, by their runs."),
    "compare/1": Shown(history.comparison, _change), "check/1": Shown(history.comparison, _change),
    "baseline/1": Shown(history.baseline, _history), "baselines/1": Shown(history.baselines, _history),
    "baseline_archive/1": Shown(history.archive, _history),
    "baseline_add/1": Shown(history.additions, lambda d: f"{len(d['added'])} results were offered to baseline {d['name']}."),
    "trend/1": Shown(trends.trend, trends.headline),
    "plan-scale/1": Shown(plans.scale, plans.headline_of_scale), "plan-size/1": Shown(plans.size, plans.headline_of_size),
    "plan-offload/1": Shown(plans.offload, plans.headline_of_offload),
    "plan-whatif/1": Shown(plans.whatif, plans.headline_of_whatif),
    "plan-topology/1": Shown(plans.topology, plans.headline_of_topology),
    "plan-collective/1": Shown(plain.document, lambda d: f"{d['operation']} over {d['ranks']} devices of {d['shape']}."),
    "plan-shard/1": Shown(searches.shard, searches.headline_of_shard), "plan-remat/1": Shown(searches.remat, searches.headline_of_remat),
    "trace_summary/1": Shown(traces.devices, traces.headline), "trace_overlap/1": Shown(traces.devices, traces.headline),
    "trace_kernels/1": Shown(traces.kernels, traces.headline), "trace_regions/1": Shown(traces.regions, traces.headline),
    "trace_steps/1": Shown(traces.steps, traces.headline), "trace_mfu/1": Shown(use.section, use.headline_of_mfu),
    "trace_intensity/1": Shown(use.section, use.headline_of_intensity),
    "plan/1": Shown(plain.document, lambda d: f"A plan of {len(d['points'])} points."),
    "search/1": Shown(plain.document, lambda d: f"The fastest of a sweep of {d['benchmark']}."),
    "flops/1": Shown(plain.document, lambda d: f"{d['operation']}: {plain.value_text('flop', d['flop'])}."),
    "machine/1": Shown(plain.document, lambda d: f"A machine for simulators: {d['name']}."),
    "doctor/1": Shown(plain.document, _said("What this machine is, and what can be measured on it.")),
    "hardware_list/1": Shown(plain.document, lambda d: f"{len(d['hardware'])} products on record."),
    "hardware_show/1": Shown(plain.document, _said("One product, with the receipt of each number.")),
    "hardware_match/1": Shown(plain.document, lambda d: f"Which product is {d['name']}: {d['status']}."),
    "hardware_peak/1": Shown(plain.document, lambda d: f"Peaks of {d['product']}, derived and declared."),
    "benchmarks/1": Shown(plain.document, lambda d: f"{len(d['benchmarks'])} benchmarks."),
    "baseline_import/1": Shown(plain.document, lambda d: f"{len(d['imported'])} results were taken into the history."),
    "samples/1": Shown(plain.document, lambda d: f"Samples of {len(d['benchmarks'])} benchmarks."),
}  # fmt: skip

#: Kinds that Mansard writes and no page shows, each with the reason.
NOT_SHOWN: Mapping[str, str] = {
    "export/1": "it says what an export wrote and holds no figure of its own; give the files that were exported",
    "baseline_export/1": "it says where an archive was written; give the archive itself",
    "baseline_rm/1": "it says that a baseline was forgotten and holds no figure",
    "recording/1": "it is the header of a recording in progress; give the folder of mansard run --keep or its run.json",
    "unfinished/1": "it is the journal of a measurement that was cut short; finish it with mansard measure --resume",
    "mansard-ranks/1": "it is a greeting between the ranks of a measurement, never a file",
    "hardware/1": "it is the input of a product, not a result; mansard hardware show --json says the same as a result",
}


def shown(document: Mapping[str, Any]) -> Shown | None:
    """Return how a document is shown; None where it is of no kind that Mansard writes, or of a newer one.

    A kind that this page has no picture for is told as facts and tables, if it has the header of every document of Mansard.
    """
    schema = document.get("schema")
    found = KINDS.get(schema) if isinstance(schema, str) else None
    if found is not None or not isinstance(schema, str) or schema in NOT_SHOWN:
        return found
    base, _, major = schema.partition("/")
    known = {k.partition("/")[0] for k in (*KINDS, *NOT_SHOWN)}
    ours = isinstance(document.get("tool_version"), str) and isinstance(document.get("created"), str)
    if major != "1" or base in known or not ours:
        return None
    return Shown(plain.document, _said(f"A {base.replace('_', ' ').replace('-', ' ')} document."))
