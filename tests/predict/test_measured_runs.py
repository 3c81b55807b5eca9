"""Public runs: MFU recomputed from tokens per second, and no run faster than its ceiling. See docs/measured_runs.md."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from mansard.core import is_known
from mansard.predict.calibration import SHARES
from mansard.predict.machines import load_machine
from mansard.predict.recorded_runs import read_runs
from mansard.predict.validation import validate
from mansard.workload.conventions import convention_table
from mansard.workload.model.load import load_model


def _public():
    spec = importlib.util.spec_from_file_location("public_runs", Path(__file__).with_name("public_runs.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


public = _public()


@lru_cache(maxsize=64)
def _model(shared: Path, name: str, notes: str, seq: int):
    config = public.config_of(shared, name, notes, seq)
    return None if config is None else load_model(config)


@lru_cache(maxsize=64)
def _table(shared: Path, name: str, notes: str, seq: int):
    return convention_table(_model(shared, name, notes, seq), seq=seq)


@lru_cache(maxsize=64)
def _machine(name: str):
    return load_machine(name)


def _stated(row: dict[str, str]) -> str | None:
    """The convention that a row states, by our names; None where it states none."""
    text = row["attn_convention"]
    if text.startswith("full (12"):
        return "6N_total+full"
    if text.startswith("HALF, but 2-matrix"):
        return "two_matrix_mlp"
    if text.startswith(("HALF", "causal halved")):
        with_mtp = (
            public.normal(row["model"]) == "deepseekv3" and "DGX" in row["hardware"] and "w/o" not in row["model"]
        )
        return "causal_mtp" if with_mtp else "causal"
    if text.startswith(("FULL", "mixed")):
        return "full"
    return None


def test_mfu_of_every_row_with_a_stated_convention(shared):
    checked = 0
    worst = 0.0
    for row in public.rows_of(shared):
        rate, stated = public.number(row["tok_s_per_device"]), _stated(row)
        if rate is None or stated is None or row["id"] in public.EXPLAINED or row["model"].startswith("wan"):
            continue
        seq = public.seq_of(row)
        if _model(shared, row["model"], row["arch_notes"], seq) is None:
            raise AssertionError(f"row {row['id']}: no configuration for {row['model']}")
        flop = _table(shared, row["model"], row["arch_notes"], seq).flop_per_token[stated]
        machine = _machine(public.MACHINES[row["hardware"]])
        # llm-foundry divides its fp8 rows by the fp8 peak, Megatron-Bridge and tpu-recipes state no MFU.
        dtype = {"fp8": "f8_e4m3", "fp4": "f4_e2m1", None: "bf16"}[public.narrow(row["precision"])]
        ceiling = machine.ceilings.peak(dtype, scope=machine.scope)
        assert is_known(ceiling), (row["hardware"], dtype)
        peak = ceiling.value * public.DEVICES_PER_ROW.get(row["hardware"], 1)
        ours = flop * rate / peak
        reported = public.number(row["mfu_reported_pct"])
        theirs = (
            reported / 100
            if reported is not None
            else (public.number(row["tflops_per_device_reported"]) or 0) * 1e12 / peak
        )
        if not theirs:
            continue
        worst = max(worst, abs(ours - theirs))
        assert ours == pytest.approx(theirs, abs=0.005), (row["id"], row["model"], ours, theirs)
        checked += 1
    # 121 of llm-foundry, 3 of MaxText, and the rows of Megatron-Bridge and tpu-recipes that name a convention
    assert checked >= 260
    assert worst < 0.005


def test_parameter_counts_of_llm_foundry(shared):
    for row in public.rows_of(shared):
        if row["model"].startswith("MPT"):
            seq = int(row["seq_len_or_prompt"])
            total = _table(shared, row["model"], row["arch_notes"], seq).flop_per_token["6N_total"] / 6
            assert total == float(row["n_params_total"]), row["id"]


@pytest.fixture(scope="module")
def cases(shared, tmp_path_factory):
    """Every public run that can be bounded, through the file that `mansard validate --runs` reads."""
    found, refused = read_runs(public.write_runs(shared, tmp_path_factory.mktemp("runs")))
    assert not refused
    return found


@pytest.fixture(scope="module")
def shares(cases):
    """Least time over measured time of every row that can be bounded, by kind."""
    out: dict[str, list[tuple[float, str]]] = {}
    for case in cases:
        out.setdefault(case.kind, []).append((case.share, case.name))
    return out


def test_no_run_is_faster_than_its_ceiling(shares):
    counts = {key: len(rows) for key, rows in shares.items()}
    assert counts["train"] >= 270
    assert counts["serving_decode"] >= 140
    assert counts["stream_decode"] >= 28
    for key, rows in shares.items():
        # 3 % is the uncertainty that every share is allowed.
        above = [(round(share, 3), row) for share, row in rows if share > 1.03]
        assert not above, (key, above)


def test_the_expectations_are_those_of_these_runs(shares):
    for key in ("train", "serving_decode", "stream_decode"):
        values = np.array([share for share, _ in shares[key]])
        assert SHARES[key].count == pytest.approx(len(values), abs=2)
        assert SHARES[key].median == pytest.approx(np.median(values), abs=0.01)
        assert SHARES[key].low == pytest.approx(np.quantile(values, 0.1), abs=0.01)


def test_the_published_error_of_the_predictions(cases):
    """docs/validation.md: each source predicted from the others, so what a person with a new machine may expect."""
    found = {k.kind: k for k in validate(cases).kinds}
    for kind, error, within in (("train", 0.3, 0.7), ("serving_decode", 0.5, 0.8), ("stream_decode", 0.45, 0.8)):
        assert found[kind].error_median_ratio < error, found[kind]
        assert found[kind].in_band_ratio > within, found[kind]
