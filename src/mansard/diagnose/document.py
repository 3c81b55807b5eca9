"""The `run` and `diagnose` JSON document: a diagnosis to JSON types and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mansard.core import Bound, Grade, Implausible, InputError, Unknown
from mansard.core.ceilings import ceiling_from_json
from mansard.core.document import DAMAGE, damage_in_words, header, to_jsonable
from mansard.diagnose.lower_limits import lower_limits
from mansard.diagnose.records import (
    Advice,
    AreaShare,
    Check,
    Diagnosis,
    Note,
    OperatorRow,
    PartTime,
    StepTime,
    Verdict,
)

SCHEMAS = ("run/1", "diagnose/1")
_NOT_RECORDED: Mapping[str, Any] = {"unknown": "not recorded", "needs": ["mansard run"]}


def to_document(diagnosis: Diagnosis, *, schema: str = "run/1") -> dict[str, Any]:
    """Return the JSON document of a diagnosis: plain JSON types, no NaN, unknown figures written as such.

    Args:
        diagnosis: What to write.
        schema: `run/1` or `diagnose/1`; the keys are the same.

    Raises:
        ValueError: a figure is NaN or infinite, which is a defect of whoever computed it.
    """
    if schema not in SCHEMAS:
        raise ValueError(f"unknown schema {schema!r}, expected one of {', '.join(SCHEMAS)}")
    environment = diagnosis.receipt.get("environment", {})
    head = header(schema, environment if isinstance(environment, Mapping) else {"environment": environment})
    d = diagnosis
    body = {
        "program": d.program,
        "framework": d.framework,
        "verdict": d.verdict,
        "parts": d.parts,
        "step": d.step,
        "time_shares": d.time_shares,
        "operators": d.operators,
        "flop_per_step": d.flop_per_step,
        "full_square_flop_per_step": d.full_square_flop_per_step,
        "hardware_flop_per_step": d.hardware_flop_per_step,
        "bytes_per_step": d.bytes_per_step,
        "lower_limits": lower_limits(d),  # of the figures above: sums over a part of the step
        "mfu_ratio": d.mfu_ratio,
        "hfu_ratio": d.hfu_ratio,
        "attributed_ratio": d.attributed_ratio,
        "advice": d.advice,
        "ceilings": d.ceilings,
        "receipt": d.receipt,
        "findings": d.findings,
    }
    return cast(dict[str, Any], to_jsonable({**head, **body}))


def from_document(document: Mapping[str, Any]) -> Diagnosis:
    """Return the diagnosis of a `run` or `diagnose` document.

    Args:
        document: What `to_document` wrote, read back from JSON; keys it does not know are left alone.

    Raises:
        InputError: another kind of document, or one whose keys are missing or of the wrong type.
    """
    schema = document.get("schema")
    if not isinstance(schema, str) or schema not in SCHEMAS:
        raise InputError(
            f"the document has schema {schema!r}, expected {' or '.join(SCHEMAS)}",
            hint="write one with `mansard run --json PROGRAM`",
        )
    try:
        return _diagnosis(document)
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(
            f"the {schema} document is damaged: {damage_in_words(error)}", hint="the file may be cut short"
        ) from None


def _diagnosis(d: Mapping[str, Any]) -> Diagnosis:
    return Diagnosis(
        program=_text(d["program"]),
        framework=_text(d["framework"]),
        verdict=_verdict(d["verdict"]),
        step=_step(d["step"]),
        time_shares={_text(kind): _number(share) for kind, share in d["time_shares"].items()},
        parts=tuple(
            PartTime(
                kind=_text(p["kind"]), time_s=_number(p["time_s"]), bound=Bound(p["bound"]),
                areas=_numbers(p.get("areas", {})),
            )
            for p in d["parts"]
        ),
        operators=tuple(_operator(o) for o in d["operators"]),
        flop_per_step=_maybe(d["flop_per_step"]),
        full_square_flop_per_step=_maybe(d["full_square_flop_per_step"]),
        bytes_per_step=_maybe(d["bytes_per_step"]),
        mfu_ratio=_share(d["mfu_ratio"]),
        advice=tuple(_advice(a) for a in d["advice"]),
        ceilings=tuple(ceiling_from_json(c) for c in d["ceilings"]),
        receipt=dict(d["receipt"]),
        findings=tuple(Note(code=_text(n["code"]), text=_text(n["text"])) for n in d["findings"]),
        attributed_ratio=_number(d["attributed_ratio"]),
        # Documents of the first release lack these keys.
        hardware_flop_per_step=_maybe(d.get("hardware_flop_per_step", _NOT_RECORDED)),
        hfu_ratio=_share(d.get("hfu_ratio", _NOT_RECORDED)),
    )  # fmt: skip


def _advice(a: Mapping[str, Any]) -> Advice:
    """Return one advice; earlier documents state neither its grade nor what it shares with others."""
    headroom = a.get("headroom_s")
    return Advice(
        rule=_text(a["rule"]), gain_s=_number(a["gain_s"]), text=_text(a["text"]), evidence=_text(a["evidence"]),
        grade=Grade(a.get("grade", Grade.MODELLED)), headroom_s=None if headroom is None else _number(headroom),
        overlaps=tuple(_text(r) for r in a.get("overlaps", ())), instead_of=tuple(_text(r) for r in a.get("instead_of", ())),
    )  # fmt: skip


def _verdict(v: Mapping[str, Any]) -> Verdict:
    return Verdict(
        bound=Bound(v["bound"]),
        limiting_ceiling=_text(v["limiting_ceiling"]),
        level=_optional_text(v["level"]),
        link=_optional_text(v["link"]),
        share_of_ceiling=_share(v["share_of_ceiling"]),
        headroom_s=_maybe(v["headroom_s"]),
        time_share=_number(v["time_share"]),
        grade=Grade(v["grade"]),
        sentence=_text(v["sentence"]),
        evidence=_texts(v["evidence"]),
        counter_evidence=_texts(v["counter_evidence"]),
        will_not_help=_texts(v["will_not_help"]),
        time_s=_number(v.get("time_s", 0.0)),
        shares_by_kind=_numbers(v.get("shares_by_kind", {})),
        areas=tuple(_area(a) for a in v.get("areas", ())),
        needs=_texts(v.get("needs", ())),
    )


def _area(a: Mapping[str, Any]) -> AreaShare:
    return AreaShare(
        area=_text(a["area"]),
        time_s=_number(a["time_s"]),
        time_share=_number(a["time_share"]),
        is_bound=_flag(a["is_bound"]),
        share_of_ceiling=_share(a["share_of_ceiling"]),
        headroom_s=_maybe(a["headroom_s"]),
        limiting_ceiling=_text(a["limiting_ceiling"]),
        shares_by_kind=_numbers(a["shares_by_kind"]),
        link=_text(a["link"]),
    )


def _check(c: Mapping[str, Any]) -> Check:
    return Check(
        area=_text(c["area"]), share_of_ceiling=_share(c["share_of_ceiling"]), is_bound=_flag(c["is_bound"]),
        ceiling=_text(c["ceiling"]),
    )  # fmt: skip


def _numbers(value: Any) -> dict[str, float]:
    return {_text(k): _number(v) for k, v in value.items()}


def _step(s: Mapping[str, Any]) -> StepTime:
    low, high = s["ci95_s"]
    return StepTime(
        median_s=_number(s["median_s"]),
        count=_whole(s["count"]),
        ci95_s=(_number(low), _number(high)),
        profiled_median_s=_number(s["profiled_median_s"]),
        profiler_overhead_ratio=_optional_number(s["profiler_overhead_ratio"]),
        source=_text(s["source"]),
        note=_text(s["note"]),
        statistic=_text(s.get("statistic", "median")),
        steps_s=tuple(_number(t) for t in s.get("steps_s", ())),
        steps_profiled=_flag(s.get("steps_profiled", False)),
    )


def _operator(o: Mapping[str, Any]) -> OperatorRow:
    return OperatorRow(
        name=_text(o["name"]),
        category=_text(o["category"]),
        part=_text(o["part"]),
        shapes=_text(o["shapes"]),
        source=_text(o["source"]),
        calls=_number(o["calls"]),
        time_s=_number(o["time_s"]),
        flop=_maybe(o["flop"]),
        bytes=_maybe(o["bytes"]),
        flop_per_byte=_optional_number(o["flop_per_byte"]),
        bound=Bound(o["bound"]),
        limiting_ceiling=_text(o["limiting_ceiling"]),
        level=_optional_text(o["level"]),
        ceiling_value=_optional_number(o["ceiling_value"]),
        ceiling_unit=_text(o["ceiling_unit"]),
        share_of_ceiling=_share(o["share_of_ceiling"]),
        headroom_s=_maybe(o["headroom_s"]),
        grade=Grade(o["grade"]),
        reason=_text(o["reason"]),
        formula=_text(o["formula"]),
        full_square_flop=_optional_number(o["full_square_flop"]),
        recompute=_flag(o.get("recompute", False)),
        checks=tuple(_check(c) for c in o.get("checks", ())),
        shares_by_kind=_numbers(o.get("shares_by_kind", {})),
        link_bytes=_numbers(o.get("link_bytes", {})),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r:.60}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list of text, got {value!r:.60}")
    return tuple(_text(item) for item in value)


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {value!r:.60}")
    if value != value or abs(value) == float("inf"):
        raise ValueError(f"expected a finite number, got {value!r}")
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected a whole number, got {value!r:.60}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, got {value!r:.60}")
    return value


def _optional_number(value: Any) -> float | None:
    return None if value is None else _number(value)


def _maybe(value: Any) -> float | Unknown:
    if isinstance(value, Mapping):
        return Unknown(_text(value["unknown"]), _texts(value["needs"]))
    return _number(value)


def _share(value: Any) -> float | Unknown | Implausible:
    if isinstance(value, Mapping) and "implausible" in value:
        return Implausible(_number(value["implausible"]), _texts(value["suspects"]))
    return _maybe(value)
