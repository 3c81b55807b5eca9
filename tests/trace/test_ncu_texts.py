"""Kinds of Nsight Compute CSV as people have them: behind a program's own output, with decimal commas, in UTF-16, of old versions."""

from __future__ import annotations

import pytest

from mansard.core.errors import InputError
from mansard.trace.open import open_trace, recognise
from mansard.trace.timeline import Kind

_HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
_FIRST = '"0","12","a.out","127.0.0.1","gemm(int)","1","7","(32, 1, 1)","(4, 1, 1)","0","8.9"'
_RAW = (
    f'{_HEAD},"dram__bytes.sum","gpu__time_duration.sum"\n"","","","","","","","","","","","Mbyte","usecond"\n'
    f'{_FIRST},"2,000.25","1,000.50"\n'
)
_OLD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Section Name","Metric Name","Metric Unit","Metric Value"\n'
    '"0","12","a.out","h","gemm(int)","1","7","Command line profiler metrics","dram__bytes.sum","Mbyte","2,000.25"\n'
    '"0","12","a.out","h","gemm(int)","1","7","Command line profiler metrics","gpu__time_duration.sum","usecond","1,000.50"\n'
)
_COMMAS = _RAW.replace("2,000.25", "2.000,25").replace("1,000.50", "1.000,50")


@pytest.mark.parametrize(
    "content",
    [
        _RAW.encode(),
        b"epoch 1 loss 0.5\n==PROF== Connected to process 12\n" + _RAW.encode(),
        b"hello, world\n" + _RAW.encode(),
        _RAW.encode("utf-16"),
        _RAW.replace('","', '";"').encode(),
        _COMMAS.encode(),
        _OLD.encode(),
        b"==PROF== Profiling\n" + _OLD.encode(),
    ],
    ids=["plain", "messages", "output", "utf16", "semicolons", "commas", "old", "old_messages"],
)
def test_one_kernel_however_it_is_written(tmp_path, content):
    path = tmp_path / "r.csv"
    path.write_bytes(content)
    assert recognise(path) == "ncu_csv"
    t = open_trace(path)
    # 1,000.50 us = 1000500 ns; 2,000.25 MB = 2000250000 B
    assert t.of(Kind.KERNEL).duration_ns.tolist() == [1_000_500]
    (kernel,) = t.extras["report"].kernels
    assert kernel.values["dram__bytes.sum"] == 2_000_250_000.0
    assert kernel.compute_capability in ("8.9", "")
    assert len(t.used_devices) == 1


def test_decimal_commas_are_said_and_ambiguous_ones_are_left(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text(_COMMAS)
    assert "decimal_comma" in {d.code for d in open_trace(path).damage}
    path.write_text(
        _RAW.replace("2,000.25", "2,000").replace("1,000.50", "1,234")
    )  # both readings are possible: thousands
    t = open_trace(path)
    assert t.of(Kind.KERNEL).duration_ns.tolist() == [1_234_000]
    assert not t.damage


def test_a_summary_over_kernels_is_no_report(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text(
        '"Process ID","Process Name","Kernel Name","Invocations","Metric Name","Average"\n"1","p","k","4","m","15"\n'
    )
    with pytest.raises(InputError, match="print-summary"):
        open_trace(path)


def test_other_text_in_utf_16_says_what_it_is(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes('{"traceEvents": []}'.encode("utf-16"))
    with pytest.raises(InputError, match="UTF-16"):
        open_trace(path)
