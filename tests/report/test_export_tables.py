from __future__ import annotations

import csv
import dataclasses
import importlib.util
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import mansard
from mansard.cli.export import command
from mansard.core import Grade, Implausible, InputError, Unknown, UsageError
from mansard.core.ceilings import ceilings_from_json
from mansard.core.document import dumps
from mansard.diagnose.records import Advice
from mansard.report.document import to_document
from mansard.report.exports.tabular import to_csv, to_parquet, to_xlsx
from mansard.report.frames import advice_table, joined, operators_table, points_table

HOSTILE = '=HYPERLINK("http://x.invalid","click")\x00\r\n\u202e,"quoted" \ud800\uffff'


@pytest.fixture
def mixed():
    spec = importlib.util.spec_from_file_location("report_mixed_e", Path(__file__).with_name("mixed.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_file(tmp_path, sample):
    path = tmp_path / "run.json"
    path.write_text(dumps(to_document(sample)), encoding="utf-8")
    return path


@pytest.fixture
def hostile(sample):
    first, second, *rest = sample.operators
    evil = dataclasses.replace(first, name=HOSTILE)
    bad = dataclasses.replace(
        second, share_of_ceiling=Implausible(1.7, ("the peak",)), flop=Unknown("no shapes", ("shapes",))
    )
    return dataclasses.replace(sample, operators=(evil, bad, *rest))


def invoke(*args: object):
    return CliRunner().invoke(command, [str(a) for a in args])


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_csv_holds_every_row_and_the_exact_figures(run_file, sample) -> None:
    result = invoke("csv", run_file)
    assert result.exit_code == 0
    rows = read(result.stdout_bytes.decode())
    assert len(rows) == len(sample.operators)
    for row, o in zip(rows, sample.operators, strict=True):
        assert row["source"] == "run.json"
        assert row["name"] == o.name
        assert float(row["time_s"]) == o.time_s  # repr of a float reads back to the same float
        assert (row["flop"] == "") == isinstance(o.flop, Unknown)


def test_what_is_not_known_is_empty_with_its_reason(hostile) -> None:
    row = read(to_csv(operators_table(hostile)))[1]
    assert row["flop"] == ""
    assert row["flop_note"] == "not known: no shapes; needs shapes"
    assert row["share_of_ceiling_ratio"] == ""
    assert row["share_of_ceiling_ratio_note"] == "implausible: 1.7; suspects: the peak"


def test_csv_text_is_never_a_formula(hostile) -> None:
    row = read(to_csv(operators_table(hostile)))[0]
    assert row["name"].startswith("'=HYPERLINK")
    assert not any(c in row["name"] for c in "\x00\r\n\u202e\ud800")
    assert '"quoted"' in row["name"]


def test_parquet_read_back_by_pyarrow(hostile) -> None:
    from pyarrow import BufferReader, parquet

    table = parquet.read_table(BufferReader(to_parquet(operators_table(hostile))))
    assert table.num_rows == len(hostile.operators)
    assert str(table.schema.field("flop").type) == "double"
    assert str(table.schema.field("recompute").type) == "bool"
    assert table.column("flop")[1].as_py() is None
    assert table.column("time_s").to_pylist() == [o.time_s for o in hostile.operators]
    assert table.schema.metadata[b"table"] == b"operators"


def test_an_empty_table_keeps_its_types(sample) -> None:
    from pyarrow import BufferReader, parquet

    table = parquet.read_table(BufferReader(to_parquet(advice_table(dataclasses.replace(sample, advice=())))))
    assert table.num_rows == 0
    assert str(table.schema.field("gain_s").type) == "double"


def test_workbook_read_back_by_openpyxl(hostile) -> None:
    from openpyxl import load_workbook

    book = load_workbook(io.BytesIO(to_xlsx([operators_table(hostile), advice_table(hostile)])))
    assert book.sheetnames == ["operators", "advice"]
    sheet = book["operators"]
    head = [c.value for c in sheet[1]]
    name, seconds = sheet.cell(2, head.index("name") + 1), sheet.cell(2, head.index("time_s") + 1)
    assert name.data_type == "s"  # "f" would be a formula
    assert str(name.value).startswith("=HYPERLINK")
    assert name.quotePrefix
    assert seconds.value == hostile.operators[0].time_s
    assert sheet.cell(3, head.index("flop") + 1).value is None
    assert sheet.max_row == len(hostile.operators) + 1


def test_all_tables_of_a_mix(run_file, tmp_path, mixed) -> None:
    from openpyxl import load_workbook

    points, machine, out = tmp_path / "p.json", tmp_path / "c.json", tmp_path / "o.xlsx"
    points.write_text(json.dumps(mixed.sweep_of_gemm()))
    machine.write_text(json.dumps(mixed.ceilings()))
    assert invoke("xlsx", run_file, points, machine, "-o", out).exit_code == 0
    assert load_workbook(out).sheetnames == ["operators", "parts", "advice", "ceilings", "points"]


def test_frames_agree(hostile) -> None:
    polars, pandas, arrow = mansard.to_polars(hostile), mansard.to_pandas(hostile), mansard.to_arrow(hostile)
    times = [o.time_s for o in hostile.operators]
    assert polars["time_s"].to_list() == pandas["time_s"].tolist() == arrow.column("time_s").to_pylist() == times
    assert polars["flop"][1] is None
    assert bool(pandas["flop"].isna()[1])
    assert polars.columns == list(pandas.columns) == arrow.column_names


def test_frames_of_ceilings_and_points(mixed) -> None:
    ceilings = ceilings_from_json(mixed.ceilings())
    assert mansard.to_polars(ceilings)["value"].to_list() == [2e11, 2.5e11, 3e11, 5e10, 1e12, 6e10]
    points = mansard.to_pandas(mixed.sweep_of_gemm())
    assert points["flop"].tolist() == [2.0 * n**3 for n in (64, 128, 256, 512)]
    with pytest.raises(UsageError, match="has no table"):
        mansard.to_polars(3)


def test_points_with_and_without_a_figure_stand_in_one_table(mixed) -> None:
    table = points_table([*mixed.sweep_of_gemm(), *mixed.all_reduces()])
    assert table.columns["share_of_ceiling"][-1] is None
    assert table.columns["share_of_ceiling_note"][-1] == "not known: no ceiling"
    assert table.kinds["share_of_ceiling"] == "number"


def test_rows_of_several_files_say_where_they_are_from(sample) -> None:
    both = joined([operators_table(sample, source="a"), operators_table(sample, source="b")])
    assert len(both) == 2 * len(sample.operators)
    assert set(both.columns["source"]) == {"a", "b"}


def test_other_tables_by_name(run_file, sample) -> None:
    rows = read(invoke("csv", run_file, "--table", "advice").stdout_bytes.decode())
    assert [float(r["gain_s"]) for r in rows] == [a.gain_s for a in sample.advice]
    parts = read(invoke("csv", run_file, "--table", "parts").stdout_bytes.decode())
    # The bounds of the step: 0.7883 of 0.782 s are compute.
    assert float(next(r for r in parts if r["bound"] == "compute" and r["part"] == "step")["time_s"]) == pytest.approx(
        0.6164506
    )
    assert isinstance(invoke("csv", run_file, "--table", "points").exception, UsageError)


def test_a_mix_needs_a_name_for_its_table(run_file, tmp_path, mixed) -> None:
    machine = tmp_path / "c.json"
    machine.write_text(json.dumps(mixed.ceilings()))
    error = invoke("csv", run_file, machine).exception
    assert isinstance(error, UsageError)
    assert "--table" in error.hint


def test_nothing_is_overwritten(run_file, tmp_path) -> None:
    out = tmp_path / "o.csv"
    out.write_text("mine")
    assert isinstance(invoke("csv", run_file, "-o", out).exception, UsageError)
    assert out.read_text() == "mine"
    assert isinstance(invoke("csv", run_file, "-o", run_file, "--force").exception, UsageError)
    result = invoke("csv", run_file, "-o", out, "--force", "--json")
    assert json.loads(result.stdout)["size_bytes"] == out.stat().st_size


@pytest.mark.parametrize("content", ['{"schema": "doctor/1"}', '{"schema": "run/1"}', "[]", '{"schema": "ceilings/1"}'])
def test_another_file_is_named(tmp_path, content) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    error = invoke("csv", path).exception
    assert isinstance(error, InputError)
    assert "x.json" in error.message


def test_advice_with_hostile_text(sample) -> None:
    evil = Advice(rule="@rule", gain_s=1.0, text="+cmd|' /C calc'!A0", evidence="\tx", grade=Grade.MODELLED)
    row = read(to_csv(advice_table(dataclasses.replace(sample, advice=(evil,)))))[0]
    assert row["rule"] == "'@rule"
    assert row["text"].startswith("'+cmd")
