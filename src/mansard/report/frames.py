"""Results as tables of columns, and as polars, pandas and Arrow frames.

A figure that is not known is an empty cell, and the column of the same name with `_note` says why; it is never a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.core import Ceilings, Implausible, Unknown
from mansard.core.ceilings import Ceiling
from mansard.core.errors import InputError, UsageError, install
from mansard.diagnose.records import Diagnosis, OperatorRow
from mansard.report.text import clean

#: Types of a column: text, a number (float64), a whole number (int64), yes or no.
KINDS = ("text", "number", "whole", "flag")
#: What `mansard export --table` can ask for.
TABLES = ("operators", "parts", "advice", "ceilings", "points")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of columns of equal length; None is an empty cell.

    Args:
        name: What its rows are.
        columns: Name -> values. Names end in the SI unit of what they hold.
        kinds: Name -> one of `KINDS`; it holds for empty tables too.
    """

    name: str
    columns: Mapping[str, list[Any]]
    kinds: Mapping[str, str]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def rows(self) -> Iterable[tuple[Any, ...]]:
        """Return the rows, cells in the order of the columns."""
        return zip(*self.columns.values(), strict=True)


class _Builder:
    """Collects rows and fixes the type of every column."""

    def __init__(self, table: str, /, **kinds: str) -> None:
        self.name = table
        self.kinds: dict[str, str] = {}
        self.maybe = set()
        for column, kind in kinds.items():
            self.kinds[column] = "number" if kind == "maybe" else kind
            if kind == "maybe":
                self.maybe.add(column)
                self.kinds[f"{column}_note"] = "text"
        self.columns: dict[str, list[Any]] = {column: [] for column in self.kinds}

    def add(self, **cells: Any) -> None:
        for column, value in cells.items():
            if column in self.maybe:
                self.columns[column].append(None if isinstance(value, Unknown | Implausible) else value)
                self.columns[f"{column}_note"].append(why(value))
            else:
                self.columns[column].append(_cell(value, self.kinds[column]))

    def done(self) -> Table:
        lengths = {len(values) for values in self.columns.values()}
        assert len(lengths) == 1, "a row lacks a column"
        return Table(name=self.name, columns=self.columns, kinds=self.kinds)


def _cell(value: Any, kind: str) -> Any:
    if value is None:
        return None
    return clean(value) if kind == "text" else float(value) if kind == "number" else value


def why(value: float | Unknown | Implausible | None) -> str:
    """Return why a figure is no number: empty where it is one.

    >>> why(Unknown("no clock", ("--hardware",))), why(Implausible(1.5, ("the peak",))), why(0.5)
    ('not known: no clock; needs --hardware', 'implausible: 1.5; suspects: the peak', '')
    """
    if isinstance(value, Unknown):
        return clean(f"not known: {value.reason}" + (f"; needs {', '.join(value.needs)}" if value.needs else ""))
    if isinstance(value, Implausible):
        return clean(f"implausible: {value.value:.6g}; suspects: {', '.join(value.suspects)}")
    return ""


def operators_table(diagnosis: Diagnosis, *, source: str = "") -> Table:
    """Return the operator table of a diagnosis; amounts are per step.

    Args:
        diagnosis: The run.
        source: Name of the file or device, where several stand in one table.
    """
    out = _Builder(
        "operators", source="text", name="text", category="text", part="text", shapes="text", call_site="text",
        recompute="flag", calls="number", time_s="number", flop="maybe", bytes="maybe", link_bytes="number",
        flop_per_byte="number", bound="text",
        limiting_ceiling="text", level="text", ceiling_value="number", ceiling_unit="text", share_of_ceiling_ratio="maybe",
        headroom_s="maybe", share_of_measured_ratio="number", share_of_derived_ratio="number", share_of_declared_ratio="number",
        grade="text", reason="text", formula="text", full_square_flop="number",
    )  # fmt: skip
    for o in diagnosis.operators:
        out.add(source=source, **_operator(o))
    return out.done()


