"""`mansard validate`: predictions held against runs. Every expected number is worked by hand beside it."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.cli.main import main
from mansard.core import Unknown
from mansard.core.errors import InputError
from mansard.predict.by_name import estimate
from mansard.predict.calibration import SHARES, kind_of, prediction_of, read_shares
from mansard.predict.recorded_runs import read_runs
from mansard.predict.validation import Case, share_of, validate


def case(name, group, bound_s, measured_s=10.0, kind="train"):
    return Case(name=name, group=group, kind=kind, bound_s=bound_s, measured_s=measured_s)


def called(capfd, *args):
    with pytest.raises(SystemExit) as stopped:
        main(["validate", *args])
    out, err = capfd.readouterr()
    return stopped.value.code or 0, out, err


def test_a_run_is_predicted_from_the_other_groups():
    # b's shares are 0.4, 0.5, 0.8: median 0.5. a's run has bound 3 s, so 6 s are expected; it took 10: -40 %.
    found = validate([case("x", "a", 3.0), case("p", "b", 4.0), case("q", "b", 5.0), case("r", "b", 8.0)])
    x = found.outcomes[0]
    assert x.expected_s == 6.0
    assert x.error_ratio == pytest.approx(-0.4)
    # the slowest tenth of (0.4, 0.5, 0.8) is 0.4 + 0.2 * 0.1 = 0.42: 3 / 0.42 = 7.14 s, and 10 s lie beyond
    assert x.high_s == pytest.approx(3.0 / 0.42)
    assert x.in_band is False
    # b's runs have only one run in other groups
    assert isinstance(found.outcomes[1].expected_s, Unknown)
    (kind,) = found.kinds
    assert (kind.count, kind.groups, kind.predicted) == (4, 2, 1)
    assert kind.error_median_ratio == pytest.approx(0.4)
    assert kind.bias_ratio == pytest.approx(-0.4)
    assert kind.in_band_ratio == 0.0


def test_a_single_group_is_left_out_one_run_at_a_time():
    # without itself, 0.5 sees 0.4, 0.6, 0.7: median 0.6, expected 5 / 0.6 = 8.33 s against 10: -16.7 %
    found = validate([case(str(b), "a", b) for b in (5.0, 4.0, 6.0, 7.0)])
    assert found.outcomes[0].error_ratio == pytest.approx(5.0 / 0.6 / 10.0 - 1.0)


def test_a_run_above_its_bound_teaches_nothing():
    cases = [case("ok", "a", 4.0), case("ok2", "a", 4.0), case("ok3", "a", 4.0), case("wrong", "b", 12.0)]
    found = validate(cases)
    assert found.implausible == ("wrong",)
    assert found.shares["train"].median == 0.4
    assert found.shares["train"].count == 3


def test_two_runs_are_too_few():
    assert isinstance(share_of([case("a", "a", 1.0)] * 2, ""), Unknown)
    found = validate([case("a", "a", 1.0), case("b", "b", 1.0)])
    assert isinstance(found.kinds[0].error_median_ratio, Unknown)
    assert found.shares == {}


@given(st.lists(st.floats(0.01, 1.0), min_size=4, max_size=12), st.floats(0.1, 10.0))
def test_scaling_all_times_changes_no_error(shares, factor):
    def errors(scale):
        cases = [case(str(i), f"g{i % 2}", s * 10.0 * scale, 10.0 * scale) for i, s in enumerate(shares)]
        return [o.error_ratio for o in validate(cases).outcomes]

    for one, other in zip(errors(1.0), errors(factor), strict=True):
        assert (isinstance(one, Unknown) and isinstance(other, Unknown)) or math.isclose(
            one, other, rel_tol=1e-9, abs_tol=1e-9
        )


@given(st.floats(0.05, 1.0), st.integers(4, 9))
def test_runs_at_one_share_are_predicted_exactly(share, count):
    found = validate([case(str(i), f"g{i}", share * (i + 1.0), i + 1.0) for i in range(count)])
    assert found.kinds[0].error_median_ratio == pytest.approx(0.0, abs=1e-9)
    assert found.kinds[0].in_band_ratio == 1.0


HEADER = "name,group,model,on,phase,batch,context,seq,time_s,tokens_per_s\n"


def test_runs_of_a_file_are_bounded_by_the_estimate(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(
        HEADER + "one,a,llama-3.1-8b,h100-sxm,decode,1,4096,,0.01,\ntwo,a,llama-3.1-8b,h100-sxm,decode,8,4096,,,400\n",
        encoding="utf-8",
    )
    (one, two), refused = read_runs(path)
    assert refused == []
    alone = estimate("llama-3.1-8b", on="h100-sxm", context=4096)
    assert one.bound_s == alone.bound.time_s
    assert (one.measured_s, one.kind) == (0.01, "stream_decode")
    # 8 tokens a step at 400 token/s: 20 ms
    assert two.measured_s == pytest.approx(0.02)
    assert two.kind == "serving_decode"


def test_a_row_may_say_that_messages_hide(tmp_path):
    path = tmp_path / "runs.csv"
    rows = "".join(f"llama-3.1-8b,h100-sxm,decode,64,1024,8,{word},0.01\n" for word in ("full", "none", "", "half"))
    path.write_text("model,on,phase,batch,context,tp,overlap,time_s\n" + rows, encoding="utf-8")
    (hidden, waiting, silent), (refused,) = read_runs(path)
    assert hidden.bound_s < waiting.bound_s == silent.bound_s
    assert "overlap 'half'" in refused["reason"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("x,a,llama-3.1-8b,h100-sxm,decode,1,4096,,,", "0 of time_s and tokens_per_s"),
        ("x,a,llama-3.1-8b,h100-sxm,decode,1,4096,,1,2", "2 of time_s and tokens_per_s"),
        ("x,a,llama-3.1-8b,h100-sxm,decode,one,4096,,1,", "batch is 'one'"),
        ("x,a,llama-3.1-8b,h100-sxm,decode,1,4096,,-1,", "time_s is '-1'"),
        ("x,a,llama-3.1-8b,h100-sxm,dreaming,1,4096,,1,", "phase 'dreaming'"),
        ("x,a,no-such-model,h100-sxm,decode,1,4096,,1,", "no-such-model"),
        ("x,a,llama-3.1-8b,no-such-gpu,decode,1,4096,,1,", "no-such-gpu"),
        ("x,a,llama-3.1-8b,h100-sxm,decode,1,4096,,1,,,surplus", "more cells"),
        ("x,a,,h100-sxm,decode,1,4096,,1,", "no model"),
        ("x,a,llama-3.1-8b,h100-sxm,decode,1,,,1,", "context"),
    ],
)
def test_a_row_that_cannot_be_bounded_is_kept_aside_with_its_reason(tmp_path, row, says):
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + row + "\n", encoding="utf-8")
    cases, (refused,) = read_runs(path)
    assert cases == []
    assert says in refused["reason"]
    assert "line 2" in refused["reason"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model,on,phase,tiem_s\n", "'tiem_s'"),
        ("model,on,time_s\nm,h,1\n", "no column phase"),
        ("model,on,phase\nm,h,decode\n", "time_s or tokens_per_s"),
        ("model,on,phase,time_s\n", "no rows"),
        ("", "no column model"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, text, says):
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=says):
        read_runs(path)


def test_the_verb_writes_what_estimate_reads(capfd, tmp_path):
    runs = tmp_path / "runs.csv"
    alone = float(estimate("llama-3.1-8b", on="h100-sxm", context=4096).bound.time_s)
    # at half, a third and a quarter of the bound
    rows = "".join(f"r{k},g{k},llama-3.1-8b,h100-sxm,decode,1,4096,,{alone * k},\n" for k in (2, 3, 4))
    runs.write_text(HEADER + rows, encoding="utf-8")
    kept = tmp_path / "mine.json"
    code, out, err = called(capfd, "--runs", str(runs), "-o", str(kept))
    assert code == 0
    assert "decode, one stream" in out
    assert "wrote" in err
    assert max(map(len, out.splitlines())) <= 80
    shares = read_shares(kept)
    assert shares["stream_decode"].median == pytest.approx(1 / 3)
    result = estimate("llama-3.1-8b", on="h100-sxm", context=4096)
    assert prediction_of(result, shares).expected_s == pytest.approx(3 * alone)
    assert prediction_of(result).expected_s == pytest.approx(alone / SHARES["stream_decode"].median)
    # a kind that the calibration does not know is unknown, not the public figure
    many = estimate("llama-3.1-8b", on="h100-sxm", context=4096, batch=8)
    assert kind_of(many) == "serving_decode"
    assert isinstance(prediction_of(many, shares).expected_s, Unknown)

    code, _, err = called(capfd, "--runs", str(runs), "-o", str(kept))
    assert code == 2
    assert "--force" in err
    code, out, _ = called(capfd, "--runs", str(runs), "--json")
    document = json.loads(out)
    assert document["schema"] == "validation/1"
    assert [c["name"] for c in document["cases"]] == ["r2", "r3", "r4"]


def test_a_run_that_beats_its_bound_is_a_finding(capfd, tmp_path):
    runs = tmp_path / "runs.csv"
    runs.write_text(HEADER + "fast,a,llama-3.1-8b,h100-sxm,decode,1,4096,,1e-6,\n", encoding="utf-8")
    code, out, _ = called(capfd, "--runs", str(runs))
    assert code == 3
    assert "Faster than their bound" in out


def test_wrong_usage(capfd, tmp_path):
    assert called(capfd, "--models", "gpt5")[0] == 2
    assert called(capfd, "--runs", str(tmp_path / "none.csv"))[0] == 4
    assert called(capfd, "--runs", "x.csv", "--models", "llama")[0] == 2
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema": "validation/1", "shares": {"train": {}}}', encoding="utf-8")
    with pytest.raises(InputError):
        read_shares(bad)


@pytest.mark.live
def test_trials_run_here():
    """Whatever this machine's speed: every task of a model is run, timed and bounded, and the FLOP are those of the model."""
    pytest.importorskip("transformers")
    from mansard.core import Area, Ceiling, Ceilings, Kind, Resource
    from mansard.predict.trial import TASKS, Trial, run_trials, trials

    assert len(trials()) == 4 * len(TASKS)
    common = {"kind": Kind.DECLARED, "scope": "node", "source": "a machine a million times as fast as this one"}
    fast = Ceilings(
        ceilings=(
            Ceiling(
                resource=Resource(area=Area.COMPUTE, dtype="f32", accumulate="f32", engine="matrix"),
                value=1e18, unit="FLOP/s", **common,
            ),
            Ceiling(resource=Resource(area=Area.MEMORY, level="dram", mix="read"), value=1e16, unit="B/s", **common),
        ),
        levels=(), machine={},
    )  # fmt: skip
    small = [
        Trial(model="llama", task={"phase": "prefill", "batch": 1, "seq": 16}),
        Trial(model="mixtral", task={"phase": "decode", "batch": 2, "context": 16}),
        Trial(model="gpt2", task={"phase": "train", "seq": 16, "micro_batch": 1}),
    ]
    cases, failed = run_trials(small, fast, threads=1)
    assert failed == []
    assert [c.kind for c in cases] == ["prefill", "serving_decode", "train"]
    for found in cases:
        assert 0.0 < found.bound_s < found.measured_s
