"""Points in a terminal: what fits, what is wrapped, and what is said once for many points."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mansard.cli.main import main
from mansard.report import points_text


def element(name, *, verdict="normal", reason="", half=0.02, foreign=0.0, codes=()):
    return {
        "state": "done", "verdict": verdict, "verdict_reason": reason,
        "metadata": {"benchmark_name": "gemm", "impl": "jax", "test_name": name, "params": {"n": name}},
        "metrics": {
            "median_s": 1e-3, "ci95_low_s": 9e-4, "ci95_high_s": 1.1e-3, "half_interval_ratio": half, "headline": "flop",
            "flop_per_s": 2e11, "flop": 2e8, "share_of_ceiling": 0.81, "ceiling": "DRAM in_place bandwidth",
        },
        "raw_times_ms": [1.0] * 5, "samples": {"windows": [[0, 5]], "per_sample": 1},
        "conditions": {"foreign_ratio": foreign, "steal_ratio": 0.0},
        "audit": {"findings": [{"code": c, "text": f"others used {foreign:.0%}"} for c in codes]},
    }  # fmt: skip


LONG = "gemm_generalized[jax] m=2048 k=2048 n=2048 in_dtype=f32 out_dtype=f32 alpha=1.0 beta=0.5 transpose_a=true"


def shown(elements, width):
    sink = io.StringIO()
    points_text.show(elements, Console(file=sink, width=width, highlight=False, color_system=None))
    return sink.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_points_fit_the_terminal_and_lose_nothing(width):
    low = element(LONG, verdict="low", reason="81 % of the ceiling: " + "a reason of many words " * 8 + "to its last")
    text = shown([low, element("gemm_generalized[torch] m=2048", half=68.1)], width)
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    for part in (
        "1.00 ms",
        "+-2.0 %",
        "> 100 %",
        "200 GFLOP/s",
        "81 % of DRAM in_place bandwidth",
        "to its last",
        "transpose_a=true",
    ):
        assert part in flat
    assert "6810" not in text


def test_what_others_did_to_many_points_is_said_once():
    noisy = [
        element(
            f"gemm[jax] n={n}",
            verdict="noisy",
            reason=f"the interval is wide {n}",
            foreign=load,
            codes=("foreign_load",),
        )
        for n, load in ((1, 0.5), (2, 0.1), (3, 0.3), (4, 0.2))
    ]
    text = shown([*noisy, element("gemm[jax] n=5", verdict="noisy", reason="two machines in one")], 120)
    assert (
        "noisy, 4 points (gemm[jax] n=1, gemm[jax] n=2 and 2 more): others used 10 % to 50 % of the processors" in text
    )
    assert "the interval is wide" not in text
    assert "gemm[jax] n=5: two machines in one" in text


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_list_fits_the_terminal(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit):
        main(["measure", "--list"])
    text = capsys.readouterr().out
    long = [line for line in text.splitlines() if len(line) > columns and " " in line.strip()]
    assert long == []
    assert "\x1b" not in text
    assert "hbm_bandwidth" in text
