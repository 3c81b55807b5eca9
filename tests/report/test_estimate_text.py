"""An estimate for reading fits a terminal of 80 columns, and cuts no figure."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mansard.cli.main import cli


def estimate(*args: str) -> str:
    done = CliRunner().invoke(cli, ["estimate", *args])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    "args",
    [
        ("llama-3.1-70b", "--on", "h200", "--tp", "2", "--context", "8192"),
        ("llama-3.1-8b",),
        (
            "deepseek-v3",
            "--on",
            "h200",
            "--phase",
            "train",
            "--seq",
            "4096",
            "--batch",
            "64",
            "--dp",
            "64",
            "--zero",
            "3",
        ),
        ("gpt-oss-120b", "--dtype", "bf16", "--phase", "prefill", "--seq", "2048", "--on", "mi300x"),
    ],
)
def test_no_line_is_wider_than_80_columns(args: tuple[str, ...]) -> None:
    assert max(map(len, estimate(*args).splitlines())) <= 80


def test_the_figures_of_a_wrapped_total_are_all_there() -> None:
    args = ("llama-3.1-70b", "--on", "h200", "--tp", "2", "--context", "8192")
    words = " ".join(estimate(*args).split())
    # 69,501,714,432 matrix elements in 2 bytes are 139.0 GB; two H200 read all 141.1 GB at 9.6 TB/s in 14.7 ms
    assert (
        "141 GB of active parameters (139 GB multiply); all weights 141 GB, 14.7 ms; the bound above leaves out"
        in words
    )
    assert "matrix and active 69,501,714,432" in words
    document = json.loads(estimate(*args, "--json"))
    longest = max(document["kernels"], key=lambda k: k["time_bound_s"])
    assert f"{longest['name']} {longest['count']:g} " in words
