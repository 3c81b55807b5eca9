"""Every kind of document that Mansard writes is shown on a page, or is refused with the reason."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import mansard
from mansard.cli.report import command
from mansard.core import InputError
from mansard.core.document import dumps, header, to_jsonable
from mansard.history.compare import Limits
from mansard.plan.scale import ScaleModel
from mansard.plan.scale_document import fit_document, model_document
from mansard.plan.scale_fit import fit_scaling
from mansard.report.document import SCHEMAS
from mansard.report.html import render_page
from mansard.report.material import read
from mansard.report.sections import history, kinds, plain, plans, traces
from mansard.report.sections.blocks import Chart

MAIN = {*SCHEMAS, "ceilings/1", "detailed/1"}


def written() -> set[str]:
    """Return every name of a schema in the source."""
    root = Path(mansard.__file__).parent
    found: set[str] = set()
    for path in root.rglob("*.py"):
        if path.name != "kinds.py":
            found |= set(re.findall(r'"([a-z][a-z_-]+/1)"', path.read_text(encoding="utf-8")))
    return found


def test_every_schema_in_the_source_is_shown_or_refused_with_a_reason() -> None:
    every = written()
    assert {"plan-scale/1", "trace_summary/1", "baseline/1", "run/1", "doctor/1", "export/1"} <= every
    for schema in sorted(every - MAIN):
        document = {
            "schema": schema,
            "tool_version": "0.1.0",
            "created": "2026-11-30T00:00:00+00:00",
            "environment": {},
        }
        assert schema in kinds.NOT_SHOWN or kinds.shown(document) is not None, schema


def test_no_kind_is_both_shown_and_refused() -> None:
    assert not set(kinds.KINDS) & set(kinds.NOT_SHOWN)
    assert not MAIN & {*kinds.KINDS, *kinds.NOT_SHOWN}


@pytest.mark.parametrize("schema", sorted(kinds.NOT_SHOWN))
def test_what_is_not_shown_says_why_and_exits_4(tmp_path, schema) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(header(schema, {})))
    result = CliRunner().invoke(command, [str(path), "-o", str(tmp_path / "x.html")])
    assert isinstance(result.exception, InputError)
    assert result.exception.exit_code == 4
    assert kinds.NOT_SHOWN[schema] in result.exception.message


def test_an_unknown_kind_of_mansard_is_told_as_facts_and_tables(tmp_path) -> None:
    content = {
        **header("plan-orbit/1", {"model": "m"}), "best": None, "step_s": 0.0125, "limit": {"unknown": "no clock", "needs": ["--clock"]},
        "rows": [{"device": "a", "memory_bytes": 2e9, "fits": True}, {"device": "b", "memory_bytes": {"unknown": "no file", "needs": []}}],
        "assumed": ["one thing"],
    }  # fmt: skip
    path = tmp_path / "orbit.json"
    path.write_text(json.dumps(content))
    page = read([path])
    assert page.headlines == ("A plan orbit document.",)
    facts, table, prose = (b.to_json() for b in page.sections[0].blocks)
    assert facts["rows"] == [["step", "12.5 ms"], ["limit", "? no clock (needs --clock)"]]
    assert table["columns"] == ["device", "memory", "fits"]
    assert table["rows"] == [["a", "2.00 GB", "yes"], ["b", "?", ""]]
    assert table["values"][1] == [None, None, None]
    assert table["notes"] == ["? in memory: no file."]
    assert prose["lines"] == ["Assumed: one thing"]
    # The same without the header that every document of Mansard has, and of a newer kind, is refused.
    for change in ({"tool_version": None}, {"schema": "plan-orbit/2"}, {"schema": "plan-size/2"}):
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(InputError):
            read([path])


def test_a_figure_is_written_by_the_unit_in_its_name() -> None:
    pairs = {
        ("bytes_per_s", 2e9): "2.00 GB/s", ("cost_usd", 1.5): "1.5 USD", ("busy_ratio", 0.25): "25 %", ("achieved_flop_per_s", 3e12): "3.00 TFLOP/s",
        ("devices", 8): "8", ("miss_bytes_per_step", 2e6): "2.00 MB", ("fits", False): "no", ("name", "x"): "x",
    }  # fmt: skip
    for (key, value), text in pairs.items():
        assert plain.value_text(key, value) == text


def _scale(points=None):
    if points is None:
        model = ScaleModel(serial_s=1.0, parallel_s=8.0, message_bytes=0.0, link_bytes_per_s=None, alpha_s=0.5)
        return to_jsonable(model_document(model, at=(1, 2, 4), efficiency_ratio=0.5))
    return to_jsonable(
        fit_document(fit_scaling(list(points.items()), scaling="strong"), at=(1, 2, 4, 16), efficiency_ratio=0.5)
    )


def test_scaling_shows_measured_and_modelled_times() -> None:
    # T(N) = 1 + 8 / N + 2 (N - 1) 0.5: 9, 6 and 6 s; efficiency 9 / (N T): 1, 0.75, 0.375.
    section = plans.scale(_scale(), key="p", name="p.json")
    _, time, share, table, _ = (b.to_json() for b in section.blocks)
    assert [s["y"] for s in time["series"]] == [[9.0, 6.0, 6.0], [9.0, 4.5, 2.25]]
    assert share["series"][0]["y"] == [1.0, 0.75, 0.375]
    assert share["levels"] == [[0.5, "50 %"]]
    # dT/dN = -8 / N^2 + 1 = 0 at N = 2.83: 3 devices (1 + 8/3 + 2 = 5.67 s) are the fastest.
    assert [u[0] for u in time["uprights"]] == [3.0, 2.0] or [u[0] for u in time["uprights"]] == [3.0]
    assert table["columns"][:3] == ["devices N", "time", "messages"]
    fitted = plans.scale(_scale({1: 10.0, 2: 6.0, 4: 4.0}), key="p", name="p.json")  # 2 + 8 / N
    measured = fitted.blocks[1].to_json()["series"][0]
    assert (measured["name"], measured["x"], measured["y"]) == ("measured", [1, 2, 4], [10.0, 6.0, 4.0])
    assert not any("weak" in c for c in fitted.blocks[3].to_json()["columns"])  # strong scaling says nothing of weak


def test_one_changed_ceiling_shows_before_and_after() -> None:
    unknown = {"unknown": "no price", "needs": []}

    def row(name: str, time_s: float) -> dict:
        return {"name": name, "fits": True, "time_s": time_s, "cost": unknown, "memory_bytes": 1.0, "bound": "memory",
                "time_by_bound_s": {"memory": time_s - 0.001, "compute": 0.001}}  # fmt: skip

    document = {
        "schema": "plan-whatif/1", "changes": [{"resource": "hbm", "value": "2x"}], "candidates": [row("before", 0.011), row("after", 0.006)],
        "ceilings": [{"resource": "HBM bandwidth", "unit": "B/s", "before": 1e12, "after": 2e12, "off": False}], "speedup_ratio": 11 / 6,
        "areas": [{"area": "attention", "before_s": 0.01, "after_s": 0.005, "bound_before": "memory", "bound_after": "memory", "moves": True}],
        "moving_s": 0.01, "not_moving_s": 0.001, "hidden_s": 0.0, "overlap": "none", "notes": [],
    }  # fmt: skip
    section = plans.whatif(document, key="w", name="w.json")
    bars = section.blocks[0].to_json()
    assert bars["stacked"]
    assert [(s["name"], s["y"]) for s in bars["series"]] == [("memory", [0.01, 0.005]), ("compute", [0.001, 0.001])]
    assert section.blocks[1].to_json()["rows"] == [["HBM bandwidth", "1.00 TB/s", "2.00 TB/s"]]
    assert (
        plans.headline_of_whatif(document)
        == "With hbm = 2x the floor of a step goes from 11.0 ms to 6.00 ms, 1.83 times as fast."
    )


def _record(day: int, step_s: float, state: str, reason: str) -> dict:
    record = {"number": day, "sha256": str(day), "source": f"run{day}.json", "schema": "run/1", "created": f"2026-11-0{day}T10:00:00+00:00",
              "added": "", "labels": {}, "figures": {"step_time_s": step_s, "mfu_ratio": {"unknown": "no peak", "needs": []}}}  # fmt: skip
    return {"state": state, "reason": reason, "added": "", "record": record}


def test_a_baseline_is_a_trend_of_each_figure() -> None:
    entries = [_record(2, 0.12, "pending", "faster: once"), _record(1, 0.15, "accepted", "the first")]
    section = history.baseline({"schema": "baseline/1", "name": "main", "entries": entries}, key="h", name="b.json")
    chart, table = (b.to_json() for b in section.blocks)
    assert [(s["name"], s["x"], s["y"]) for s in chart["series"]] == [
        ("accepted", [1], [0.15]),
        ("pending", [2], [0.12]),
    ]
    assert chart["y"] == "step_time_s, s"
    assert "faster: once" in chart["series"][1]["text"][0]
    assert [r[:3] for r in table["rows"]] == [
        ["2026-11-01 10:00:00", "accepted", "run1.json"],
        ["2026-11-02 10:00:00", "pending", "run2.json"],
    ]


def test_an_archive_is_judged_and_its_documents_are_checked() -> None:
    def entry(day: int, seconds: list[float], state: str = "accepted") -> dict:
        document = {"schema": "samples/1", "created": f"2026-11-0{day}T00:00:00+00:00", "environment": {},
                    "benchmarks": [{"name": "copy", "metric": "time_s", "runs": [seconds]}]}  # fmt: skip
        raw = json.dumps(document).encode()
        return {"state": state, "reason": "r", "added": "", "source": f"{day}.json", "sha256": hashlib.sha256(raw).hexdigest(), "labels": {},
                "document_base64": base64.b64encode(raw).decode()}  # fmt: skip

    fast = [1.0, 1.01, 1.02, 1.0, 1.01, 1.0, 1.02, 1.01]
    document = {
        "schema": "baseline_archive/1",
        "name": "main",
        "entries": [entry(1, fast), entry(2, [2 * x for x in fast], "pending")],
    }
    section = history.archive(document, key="h", name="a.json")
    trend = section.blocks[0].to_json()
    assert [(s["name"], s["y"]) for s in trend["series"]] == [("accepted", [1.01]), ("pending", [2.02])]
    assert section.blocks[2].lines == ["The newest, 2.json, against the 1 accepted before it: slower."]
    assert Limits().tolerance_ratio < 1.0  # twice the time is beyond any limit
    document["entries"][0]["sha256"] = "0" * 64
    with pytest.raises(InputError, match="was changed"):
        history.archive(document, key="h", name="a.json")


def test_a_profile_summary_shows_stretches_that_add_up() -> None:
    device = {
        "device": 0, "label": "0", "name": "H100", "kernel_count": 2, "busy_ratio": 0.4, "kernel_union_s": 0.4, "gpu_span_s": 1.0, "gpu_idle_s": 0.5,
        "kinds": {"compute_s": 0.4, "copy_s": 0.1}, "idle": {"host_sync": 0.5},
        "buckets": {"compute_only": 0.4, "copy_only": 0.1, "idle": 0.5, "communication_only": 0.0},
    }  # fmt: skip
    document = {
        "schema": "trace_overlap/1",
        "format": "nsys",
        "status": "complete",
        "devices": [device],
        "findings": [],
        "damage": [],
    }
    section = traces.devices(document, key="t", name="t.json")
    bars = section.blocks[0].to_json()
    assert [s["name"] for s in bars["series"]] == ["kernels alone", "copies alone", "idle"]  # what is 0 is not drawn
    assert sum(s["y"][0] for s in bars["series"]) == 1.0
    assert traces.headline(document) == "Device 0 runs kernels for 40 % of its span."


def test_documents_of_every_sort_stand_on_one_page(tmp_path) -> None:
    entries = [_record(1, 0.15, "accepted", "<script>alert(1)</script>"), _record(2, 0.12, "pending", "b")]
    documents = {
        "scale.json": _scale({1: 10.0, 2: 6.0, 4: 4.0}),
        "baseline.json": {**header("baseline/1", {}), "name": "main</script>", "entries": entries},
    }
    for name, document in documents.items():
        (tmp_path / name).write_text(dumps(document))
    page = read([tmp_path / n for n in documents])
    text = render_page(page)
    assert [s.title for s in page.sections] == ["Scaling", "History", "Files of this page"]
    assert "<script>alert" not in text
    assert len(text.encode()) < 2_000_000


def _shard() -> dict:
    plan = {
        "layout": "tp2 dp4", "devices": 8, "tp": 2, "pp": 1, "dp": 4, "cp": 1, "ep": 1, "precision": "bf16", "micro_batch": 1,
        "accumulation": 4, "chunks": 1, "zero": 1, "recompute": "none", "sequences": None, "time_s": 1.25, "ttft_s": None,
        "tokens_per_s": 26214.4, "mfu_ratio": 0.5, "fits": True, "cost": {"unknown": "no price", "needs": ["--usd-per-hour"]},
        "memory_bytes": 40e9, "why_not": None, "messages_s": 0.25,
        "parts": {"compute_s": 1.0, "tensor_s": 0.25, "odd_s": 0.0}, "memory": {"weight_bytes": 30e9, "activation_bytes": 10e9},
    }  # fmt: skip
    other = {**plan, "layout": "dp8", "time_s": 1.5, "memory_bytes": 30e9}
    return {
        "schema": "plan-shard/1", "tool_version": "0", "created": "2026-01-01", "environment": {"model": "m", "machine": "d"},
        "job": {"phase": "train", "seq": 4096, "batch": 64}, "overlap": {"policy": "framework", "means": "behind the kernels"},
        "efficiency": {"name": "bound", "sources": ["a bound"]}, "plans": {"listed": 9, "fitting": 2, "within_limits": 2},
        "budget_bytes": 72e9, "candidates": [plan, other], "best": {"candidate": 0}, "runner_up": {"candidate": 1}, "verdict": "clear",
        "tie": None, "top": [0, 1], "pareto": [0, 1], "pareto_of": ["time_s", "memory_bytes", "cost"], "sensitivity": [],
        "refused": [{"reason": "61 layers do not divide", "divisions": 7}], "price": None, "cost_is": "USD", "notes": ["a note"],
    }  # fmt: skip


def test_a_sharding_has_its_front_and_takes_the_winner_apart() -> None:
    from mansard.report.sections import searches

    found = searches.shard(_shard(), key="k", name="s.json")
    front, time, memory = (b for b in found.blocks if isinstance(b, Chart))
    assert {s.name: (list(s.x), list(s.y)) for s in front.series} == {
        "on the front": ([30e9], [1.5]),
        "best": ([40e9], [1.25]),
    }
    # 1.00 s of kernels and 0.25 s of messages are the 1.25 s of the step; 30 GB and 10 GB are its 40 GB.
    assert {s.name: s.y[0] for s in time.series} == {"kernels": 1.0, "tensor messages": 0.25}
    assert {s.name: s.y[0] for s in memory.series} == {"weights": 30e9, "activations": 10e9}
    assert searches.headline_of_shard(_shard()) == "Best of 9 plans: tp2 dp4 on 8 devices, time of a step 1.25 s."
    assert searches.headline_of_shard({**_shard(), "best": None}) == "None of 9 plans fits."


def test_a_choice_of_activations_has_its_front() -> None:
    from mansard.report.sections import searches

    policy = {"layers": 2, "keep": [], "offload": [], "recompute": ["qkv"], "layer_input": "keep"}
    rows = [
        {"time_s": t, "memory_bytes": m, "kept_bytes": m - 2e9, "working_bytes": 1e9, "host_bytes": 0.0, "recompute_s": 0.1, "copy_s": 0.0,
         "waiting_s": 0.0, "fits": True, "why_not": None, "tokens_per_s": 10.0, "policies": [policy]}
        for t, m in ((1.0, 8e9), (1.2, 4e9))
    ]  # fmt: skip
    document = {
        "environment": {"model": "m", "machine": "d"}, "step": {"fixed_bytes": 1e9, "layers": 2}, "activations": [], "budget_bytes": 9e9,
        "host_link_bytes_per_s": None, "host_link_is": "no link", "overlap": "full", "candidates": rows, "best": 0, "pareto": [0, 1],
        "notes": [],
    }  # fmt: skip
    found = searches.remat(document, key="k", name="r.json")
    front, memory = (b for b in found.blocks if isinstance(b, Chart))
    assert {s.name: list(s.x) for s in front.series} == {"on the front": [4e9], "best": [8e9]}
    assert front.uprights[0][0] == 9e9
    # fixed 1 GB, kept 6 GB, in work 1 GB: 8 GB of the first policy
    assert sum(s.y[0] for s in memory.series) == 8e9
    assert searches.headline_of_remat(document) == "Recompute qkv: a step of 1.00 s with 8.00 GB in 9.00 GB."
    assert searches.headline_of_remat({**document, "best": None}) == "No policy fits in 9.00 GB."
