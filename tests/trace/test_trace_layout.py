"""The text of `mansard trace` fits the page: prose wraps, tables shrink names, then split; figures are never cut."""

from __future__ import annotations

import os
import subprocess
import sys

from mansard.report.trace_layout import fitted, table


def test_what_fits_is_left_alone() -> None:
    lines = ["a line", *table(["name", "two words"], [["x", "1"]])]
    assert fitted(lines, 80) == lines


def test_titles_wrap_before_names_are_cut() -> None:
    rows = [["a" * 30, "1.00 ms"]]
    # 30 + 2 + 20 = 52 columns; with the title in lines of at most 7: 30 + 2 + 7 = 39, and the one column left is given to it
    found = fitted(table(["name", "busy with copies"], rows), 40)
    assert found[-1] == "a" * 30 + "   1.00 ms"
    assert [line.split() for line in found[:-1]] == [["busy"], ["with"], ["name", "copies"]]


def test_names_are_cut_and_figures_are_not() -> None:
    rows = [["k" * 60, "123.456 ms", "aten::a_rather_long_operator_name"]]
    found = fitted(table(["kernel", "total", "from"], rows), 60)
    # the figure takes 10 and two gaps of 2, which leaves 46 for two names of 60 and 33
    assert "123.456 ms" in found[-1]
    assert found[-1].count("...") == 2
    assert len(found) == 2
    assert len(found[-1]) == 60


def test_a_table_that_does_not_fit_is_split_and_names_each_row_again() -> None:
    rows = [[f"GPU {i}", *["123456789.000 ms"] * 5] for i in (0, 1)]
    # a figure is 16 wide: 5 + 5 x (2 + 16) = 95 > 80, with gaps of 1 still 90; 5 + 4 x 18 = 77 fits
    found = fitted(table(["device", "a", "b", "c", "d", "e"], rows), 80)
    assert max(map(len, found)) <= 80
    assert sum(line.count("123456789.000 ms") for line in found) == 10
    assert sum(line.startswith("GPU 1") for line in found) == 2


def test_prose_hangs_under_its_value() -> None:
    line = "  wall time used     7.87 ms (the device span; the range returns before its device work ends)"
    assert fitted([line], 60) == [
        "  wall time used     7.87 ms (the device span; the range",
        "                     returns before its device work ends)",
    ]


def test_a_word_without_a_break_stays_whole() -> None:
    assert fitted(["/" + "p" * 90], 40) == ["/" + "p" * 90]


def test_a_closed_pipe_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for words in (["flops", "--help"], ["--help"], ["hardware", "list"]):
        ended = subprocess.run(
            [sys.executable, "-m", "mansard", *words], stdout=writer, stderr=subprocess.PIPE, check=False
        )
        assert ended.returncode == 141, words
        assert ended.stderr == b"", words
    os.close(writer)