def _operator(o: OperatorRow) -> dict[str, Any]:
    kinds = {f"share_of_{k}_ratio": o.shares_by_kind.get(k) for k in ("measured", "derived", "declared")}
    return {
        "name": o.name, "category": o.category, "part": o.part, "shapes": o.shapes, "call_site": o.source,
        "recompute": o.recompute, "calls": o.calls, "time_s": o.time_s, "flop": o.flop, "bytes": o.bytes,
        "link_bytes": max(o.link_bytes.values(), default=None), "flop_per_byte": o.flop_per_byte,
        "bound": o.bound.value, "limiting_ceiling": o.limiting_ceiling, "level": o.level,
        "ceiling_value": o.ceiling_value, "ceiling_unit": o.ceiling_unit, "share_of_ceiling_ratio": o.share_of_ceiling,
        "headroom_s": o.headroom_s, "grade": o.grade.value, "reason": o.reason, "formula": o.formula,
        "full_square_flop": o.full_square_flop, **kinds,
    }  # fmt: skip


def parts_table(diagnosis: Diagnosis, *, source: str = "") -> Table:
    """Return the time of the parts of a step, and of its areas."""
    out = _Builder(
        "parts", source="text", kind="text", part="text", bound="text", time_s="number", time_share_ratio="number"
    )
    step = diagnosis.step.median_s
    for p in diagnosis.parts:
        share = p.time_s / step if step > 0 else None
        out.add(source=source, kind="part", part=p.kind, bound=p.bound.value, time_s=p.time_s, time_share_ratio=share)
    for area, share in diagnosis.time_shares.items():
        out.add(source=source, kind="bound", part="step", bound=area, time_s=share * step, time_share_ratio=share)
    return out.done()


def advice_table(diagnosis: Diagnosis, *, source: str = "") -> Table:
    """Return the advice, the largest gain first; gains of overlapping rules do not add up."""
    out = _Builder("advice", source="text", rule="text", gain_s="number", headroom_s="number", grade="text", text="text",
                   evidence="text", overlaps="text")  # fmt: skip
    for a in diagnosis.advice:
        out.add(source=source, rule=a.rule, gain_s=a.gain_s, headroom_s=a.headroom_s, grade=a.grade.value, text=a.text,
                evidence=a.evidence, overlaps=", ".join(a.overlaps))  # fmt: skip
    return out.done()


def ceilings_table(ceilings: Iterable[Ceiling], *, source: str = "") -> Table:
    """Return ceilings with the fields of their resource, kind, scope and interval."""
    out = _Builder("ceilings", source="text", ceiling="text", area="text", dtype="text", accumulate="text", engine="text",
                   level="text", mix="text", page="text", store="text", link="text", backend="text", value="number", unit="text",
                   kind="text", scope="text", ci95_low="number", ci95_high="number", origin="text")  # fmt: skip
    names = ("dtype", "accumulate", "engine", "level", "mix", "page", "store", "link", "backend")
    for c in ceilings:
        low, high = c.ci95 or (None, None)
        resource = {n: getattr(c.resource, n) for n in names}
        out.add(source=source, ceiling=c.resource.label, area=c.resource.area.value, **resource, value=c.value, unit=c.unit,
                kind=c.kind.value, scope=c.scope, ci95_low=low, ci95_high=high, origin=c.source)  # fmt: skip
    return out.done()


def points_table(elements: Sequence[Mapping[str, Any]], *, source: str = "") -> Table:
    """Return measured points: one row each, a column for each parameter and each figure that some of them have.

    Args:
        elements: Elements of `detailed.json`.
        source: Name of the file.

    Raises:
        InputError: an element is damaged.
    """
    try:
        return _points(elements, source)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{source or 'the list'} has a damaged point: {error!r}", hint="measure again") from None


_POINT_TEXTS = ("source", "benchmark", "test", "impl", "state", "verdict", "reason")


def _points(elements: Sequence[Mapping[str, Any]], source: str) -> Table:
    rows: list[dict[str, Any]] = []
    for e in elements:
        meta = e["metadata"]
        row: dict[str, Any] = {
            "source": source, "benchmark": meta["benchmark_name"], "test": meta["test_name"], "impl": meta["impl"],
            "state": e["state"], "verdict": e.get("verdict"), "reason": e.get("verdict_reason") or e.get("reason") or "",
        }  # fmt: skip
        row |= {f"param_{k}": v for k, v in meta["params"].items() if k != "impl"}
        for name, value in e["metrics"].items():
            row |= _figure(str(name), value)
        rows.append(row)
    names = list(dict.fromkeys((*_POINT_TEXTS, *(n for row in rows for n in row))))
    columns, kinds = {}, {}
    for name in names:
        values = [row.get(name) for row in rows]
        numbers = name not in _POINT_TEXTS and all(v is None or _is_number(v) for v in values)
        label = clean(name)
        kinds[label] = "number" if numbers and any(v is not None for v in values) else "text"
        columns[label] = [None if v is None else float(v) if kinds[label] == "number" else clean(v) for v in values]
    return Table(name="points", columns=columns, kinds=kinds)


