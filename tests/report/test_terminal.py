from __future__ import annotations

import dataclasses
import math
import re

import pytest
from rich.cells import cell_len

from mansard.core import Bound, Grade, Implausible, Unknown
from mansard.diagnose.records import Diagnosis, Note, OperatorRow
from mansard.report.terminal import render


def row(name: str, time_s: float, **changes: object) -> OperatorRow:
    base = OperatorRow(
        name=name, category="matmul", part="forward", shapes="", source="", calls=2, time_s=time_s, flop=1e9, bytes=2e6,
        flop_per_byte=500.0, bound=Bound.COMPUTE, limiting_ceiling="f32 matrix", level="dram", ceiling_value=205e9,
        ceiling_unit="FLOP/s", share_of_ceiling=0.5, headroom_s=time_s / 2, grade=Grade.MODELLED, reason="", formula="",
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize("width", [40, 60, 80, 140])
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_is_wider_than_the_page(sample, hostile, width, verbose, encoding) -> None:
    for diagnosis in (sample, hostile):
        text = render(diagnosis, width=width, verbose=verbose, encoding=encoding)
        assert max(cell_len(line) for line in text.splitlines()) <= width
        text.encode(encoding)


@pytest.mark.parametrize("verbose", [False, True])
def test_nothing_from_a_profile_reaches_the_terminal_as_a_control_character(hostile, verbose) -> None:
    for color in (False, True):
        text = render(hostile, width=100, verbose=verbose, color=color)
        without_colour = re.sub(r"\x1b\[[0-9;]*m", "", text)
        if not color:
            assert without_colour == text
        assert all(c == "\n" or c.isprintable() or c == "\u00a0" for c in without_colour)
        assert "\x1b[31mred" not in text


def test_colour_is_the_callers_choice(sample, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in render(sample, color=False)
    assert "\x1b[" in render(sample, color=True)


@pytest.mark.parametrize("width", [60, 80, 140])
def test_printed_shares_add_to_one_hundred(sample, width) -> None:
    text = render(sample, width=width).replace("\u00a0", " ")
    block = text[text.index("Where the time goes") : text.index("by part")]
    shares = [float(x) for x in re.findall(r"(\d+\.\d) %", re.sub(r"\s+", " ", block))]
    assert len(shares) == 5  # network is exactly zero
    assert math.isclose(sum(shares), 100.0, abs_tol=1e-9)


def test_rows_and_others_and_total_add_up(sample) -> None:
    # 13 operators of 10 ms in a step of 200 ms: seven rows of 5.0 %, six others of 30.0 %, 65.0 % in all.
    rows = tuple(row(f"op{i:02d}", 0.010) for i in range(13))
    step = dataclasses.replace(sample.step, median_s=0.2)
    text = render(dataclasses.replace(sample, operators=rows, step=step, advice=(), findings=()), width=80)
    lines = text.splitlines()
    assert (
        len([n for n in lines if re.match(r"op\d\d .* 10\.0ms +5\.0% +1\.00G +2\.00M +500 compute +50% +5\.00ms", n)])
        == 7
    )
    # 6 x 2 calls, 60 ms, 6 GFLOP, 12 MB, 30 ms of headroom
    assert any(re.match(r"6 others +12 60\.0ms 30\.0% 6\.00G 12\.0M +30\.0ms$", n) for n in lines)
    # 13 x 2 calls, 130 ms, 13 GFLOP, 26 MB, 65 ms
    assert any(re.match(r"all operators +26 +130ms 65\.0% 13\.0G 26\.0M +65\.0ms$", n) for n in lines)


def test_one_more_than_the_limit_is_shown_not_summed(sample) -> None:
    rows = tuple(row(f"op{i:02d}", 0.01) for i in range(8))
    text = render(dataclasses.replace(sample, operators=rows, advice=(), findings=()), width=80)
    assert "op07" in text
    assert "others" not in text


def test_unknown_and_implausible_are_marked(sample) -> None:
    rows = (
        row("mystery", 0.1, flop=Unknown("no cost"), bytes=Unknown("no cost"), flop_per_byte=None,
            share_of_ceiling=Unknown("no cost"), headroom_s=Unknown("no cost"), bound=Bound.UNDETERMINED),
        row("too_fast", 0.1, share_of_ceiling=Implausible(3.69, ("dead code", "no sync")), headroom_s=0.0),
    )  # fmt: skip
    lines = render(dataclasses.replace(sample, operators=rows), width=80, verbose=True).splitlines()
    mystery = next(n for n in lines if n.startswith("mystery"))
    assert mystery.split()[-2:] == ["?", "?"]
    assert mystery.count("?") == 4
    assert "369%!" in next(n for n in lines if n.startswith("too_fast"))
    assert any("suspects: dead code; no sync" in n for n in lines)
    # A sum with an unknown in it is a lower limit, not a total.
    assert "\u22651.00G" in next(n for n in lines if n.startswith("all operators"))
    lines = render(dataclasses.replace(sample, operators=rows), width=80, encoding="ascii").splitlines()
    assert ">=1.00G" in next(n for n in lines if n.startswith("all operators"))
    assert len({len(n) for n in lines if n.startswith(("name ", "all operators"))}) == 1  # the columns stay in line


def test_headline_says_why_a_figure_is_missing(sample) -> None:
    unknown = dataclasses.replace(sample, mfu_ratio=Unknown("no f32 matrix ceiling", ("mansard measure",)))
    text = render(unknown, width=80)
    assert "MFU ?" in text
    assert "MFU: not known: no f32 matrix ceiling; needs mansard measure" in text


def test_the_story_is_short_and_complete(sample) -> None:
    text = render(sample, width=80)
    assert len(text.splitlines()) <= 40
    text = " ".join(text.split())
    for word in ("Compute-bound: 79 %", "782 ms median of 17 steps", "775 ms to 791 ms", "profiler +3.5 %", "88.2 GFLOP",
                 "MFU 55 %", "Worth doing first", "up to 312 ms/step", "Findings", "Receipt", "judged against",
                 "205 GFLOP/s (measured,", "versions and settings with -v"):  # fmt: skip
        assert word in text, word


def test_roofline_is_drawn_where_there_is_room(sample) -> None:
    assert "Roofline" not in render(sample, width=80)
    assert "Roofline" in render(sample, width=80, verbose=True)
    wide = render(sample, width=120)
    assert "f32 matrix 205 GFLOP/s" in wide
    assert "DRAM" in wide[wide.index("Roofline") :]
    assert any(0x2800 < ord(c) < 0x2900 for c in wide)
    assert "Roofline" not in render(sample, width=120, roofline=False)
    assert not any(0x2800 < ord(c) < 0x2900 for c in render(sample, width=120, encoding="latin-1"))


def test_an_empty_diagnosis_still_tells_its_story(sample: Diagnosis) -> None:
    empty = dataclasses.replace(
        sample, operators=(), ceilings=(), advice=(), findings=(), receipt={}, parts=(),
        time_shares={"compute": 0.0, "memory": 0.0, "network": 0.0, "host": 0.0, "latency": 0.0, "unattributed": 1.0},
    )  # fmt: skip
    text = render(empty, width=80, verbose=True)
    assert "none were recorded" in text
    assert "no rule found anything worth doing" in text
    assert "100.0" in text


def test_one_step_has_no_interval_and_the_receipt_has_no_raw_keys(sample) -> None:
    once = dataclasses.replace(
        sample,
        step=dataclasses.replace(sample.step, count=1),
        advice=(),
        findings=(),
        operators=sample.operators[:2],
        receipt={"mfu_peak": {"label": "f32 matrix, dense"}, "flop_convention": "1 MAC = 2 FLOP"},
    )
    text = re.sub(r"\s+", " ", render(once, width=80))
    assert "median of 1 step, its spread is not known" in text
    assert "95 % of the median" not in text
    assert "mfu peak: f32 matrix, dense" in text
    assert "flop convention: 1 MAC = 2 FLOP" in text


def test_a_recording_without_steps_says_that_warm_up_is_in_it(sample) -> None:
    step = dataclasses.replace(sample.step, count=1, source="none", note="everything that was recorded")
    text = re.sub(r"\s+", " ", render(dataclasses.replace(sample, step=step), width=80))
    assert "782 ms in all: set-up, compilation and warm-up are in it" in text
    assert "median" not in text[text.index("782 ms in all") : text.index("Where the time goes")]
    one = dataclasses.replace(sample.step, count=1)
    text = re.sub(r"\s+", " ", render(dataclasses.replace(sample, step=one), width=80))
    assert "warm-up may be in it" in text


LONG = (
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::_efficient_attention_forward",
    "multiply_add_reduce_fusion",
)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_names_are_whole_at_every_width(sample, width) -> None:
    found = dataclasses.replace(sample, operators=tuple(row(name, 0.01) for name in LONG))
    lines = render(found, width=width).splitlines()
    table = lines[next(i for i, n in enumerate(lines) if n.startswith("Operators")) :]
    for name in LONG:
        at = next(i for i, n in enumerate(table) if n.startswith(name))
        figures = table[at] if "10.0ms" in table[at] else table[at + 1]
        assert "10.0ms" in figures
        assert "50%" in figures
        assert figures is table[at] or figures.startswith(" " * 12)


def test_rows_of_one_name_say_what_tells_them_apart(sample) -> None:
    shapes = ("f32[8,4] f32[4,2] -> f32[8,2]", "f32[8,4] f32[4,6] -> f32[8,6]", "bf16[8,9] bf16[9,6] -> bf16[8,6]")
    rows = (*(row("dot_general", 0.01, shapes=s) for s in shapes), row("add", 0.01, shapes="f32[8] f32[8] -> f32[8]"))
    lines = [n.strip() for n in render(dataclasses.replace(sample, operators=rows), width=160).splitlines()]
    for start in ("dot_general [8,2] ", f"dot_general {shapes[1]} ", f"dot_general {shapes[2]} ", "add  "):
        assert sum(n.startswith(start) for n in lines) == 1, start


@pytest.mark.parametrize("width", [60, 80, 120])
def test_what_is_left_out_ends_at_a_word(sample, width) -> None:
    words = " ".join(f"word{i:03d}" for i in range(200))
    advice = dataclasses.replace(sample.advice[0], text=words)
    found = dataclasses.replace(sample, advice=(advice,), findings=(), ceilings=(), receipt={"flop_convention": words})
    lines = [n for n in render(found, width=width).splitlines() if n.endswith("[...]")]
    assert lines
    assert all(re.search(r"word\d{3} \[\.\.\.\]$", n) for n in lines)


def test_steps_of_different_work_are_said_to_be_a_mean(sample) -> None:
    step = dataclasses.replace(sample.step, statistic="mean", ci95_s=(0.012, 0.060), count=4, median_s=0.024)
    text = " ".join(render(dataclasses.replace(sample, step=step), width=100).split())
    assert "24.0 ms mean of 4 steps that do different work, 12.0 ms to 60.0 ms" in text
    assert "95 % of the median" not in text


def test_work_is_a_lower_bound_where_that_of_some_operators_is_not_known(sample) -> None:
    part = dataclasses.replace(sample, attributed_ratio=0.6, flop_per_step=3.45e11, bytes_per_step=0.0)
    text = " ".join(render(part, width=100).split())
    assert "\u2265345 GFLOP of matrix work, ? bytes" in text
    assert ">=345 GFLOP of matrix work, ? bytes" in " ".join(render(part, width=100, encoding="ascii").split())


def test_a_recording_without_steps_has_no_time_per_step(sample) -> None:
    step = dataclasses.replace(sample.step, source="none", count=1)
    text = render(dataclasses.replace(sample, step=step), width=80)
    assert "/step" not in text
    assert "over the whole recording" in text
    assert "/step" in render(sample, width=80)


def test_the_story_takes_forty_lines_of_eighty_columns(sample, hostile) -> None:
    assert len(render(sample, width=80).splitlines()) <= 40
    assert len(render(sample, width=80, verbose=True).splitlines()) > 60
    # What does not fit waits, the longest first, and the headings count it.
    many = dataclasses.replace(
        sample, operators=tuple(row("kernel_" + "x" * 60 + f"_{i}", 0.01) for i in range(40)), advice=sample.advice * 5,
        findings=(Note(code="a", text="word " * 60),) * 9, mfu_ratio=Unknown("word " * 60),
    )  # fmt: skip
    text = render(many, width=80)
    assert len(text.splitlines()) <= 40
    assert re.search(r"\d+ others ", text)
    assert f"{5 * len(sample.advice) - 1} more in --json" in text
    # A roofline comes on top of it.
    assert (
        len(render(sample, width=100).splitlines()) - len(render(sample, width=100, roofline=False).splitlines()) > 15
    )
    assert len(render(sample, width=100, roofline=False).splitlines()) <= 40


def test_what_to_do_on_a_busy_machine_never_hides_what_to_change(sample) -> None:
    again = dataclasses.replace(
        sample.advice[0], rule="idle_machine", text="Record again on an idle machine.", gain_s=0.5
    )
    findings = tuple(dataclasses.replace(sample.findings[0], text="a sentence of a finding " * 9) for _ in range(4))
    busy = dataclasses.replace(sample, advice=(again, *sample.advice), findings=findings)
    lines = render(busy, width=80, roofline=False).splitlines()
    assert len(lines) <= 40
    assert any(n.startswith("  1. ") and "Record again" in n for n in lines)
    assert any(n.startswith("  2. up to") for n in lines)
