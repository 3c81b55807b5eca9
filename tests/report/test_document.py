from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.core import Area, Bound, Ceiling, Grade, Implausible, InputError, Kind, Resource, Unknown
from mansard.core.document import dumps
from mansard.diagnose.records import (
    SHARE_KINDS,
    Advice,
    Diagnosis,
    Note,
    OperatorRow,
    PartTime,
    StepTime,
    Verdict,
)
from mansard.report.document import from_document, to_document

text = st.text(max_size=12)
texts = st.lists(text, max_size=3).map(tuple)
number = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=1e-12, max_value=1e18)
unknown = st.builds(Unknown, text, texts)
maybe = st.one_of(number, unknown)
share = st.one_of(number, unknown, st.builds(Implausible, number, texts))
some_text, some_number = st.none() | text, st.none() | number
bound, grade = st.sampled_from(Bound), st.sampled_from(Grade)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
ceilings = st.builds(
    Ceiling,
    resource=st.builds(Resource, area=st.sampled_from(Area), dtype=st.none() | st.sampled_from(("f32", "bf16")), level=some_text),
    value=positive, unit=text, kind=st.sampled_from(Kind), scope=st.sampled_from(("core", "node")),
    ci95=st.none() | st.tuples(positive, positive), conditions=st.dictionaries(text, plain, max_size=2), source=text,
)  # fmt: skip
verdicts = st.builds(
    Verdict, bound=bound, limiting_ceiling=text, level=some_text, link=some_text, share_of_ceiling=share, headroom_s=maybe,
    time_share=number, grade=grade, sentence=text, evidence=texts, counter_evidence=texts, will_not_help=texts,
)  # fmt: skip
steps = st.builds(
    StepTime, median_s=number, count=st.integers(0, 10**6), ci95_s=st.tuples(number, number), profiled_median_s=number,
    profiler_overhead_ratio=some_number, source=text, note=text,
)  # fmt: skip
operators = st.builds(
    OperatorRow, name=text, category=text, part=text, shapes=text, source=text, calls=number, time_s=number, flop=maybe,
    bytes=maybe, flop_per_byte=some_number, bound=bound, limiting_ceiling=text, level=some_text, ceiling_value=some_number,
    ceiling_unit=text, share_of_ceiling=share, headroom_s=maybe, grade=grade, reason=text, formula=text,
    full_square_flop=some_number,
)  # fmt: skip


def tuples(strategy: st.SearchStrategy, most: int = 2) -> st.SearchStrategy:
    return st.lists(strategy, max_size=most).map(tuple)


diagnoses = st.builds(
    Diagnosis, program=text, framework=text, verdict=verdicts, step=steps,
    time_shares=st.fixed_dictionaries(dict.fromkeys(SHARE_KINDS, number)),
    parts=tuples(st.builds(PartTime, kind=text, time_s=number, bound=bound)), operators=tuples(operators),
    flop_per_step=maybe, full_square_flop_per_step=maybe, bytes_per_step=maybe, mfu_ratio=share,
    advice=tuples(
        st.builds(
            Advice, rule=text, gain_s=number, text=text, evidence=text, grade=st.sampled_from(Grade), headroom_s=st.none() | number,
            overlaps=tuples(text), instead_of=tuples(text),
        )
    ), ceilings=tuples(ceilings),
    receipt=st.dictionaries(text, plain, max_size=3), findings=tuples(st.builds(Note, code=text, text=text)),
    attributed_ratio=number,
)  # fmt: skip


@given(diagnoses)
@settings(max_examples=120, deadline=None)
def test_a_diagnosis_survives_json(diagnosis: Diagnosis) -> None:
    assert from_document(json.loads(dumps(to_document(diagnosis)))) == diagnosis


def test_the_sample_survives_json(sample: Diagnosis) -> None:
    assert from_document(json.loads(dumps(to_document(sample)))) == sample