def _figure(name: str, value: Any) -> dict[str, Any]:
    """Return the cells of one figure of a point: a number or text, or nothing and the reason."""
    if isinstance(value, Mapping) and "unknown" in value:
        return {name: None, f"{name}_note": why(Unknown(str(value["unknown"]), tuple(value.get("needs", ()))))}
    if isinstance(value, Mapping) and "implausible" in value:
        return {
            name: None,
            f"{name}_note": why(Implausible(float(value["implausible"]), tuple(value.get("suspects", ())))),
        }
    if isinstance(value, Mapping | list):
        return {name: clean(value)}
    return {name: value}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def joined(tables: Sequence[Table]) -> Table:
    """Return tables of one name below each other; a column that one of them lacks is empty there."""
    kinds: dict[str, str] = {}
    for table in tables:
        for name, kind in table.kinds.items():
            kinds[name] = kind if kinds.get(name, kind) == kind else "text"
    columns: dict[str, list[Any]] = {name: [] for name in kinds}
    for table in tables:
        for name, kind in kinds.items():
            values = table.columns.get(name, [None] * len(table))
            as_text = kind == "text" and table.kinds.get(name, kind) != "text"
            columns[name] += [clean(v) if as_text and v is not None else v for v in values]
    return Table(name=tables[0].name, columns=columns, kinds=kinds)


def table_of(record: Any) -> Table:
    """Return the table of a record: a table itself, a diagnosis, ceilings, or points.

    Raises:
        UsageError: anything else.
    """
    if isinstance(record, Table):
        return record
    diagnosis = getattr(record, "diagnosis", record)
    if isinstance(diagnosis, Diagnosis):
        return operators_table(diagnosis)
    if isinstance(record, Ceilings):
        return ceilings_table(record.ceilings)
    if isinstance(record, list | tuple) and record and all(isinstance(e, Mapping) for e in record):
        return points_table(record)
    raise UsageError(
        f"{type(record).__name__} has no table", hint="give a Diagnosis, Ceilings, or the elements of detailed.json"
    )


def needs(package: str, extra: str) -> InputError:
    """Return the error of a package that is not installed."""
    return InputError(f"{package} is not installed", hint=install(extra), code="missing_package")


def to_polars(record: Any) -> Any:
    """Return a `polars.DataFrame` of a table, a diagnosis (its operators), ceilings or points."""
    try:
        import polars
    except ImportError:
        raise needs("polars", "frames") from None
    table = table_of(record)
    types = {"text": polars.String, "number": polars.Float64, "whole": polars.Int64, "flag": polars.Boolean}
    return polars.DataFrame(dict(table.columns), schema={name: types[kind] for name, kind in table.kinds.items()})


def to_pandas(record: Any) -> Any:
    """Return a `pandas.DataFrame` of a table, a diagnosis (its operators), ceilings or points; empty cells are `<NA>`."""
    try:
        import pandas
    except ImportError:
        raise needs("pandas", "frames") from None
    table = table_of(record)
    types = {"text": "string", "number": "Float64", "whole": "Int64", "flag": "boolean"}
    columns = {n: pandas.array(v, dtype=types[table.kinds[n]]) for n, v in table.columns.items()}
    return pandas.DataFrame(columns)


def to_arrow(record: Any) -> Any:
    """Return a `pyarrow.Table` of a table, a diagnosis (its operators), ceilings or points."""
    try:
        import pyarrow
    except ImportError:
        raise needs("pyarrow", "frames") from None
    table = table_of(record)
    types = {"text": pyarrow.string(), "number": pyarrow.float64(), "whole": pyarrow.int64(), "flag": pyarrow.bool_()}
    arrays = [pyarrow.array(v, type=types[table.kinds[n]]) for n, v in table.columns.items()]
    return pyarrow.table(arrays, names=list(table.columns)).replace_schema_metadata({"table": table.name})
