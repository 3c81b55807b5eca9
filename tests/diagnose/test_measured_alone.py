"""Measured points without a run: verdicts, fixed cost, sizes that say nothing, implementations, padding, advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mansard
from mansard.cli.main import main
from mansard.core import Area, Bound, Ceiling, Ceilings, Implausible, Kind, MemoryLevel, Resource, Unknown
from mansard.core.errors import InputError, MansardError, UndecidedError, UsageError
from mansard.diagnose.fixed_cost import FixedCost
from mansard.diagnose.measured import MeasuredDiagnosis
from mansard.diagnose.measured_advice import diagnose_points
from mansard.report.diagnose_document import answer_document
from mansard.report.diagnose_text import answer_text
from mansard.report.material import read
from mansard.report.sections.blocks import Prose, Table

US = 1e-6


def element(
    benchmark: str, seconds: float, *, impl: str = "torch", backend: str = "torch", half: float = 0.01, flop: float = 0.0,
    params: dict[str, Any] | None = None, ceiling: tuple[str, float, str] | None = None, least_s: float | None = None,
    verdict: str | None = "normal", foreign: float = 0.0, platform: str = "gpu", **metrics: Any,
) -> dict[str, Any]:  # fmt: skip
    """A point that took `seconds`, within `half` of it."""
    params = {"in_dtype": "f32", **(params or {}), "impl": impl}
    low, high = seconds * (1 - half), seconds * (1 + half)
    name = " ".join([f"{benchmark}[{impl}]", *(f"{k}={v}" for k, v in params.items() if k not in ("impl", "in_dtype"))])
    figures = {
        "median_s": seconds,
        "ci95_low_s": low,
        "ci95_high_s": high,
        "half_interval_ratio": half,
        "flop": flop,
        **metrics,
    }
    if flop:
        figures |= {"headline": "flop", "flop_per_s": flop / seconds}
    if ceiling is not None and least_s is not None:
        label, value, unit = ceiling
        figures |= {"ceiling": label, "ceiling_kind": "measured", "ceiling_value": value, "ceiling_unit": unit,
                    "ceiling_scope": "device", "least_s": least_s, "share_of_ceiling": least_s / seconds}  # fmt: skip
    return {
        "schema": "detailed/1", "tool_version": "0", "created": "2026-01-01T00:00:00+00:00", "environment": {"threads": 2},
        "metadata": {"benchmark_name": benchmark, "test_name": name, "impl": impl, "backend": backend, "params": params,
                     "device_info": {"platform": platform, "device_name": "made by hand"}},
        "state": "done", "reason": "", "verdict": verdict, "verdict_reason": "as it was judged", "metrics": figures,
        "raw_times_ms": [1e3 * t for t in (low, seconds, seconds, seconds, high)], "samples": None,
        "conditions": {"foreign_ratio": foreign},
        "audit": {"findings": [], "peak": ["f32", "f32", "matrix"] if flop else None, "benchmark": {}},
    }  # fmt: skip


def sweep(impl: str, fixed_s: float, rate: float, sizes: tuple[int, ...], half: float = 0.0) -> list[dict[str, Any]]:
    """t = T0 + 2 N^3 / rate, exactly."""
    return [
        element("gemm_sweep", fixed_s + 2 * n**3 / rate, impl=impl, flop=2.0 * n**3, params={"size": n}, half=half,
                ceiling=("f32 matrix", rate, "FLOP/s"), least_s=2 * n**3 / rate)
        for n in sizes
    ]  # fmt: skip


def test_a_sweep_tells_the_fixed_cost_and_which_sizes_say_nothing() -> None:
    found = diagnose_points(sweep("cublas", 13.4 * US, 67e12, (256, 512, 1024, 2048, 4096)))
    (law,) = found.laws
    assert isinstance(law.cost, FixedCost)
    assert law.cost.fixed_s == pytest.approx(13.4 * US, rel=1e-6)
    # 80 % of the rate: W = 4 T0 P, so N = cbrt(2 T0 P) = cbrt(2 x 13.4e-6 x 67e12) = 1215.4.
    assert law.cost.hiding_gemm_size() == pytest.approx(1215.4, abs=0.1)
    at = {p.point.params["size"]: p for p in found.points}
    assert [n for n, p in at.items() if p.size is not None and p.size.too_small is True] == [256, 512, 1024]
    # 512: 2 x 512^3 / 67e12 = 4.007 us of 17.41 us are work: 23 %, and 77 % fixed cost make it latency-bound.
    assert at[512].share_of_ceiling == pytest.approx(0.230, abs=1e-3)
    assert at[512].bound is Bound.LATENCY
    assert at[512].size is not None
    assert at[512].size.text.startswith("N = 512 is too small to judge")
    assert at[4096].bound is Bound.COMPUTE
    (advice,) = [a for a in found.advice if a.rule == "too_small"]
    assert "from N of 1215 on" in advice.text
    assert "N = 256, N = 512, N = 1024" in advice.evidence


def test_each_point_has_bound_share_headroom_and_evidence() -> None:
    # 1 GB at 1 TB/s need 1 ms: 1.25 ms are 80 %. 60 TFLOP/s of 67: 90 %. 5 % of a ceiling is no verdict.
    copied = element(
        "hbm_bandwidth", 1.25e-3, ceiling=("HBM copy bandwidth", 1e12, "B/s"), least_s=1e-3, bytes=1e9, headline="bytes"
    )
    product = element("gemm", 1e-3, flop=60e9, ceiling=("f32 matrix", 67e12, "FLOP/s"), least_s=60e9 / 67e12)
    slow = element(
        "rmsnorm", 20e-3, verdict="low", ceiling=("HBM copy bandwidth", 1e12, "B/s"), least_s=1e-3, bytes=1e9
    )
    sent = element("all_reduce", 2e-3, ceiling=("nvlink link", 450e9, "B/s"), least_s=1e-3)
    called = element("gemm", 10e-6, flop=1e6, params={"size": 79}, ceiling=("f32 matrix", 67e12, "FLOP/s"),
                     least_s=1e6 / 67e12, floor_s=8e-6)  # fmt: skip
    false = element("gemm", 1e-4, flop=60e9, params={"size": 3}, verdict="implausible", ceiling=("f32 matrix", 67e12, "FLOP/s"),
                    least_s=60e9 / 67e12)  # fmt: skip
    found = diagnose_points([copied, product, slow, sent, called, false])
    at = {(p.point.benchmark, p.worth, p.point.params.get("size")): p for p in found.points}
    memory, compute = at["hbm_bandwidth", "normal", None], at["gemm", "normal", None]
    assert (memory.bound, memory.share_of_ceiling) == (Bound.MEMORY, pytest.approx(0.8))
    assert memory.headroom_s == pytest.approx(0.25e-3)
    assert memory.shares_by_kind == {"measured": pytest.approx(0.8)}
    assert memory.evidence[1] == "its least time is 1.00 ms by the HBM copy bandwidth (measured) [modelled]"
    assert compute.bound is Bound.COMPUTE
    assert at["rmsnorm", "low", None].bound is Bound.UNDETERMINED
    assert at["all_reduce", "normal", None].bound is Bound.NETWORK
    assert at["gemm", "normal", 79].bound is Bound.LATENCY
    impossible = at["gemm", "implausible", 3]
    assert isinstance(impossible.share_of_ceiling, Implausible)
    assert isinstance(impossible.headroom_s, Unknown)
    assert found.points[0].point.benchmark == "rmsnorm"  # 19 ms are the largest headroom
    assert found.sentence == (
        "6 measured points: 2 undetermined, 1 network-bound, 1 memory-bound, 1 compute-bound, 1 latency-bound. The largest headroom is "
        "19.0 ms of rmsnorm[torch], at 5.0 % of its ceiling."
    )
    assert [f.code for f in found.findings] == ["implausible_points"]
    first = found.advice[0]
    assert (first.rule, first.gain_s, first.at_most) == ("below_ceiling", pytest.approx(19e-3), True)


def machine(*extra: Ceiling) -> Ceilings:
    def one(resource: Resource, value: float, unit: str, kind: Kind) -> Ceiling:
        return Ceiling(resource=resource, value=value, unit=unit, kind=kind, scope="device", source="made by hand")

    matrix = Resource(area=Area.COMPUTE, dtype="f32", accumulate="f32", engine="matrix")
    return Ceilings(
        ceilings=(one(matrix, 50e12, "FLOP/s", Kind.MEASURED), one(matrix, 67e12, "FLOP/s", Kind.DECLARED),
                  one(Resource(area=Area.MEMORY, level="hbm"), 1e12, "B/s", Kind.DECLARED),
                  one(Resource(area=Area.LATENCY, backend="torch"), 4e-6, "s", Kind.MEASURED), *extra),
        levels=(MemoryLevel(level="hbm", capacity_bytes=80e9),),
    )  # fmt: skip


def test_points_that_no_ceiling_judged_are_judged_by_those_beside_them() -> None:
    product = element("gemm", 2e-3, flop=50e9, bytes=1e6)
    alone = diagnose_points([product])
    assert isinstance(alone.points[0].share_of_ceiling, Unknown)
    assert alone.undetermined
    assert "supply ceilings.json of mansard measure or --hardware NAME" in alone.findings[0].text
    (point,) = diagnose_points([product], machine()).points
    # 50 GFLOP at 50 TFLOP/s and 4 us to call it: 1.004 ms of 2 ms; the declared 67 TFLOP/s make less of it.
    assert point.share_of_ceiling == pytest.approx(0.502)
    assert point.bound is Bound.COMPUTE
    assert point.shares_by_kind["declared"] == pytest.approx(0.502 * 50 / 67)
    (law,) = diagnose_points([product], machine()).laws
    assert isinstance(law.cost, FixedCost)
    assert (law.backend, law.cost.fixed_s) == ("torch", 4e-6)
    # 4 us of 512's 9.37 us are the call alone: too small for any rate, whatever else its fixed cost holds. 4096 may be enough.
    small, large = (
        diagnose_points([element("gemm", s, flop=2.0 * n**3, bytes=12.0 * n**2, params={"size": n})], machine()).points[
            0
        ]
        for n, s in ((512, 20 * US), (4096, 4e-3))
    )
    assert small.size is not None
    assert small.size.share_ratio == pytest.approx(2 * 512**3 / 50e12 / (4e-6 + 2 * 512**3 / 50e12))
    assert small.size.text.startswith("N = 512 is too small to judge")
    assert large.size is None
    # Work that nothing counts is not bounded by the price of its call.
    uncounted = diagnose_points([element("softmax", 2e-3)], machine()).points[0]
    assert isinstance(uncounted.share_of_ceiling, Unknown)
    # FLOP whose type is not recorded are bounded by no peak, and never by their bytes alone.
    untyped = {**product, "audit": {"findings": [], "peak": None}}
    assert isinstance(diagnose_points([untyped], machine()).points[0].share_of_ceiling, Unknown)


def test_implementations_win_only_where_intervals_do_not_overlap() -> None:
    def three(triton: float, half: float) -> MeasuredDiagnosis:
        times = {"torch": 2.0, "triton": triton, "naive": 0.5}
        return diagnose_points(
            [element("rmsnorm", t * 1e-3, impl=i, half=half, params={"dim": 64}) for i, t in times.items()]
        )

    won = [a for a in three(1.0, 0.01).advice if a.rule == "kernel_choice"]
    # 2 ms less 1 % against 1 ms and 1 %: at least 0.97 ms. The reference implementation is never advised.
    assert [a.gain_s for a in won] == [pytest.approx(0.97e-3)]
    assert won[0].text == "Use triton for rmsnorm dim=64."
    tied = three(1.9, 0.1)
    assert not [a for a in tied.advice if a.rule == "kernel_choice"]


def test_padding_is_advised_by_the_lower_end_of_its_gain() -> None:
    def pair(padded_ms: float) -> list[dict[str, Any]]:
        return [element("gemm_alignment", t * 1e-3, flop=2.0 * n**3, params={"base": 1000, "size": n})
                for n, t in ((1000, 4.0), (1024, padded_ms))]  # fmt: skip

    (advice,) = [a for a in diagnose_points(pair(2.0)).advice if a.rule == "shape_alignment"]
    # At least 3.96 / 2.02 = 1.960 times as fast: 4 ms x (1 - 1 / 1.960) = 1.96 ms.
    assert advice.gain_s == pytest.approx(4e-3 * (1 - 2.02 / 3.96))
    assert advice.text == "Pad 1000 to 1024 in gemm_alignment[torch]."
    assert not [a for a in diagnose_points(pair(4.0)).advice if a.rule == "shape_alignment"]


def test_a_busy_machine_is_the_first_advice_and_what_hangs_on_it_is_none() -> None:
    ceiling = ("HBM copy bandwidth", 1e12, "B/s")
    busy = element("rmsnorm", 20e-3, verdict="noisy", foreign=0.6, ceiling=ceiling, least_s=1e-3)
    assert [a.rule for a in diagnose_points([busy]).advice] == ["idle_machine"]
    loaded = [
        element("rmsnorm", t, impl=i, verdict="noisy", foreign=0.6) for i, t in (("torch", 2e-3), ("triton", 1e-3))
    ]
    loaded += [element("gemm_alignment", t, flop=2.0 * n**3, params={"base": 1000, "size": n}, verdict="noisy", foreign=0.6)
               for n, t in ((1000, 4e-3), (1024, 2e-3))]  # fmt: skip
    assert [a.rule for a in diagnose_points(loaded).advice] == ["idle_machine"]
    quiet = element("rmsnorm", 20e-3, verdict="noisy", ceiling=ceiling, least_s=1e-3)
    assert [a.rule for a in diagnose_points([quiet]).advice] == ["below_ceiling"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    many = sweep("cublas", 13.4 * US, 67e12, (256, 512, 1024, 2048, 4096)) + sweep(
        "numpy", 120 * US, 7.1e12, (256, 512, 1024, 2048)
    )
    many += [
        element("rmsnorm", t, impl=i, params={"dim": d})
        for d in range(20)
        for i, t in (("torch", 2e-3), ("triton", 1e-3))
    ]
    many.append({**element("add", 1.0), "state": "waived", "reason": "no such device"})
    (tmp_path / "detailed.json").write_text(json.dumps(many))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    (tmp_path / "ceilings.json").write_text(
        json.dumps({"schema": "ceilings/1", "ceilings": [c.to_json() for c in machine().ceilings]})
    )
    return tmp_path


def test_the_verb_answers_for_a_folder_in_forty_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", str(folder), "--target", "share >= 0.6"])
    text = capsys.readouterr().out
    assert ended.value.code == 1  # the smallest product reaches 3.6 % of its ceiling
    lines = text.splitlines()
    assert len(lines) <= 42  # forty and the target
    assert max(map(len, lines)) <= 80
    for said in ("Fixed cost", "T0 13.4 us", "80 % of it from N = 1215", "is too small to judge", "cublas is the fastest",
                 "Worth doing first", "not measured: 1 waived", "target share >= 0.6: MISSED"):  # fmt: skip
        assert said in " ".join(text.split())
    answer = mansard.diagnose(folder)
    assert answer.measured is not None
    whole = answer_text(answer, verbose=True)
    assert "share by kind of ceiling" in whole
    assert whole.count("is too small to judge") == 6  # N = 256, 512, 1024 of each
    with pytest.raises(UsageError, match="no run"):
        _ = answer.diagnosis
    assert "Worth doing first" in repr(mansard.show(answer))


def test_its_document_and_its_page(folder: Path) -> None:
    document = answer_document(mansard.diagnose(folder))
    assert document["schema"] == "diagnose_points/1"
    assert document["environment"] == {"threads": 2}
    assert len(document["points"]) == 49
    law = next(c for c in document["fixed_costs"] if c["backend"] == "cublas (torch)")
    assert law["law"]["hiding_gemm_size"]["0.8"] == pytest.approx(1215.4, abs=0.1)
    assert {"name": "add[torch]", "state": "waived", "reason": "no such device"} in document["unmeasured"]
    path = folder / "answer.json"
    path.write_text(json.dumps(document))
    page = read([path])
    assert page.headlines == (document["headline"],)
    advice, points, costs, *_ = page.sections[0].blocks
    assert isinstance(advice, Prose)
    assert next(iter(advice.lines)).startswith("Saves at least ")
    assert isinstance(points, Table)
    assert isinstance(costs, Table)
    assert points.total == 49
    assert [str(getattr(c, "text", c)) for c in costs.rows[0]][:3] == [
        "cublas (torch)",
        "f32 square product",
        "13.4 us",
    ]
    with pytest.raises(UsageError, match="no diagnosis is made of that"):
        mansard.diagnose(path)


def test_options_and_files_beside_points(folder: Path) -> None:
    with_model = mansard.diagnose(folder / "detailed.json", folder / "ceilings.json", folder / "config.json").measured
    assert with_model is not None
    assert "ceilings.json" in with_model.findings[0].text
    assert "mansard estimate" in with_model.findings[0].text
    declared = mansard.diagnose(folder / "detailed.json", hardware="h100-sxm").measured
    assert declared is not None
    product = next(p for p in declared.points if p.point.params.get("size") == 4096)
    assert {"measured", "derived", "declared"} <= set(product.shares_by_kind)
    for options, said in (
        ({"phase": "train"}, "--phase: this is about a run"),
        ({"target": "step <= 1 s"}, "about a run"),
    ):
        with pytest.raises(MansardError, match=said):
            mansard.diagnose(folder, **options)
    damaged = element("add", 1.0)
    del damaged["metrics"]["median_s"], damaged["raw_times_ms"], damaged["metadata"]["impl"]
    (folder / "cut.json").write_text(json.dumps([damaged]))
    with pytest.raises(InputError, match=r"cut\.json has a damaged point"):
        mansard.diagnose(folder / "cut.json")
    with pytest.raises(UsageError, match="for the same parameters"):
        mansard.diagnose(folder / "detailed.json", folder / "detailed.json")
    (folder / "none.json").write_text(json.dumps([{**element("add", 1.0), "state": "failed"}]))
    with pytest.raises(UndecidedError, match="no point of"):
        mansard.diagnose(folder / "none.json")