def test_the_keys_of_the_contract(sample: Diagnosis) -> None:
    document = to_document(sample)
    assert list(document)[:4] == ["schema", "tool_version", "created", "environment"]
    assert document["schema"] == "run/1"
    assert document["environment"]["torch"] == "2.13.0+cpu"
    assert {"verdict", "parts", "step", "time_shares", "operators", "flop_per_step", "bytes_per_step", "mfu_ratio", "advice",
            "receipt", "findings"} <= set(document)  # fmt: skip
    assert {"bound", "limiting_ceiling", "share_of_ceiling", "headroom_s", "grade", "evidence", "counter_evidence",
            "will_not_help"} <= set(document["verdict"])  # fmt: skip
    assert {"median_s", "count", "ci95_s"} <= set(document["step"])
    assert document["step"]["ci95_s"] == [0.775, 0.791]
    assert set(document["time_shares"]) == set(SHARE_KINDS)
    assert math.isclose(sum(document["time_shares"].values()), 1.0)
    assert {"name", "calls", "time_s", "flop", "bytes", "flop_per_byte", "bound", "share_of_ceiling", "headroom_s",
            "category"} <= set(document["operators"][0])  # fmt: skip
    assert {"rule", "gain_s", "text", "evidence"} <= set(document["advice"][0])
    assert set(document["findings"][0]) == {"code", "text"}
    assert set(document["parts"][0]) == {"kind", "time_s", "bound", "areas"}


def test_unknown_and_implausible_keep_their_form(sample: Diagnosis) -> None:
    rows = {o["name"]: o for o in to_document(sample)["operators"]}
    assert rows["my_ext::rotary_embed"]["flop"] == {
        "unknown": "no cost is known for my_ext::rotary_embed",
        "needs": ["register its FLOP and bytes"],
    }
    share_json = rows["aten::_foreach_norm"]["share_of_ceiling"]
    # 67.6 MB / 36.2 GB/s + 1.3 us = 1.8687 ms in 0.62 ms: 3.014
    assert share_json["implausible"] == pytest.approx(3.014, abs=1e-3)
    assert share_json["suspects"][0].startswith("work that was optimised away")


def test_nan_is_refused_not_written(sample: Diagnosis) -> None:
    broken = dataclasses.replace(sample, attributed_ratio=float("nan"))
    with pytest.raises(ValueError, match="NaN"):
        to_document(broken)


def test_both_schemas_and_no_other(sample: Diagnosis) -> None:
    assert to_document(sample, schema="diagnose/1")["schema"] == "diagnose/1"
    assert from_document(to_document(sample, schema="diagnose/1")) == sample
    with pytest.raises(ValueError, match="unknown schema"):
        to_document(sample, schema="ceilings/1")
    with pytest.raises(InputError, match="ceilings/1"):
        from_document({"schema": "ceilings/1"})
    with pytest.raises(InputError, match="None"):
        from_document({})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("verdict"), "lacks the key 'verdict'"),
        (lambda d: d["verdict"].update(bound="cosmic"), "cosmic"),
        (lambda d: d["step"].update(median_s="fast"), "expected a number"),
        (lambda d: d["step"].update(count=True), "whole number"),
        (lambda d: d["operators"][0].update(flop=[1]), "expected a number"),
        (lambda d: d["operators"][0].update(flop={"unknown": "x"}), "lacks the key 'needs'"),
        (lambda d: d["ceilings"][0].update(value=-1.0), "positive"),
        (lambda d: d["findings"].append(3), "wrong type"),
        (lambda d: d.update(operators=None), "wrong type"),
        (lambda d: d["time_shares"].update(compute=float("inf")), "finite"),
    ],
)
def test_a_damaged_document_is_named_not_guessed(sample: Diagnosis, change, message) -> None:
    document = json.loads(dumps(to_document(sample)))
    change(document)
    with pytest.raises(InputError, match=message):
        from_document(document)
