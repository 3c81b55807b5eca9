"""Damaged files of every format through every verb: an answer or a named refusal, never a stack trace."""

from __future__ import annotations

import contextlib
import gzip
import io
import random
from pathlib import Path

import pytest

from mansard.cli.main import main

#: Small files, one or two of each format; the readers have tests of their own with many more mutations.
FILES = (
    "nsys/2023.3_rtx4090_4streams.sqlite", "nsys/2022.1_rtx2070s_pytorch.sqlite", "nsys/2023.4_cpu_nvtx_only.sqlite",
    "kineto/a100_small.json", "kineto/h100_bert-small.json.gz", "xplane/cpu_jax0.10.2.xplane.pb",
    "xplane/mi300x_conv_jax0.8.xplane.pb", "ncu/rtx4090_index.raw.csv", "ncu/v100_report.details.csv",
)  # fmt: skip
VERBS: tuple[tuple[str, ...], ...] = (
    ("summary",), ("kernels",), ("regions", "--operators"), ("steps",), ("overlap",), ("intensity",),
    ("mfu", "--region", "*", "--match", "glob", "--flops", "1 TFLOP", "--peak", "100 TFLOP/s"),
    ("mfu", "--region", "a", "--match", "contains", "--peak", "1 TFLOP/s"),
)  # fmt: skip
TOKENS = (b"NaN", b"-1", b"1e999", b"99999999999999999999999", b"null", b'""', b"{}", b"[]")


def damaged(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    kind = chance.randrange(5)
    at = chance.randrange(len(out))
    if kind == 0:
        return bytes(out[:at])
    if kind == 1:
        for _ in range(chance.choice((1, 5, 50))):
            out[chance.randrange(len(out))] = chance.randrange(256)
    elif kind == 2:
        out[chance.randrange(min(len(out), 4096))] ^= 1 << chance.randrange(8)
    elif kind == 3:
        del out[at : at + chance.randrange(1, 2000)]
    else:
        while at < len(out) and not 48 <= out[at] <= 57:
            at += 1
        end = at
        while end < len(out) and 48 <= out[end] <= 57:
            end += 1
        out[at:end] = chance.choice(TOKENS)
    return bytes(out)


@pytest.mark.parametrize("name", FILES)
def test_never_a_stack_trace(shared: Path, tmp_path: Path, name: str) -> None:
    whole = (shared / "data/traces" / name).read_bytes()
    packed = whole[:2] == b"\x1f\x8b"
    data = gzip.decompress(whole) if packed else whole
    chance = random.Random(name)
    for turn in range(6):
        broken = damaged(data, chance)
        file = tmp_path / f"{turn}-{Path(name).name}"
        file.write_bytes(gzip.compress(broken, 1) if packed else broken)
        verb = VERBS[chance.randrange(len(VERBS))]
        said = io.StringIO()
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(said),
            pytest.raises(SystemExit) as ended,
        ):
            main(["trace", verb[0], str(file), *verb[1:]])
        assert ended.value.code in (0, 2, 3, 4), said.getvalue()
        assert ended.value.code in (0, 3) or said.getvalue().startswith("mansard: ")


def test_work_without_any_call_belongs_to_no_range(shared: Path, tmp_path: Path) -> None:
    """Ranges and kernels, but no runtime table: nothing is launched from a range, and that is the answer."""
    import sqlite3

    file = tmp_path / "no_calls.sqlite"
    file.write_bytes((shared / "data/traces/nsys/2023.1_rtx3090x4_tensorrt_nvtx.sqlite").read_bytes())
    with sqlite3.connect(file) as db:
        db.execute("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    db.close()
    said = io.StringIO()
    with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main(
            [
                "trace",
                "mfu",
                str(file),
                "--region",
                "TensorRT:*",
                "--match",
                "glob",
                "--flops",
                "1 TFLOP",
                "--peak",
                "71 TFLOP/s",
            ]
        )
    assert ended.value.code == 3
    assert "launched no device work" in said.getvalue()
