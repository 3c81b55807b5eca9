"""Nsight Compute CSV: units per column, measured FLOP and bytes, and no FLOP where tensor cores cannot be counted."""

from __future__ import annotations

import pytest

from mansard.core.demand import Demand
from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.trace.readers import ncu
from mansard.trace.readers.ncu_metrics import measured
from mansard.trace.readers.ncu_units import number, to_base
from mansard.trace.timeline import Kind

HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
ROW = '"0","5","app","127.0.0.1","k(int, int)","1","7","(1, 1, 1)","(1, 1, 1)","0","8.0"'
OPS = {f"sm__sass_thread_inst_executed_op_{p}{o}_pred_on.sum": 0.0 for p in "dhf" for o in ("add", "mul", "fma")}
COUNTED = {**OPS, "sm__sass_thread_inst_executed_op_fadd_pred_on.sum": 10.0, "sm__sass_thread_inst_executed_op_ffma_pred_on.sum": 100.0,
           "dram__bytes_read.sum": 64.0, "dram__bytes_write.sum": 32.0, "gpu__time_duration.sum": 1e-6}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "unit", "base"),
    [
        (52.576, "usecond", 52.576e-6), (3, "nsecond", 3e-9), (1.5, "msecond", 1.5e-3), (2, "second", 2), (9.6, "Mbyte", 9.6e6), (1, "Kbyte", 1e3),
        (2, "byte", 2), (1.025, "Tbyte/second", 1.025e12), (540.5, "cycle/usecond", 540.5e6), (4.6, "cycle/nsecond", 4.6e9), (7, "hz", 7),
        (1.5, "Ghz", 1.5e9), (64, "byte/cycle", 64), (50, "%", 50), (3, "", 3), (1, "Mbyte/second", 1e6),
    ],
)  # fmt: skip
def test_units(value, unit, base):
    assert to_base(value, unit) == pytest.approx(base, rel=1e-15)


def test_unknown_units_and_numbers_are_refused():
    assert to_base(1, "furlong") is None
    assert to_base(1, "byte/furlong") is None
    assert number("1,234,567.5") == 1234567.5
    assert number("3,5") is None  # a decimal comma is no thousands separator
    assert number("inf") is None


def test_the_units_row_decides(tmp_path):
    def read(unit, value):
        path = tmp_path / "r.csv"
        path.write_text(f'{HEAD},"gpu__time_duration.sum"\n{",".join([chr(34) * 2] * 11)},"{unit}"\n{ROW},"{value}"\n')
        return ncu.read(path)

    assert read("usecond", "1.5").of(Kind.KERNEL).duration_ns.tolist() == [1500]
    assert read("nsecond", "1500").of(Kind.KERNEL).duration_ns.tolist() == [1500]
    unknown = read("fortnight", "1.5")
    assert len(unknown.of(Kind.KERNEL)) == 0
    assert unknown.incomplete


def test_no_units_row_is_refused(tmp_path):
    (tmp_path / "r.csv").write_text(f'{HEAD},"gpu__time_duration.sum"\n{ROW},"1.5"\n')
    with pytest.raises(InputError, match="no row of units"):
        ncu.read(tmp_path / "r.csv")


def test_messages_before_the_table_and_a_cut_line(tmp_path):
    text = f'==PROF== Connected to process 5\n{HEAD},"a__b.sum","gpu__time_duration.sum"\n{",".join([chr(34) * 2] * 12)},"usecond"\n{ROW},"1","2"\n'
    path = tmp_path / "r.csv"
    path.write_text(text)
    assert ncu.read(path).of(Kind.KERNEL).duration_ns.tolist() == [2000]
    for at in range(len(text)):
        path.write_text(text[:at])
        try:
            t = ncu.read(path)
        except InputError:
            continue
        assert len(t.of(Kind.KERNEL)) <= 1


def test_flop_is_adds_muls_and_twice_the_fused():
    m = measured({**COUNTED, "sm__inst_executed_pipe_tensor.sum": 0.0}, "8.0")
    assert m.flop["f32"] == 10 + 2 * 100
    assert m.dram_bytes == 96
    demand = m.demand()
    assert isinstance(demand, Demand)
    assert demand.vector_flop == {"f32": 210.0}
    assert (demand.read_bytes, demand.write_bytes, demand.level_bytes["DRAM"]) == (64.0, 32.0, 96.0)


@pytest.mark.parametrize(
    "extra",
    [
        {"sm__inst_executed_pipe_tensor.sum": 5.0},  # instructions of unknown shape
        {},  # nothing says whether tensor cores were used
        {
            "sm__ops_path_tensor_src_bf16_dst_fp32.sum": 4096.0
        },  # whether a multiply-add is 1 or 2 of them is not settled
    ],
)
def test_tensor_work_is_never_guessed(extra):
    m = measured({**COUNTED, **extra}, "9.0")
    assert isinstance(m.demand(), Unknown)
    assert m.demand().needs
    if "sm__ops_path_tensor_src_bf16_dst_fp32.sum" in extra:
        assert m.tensor_operations == {"src_bf16_dst_fp32": 4096.0}


def test_a_share_of_peak_is_no_flop():
    m = measured({"gpu__time_duration.sum": 1e-6, "sm__throughput.avg.pct_of_peak_sustained_elapsed": 80.0}, "8.9")
    assert isinstance(m.flop["f32"], Unknown)
    assert isinstance(m.flop_per_dram_byte, Unknown)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", '"ID"\n', "\x00\x01\x02"])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(InputError) as refused:
        ncu.read(tmp_path / "x.csv")
    assert refused.value.hint
