"""`mansard plan collective`: ceilings by hand, groups by axis, measurements beside them, and published numbers through the verb."""

import json

import pytest
from click.testing import CliRunner

from mansard.cli.main import cli
from mansard.core.errors import UsageError
from mansard.hardware import load
from mansard.hardware.fabrics import fabric_of, parse_shape
from mansard.plan.collective import Measured, collective_document, group_over

GIB = 2.0**30


def run(*args):
    return CliRunner().invoke(cli, ["plan", "collective", *args], standalone_mode=False)


def document(*args):
    done = run(*args, "--json")
    assert done.exit_code in (0, 3), done.output
    return json.loads(done.stdout)


def test_the_table_by_hand():
    found = document("all_reduce", "8", "--on", "h200", "--size", "8 GiB", "--busbw", "473.1 GB/s")
    by = {row["algorithm"]: row for row in found["rows"]}
    # 1.75 x 8.59 GB / 450 GB/s = 33.4 ms; in the switch 9/8 x 8.59 GB / 450 GB/s = 21.5 ms, which busbw counts as 700 GB/s.
    assert by["ring"]["time_s"] == pytest.approx(1.75 * 8 * GIB / 450e9)
    assert by["in-network"]["time_s"] == pytest.approx(9 / 8 * 8 * GIB / 450e9)
    assert by["in-network"]["busbw_bytes_per_s"] == pytest.approx(700e9)
    assert by["ring"]["algbw_bytes_per_s"] == pytest.approx(450e9 / 1.75)
    # 473.1 GB/s are 1.75 x 8.59 GB / 473.1 = 31.8 ms: faster than a ring can, 68 % of what the switch allows.
    seen = found["measured"]
    assert seen["time_s"] == pytest.approx(31.77e-3, rel=1e-3)
    assert (seen["algorithm"], seen["suspects"]) == ("in-network", [])
    assert seen["share_ratio"] == pytest.approx(473.1 / 700)
    assert found["without_latency"] == ["nvlink"]


@pytest.mark.parametrize(
    ("args", "busbw"),
    [
        (
            ("all_gather", "4x1", "--on", "tpu-v5e", "--link-rate", "45 GB/s", "--size", "34 MB", "--time", "680 us"),
            45e9,
        ),
        (("ppermute", "2x2x1", "--on", "tpu-v5p", "--size", "64 MiB", "--time", "782 us"), 100e9),
        (("ppermute", "4x2", "--on", "tpu-v6e", "--size", "64 MiB", "--time", "776 us"), 100e9),
        (("all_reduce", "8", "--on", "h200", "--size", "8 GiB", "--busbw", "365 GB/s"), 450e9),
        (("all_reduce", "2", "--on", "mi300x", "--size", "4 GiB", "--busbw", "47.7 GB/s"), 64e9),
        (
            ("all_gather", "2x2x1", "--on", "tpu-v7x", "--over", "x,y", "--size", "256 MiB", "--busbw", "89.4 GB/s"),
            100e9,
        ),
        (
            (
                "ppermute",
                "8:4",
                "--on",
                "gh200-96gb",
                "--network",
                "25 GB/s",
                "--size",
                "512 MiB",
                "--busbw",
                "24.24 GB/s",
            ),
            25e9,
        ),
    ],
)
def test_published_measurements_are_under_the_ceiling_and_near_it(args, busbw):
    found = document(*args)
    assert min(row["time_s"] for row in found["rows"] if not row["effective"]) == pytest.approx(
        found["measured"]["least_time_s"]
    )
    assert max(row["busbw_bytes_per_s"] for row in found["rows"] if not row["effective"]) == pytest.approx(busbw)
    assert 1 / 1.5 <= found["measured"]["share_ratio"] <= 1.0


def test_a_leaf_and_switches_that_reduce():
    # 4 nodes of 8 under two leaves, 4:1: 800 / 4 = 200 GB/s up, over which half of 32 GB comes in.
    args = ("all_gather", "4:8", "--on", "h100-sxm", "--network", "50 GB/s", "--size", "32 GB", "--leaf", "2")
    found = document(*args, "--oversubscription", "4")
    assert found["rows"][0]["time_s"] == pytest.approx(16e9 / 200e9)
    assert found["rows"][0]["limiting"] == "network-spine"
    assert any("oversubscribed 4 to 1" in note for note in found["notes"])
    # Eight nodes of one GPU: S in place of 14/8 S where the switches between them reduce.
    one = ("all_reduce", "8:1", "--on", "h100-sxm", "--network", "50 GB/s", "--size", "8 GB")
    assert not any(row["effective"] for row in document(*one)["rows"])
    assert document(*one, "--sharp")["rows"][-1]["time_s"] == pytest.approx(8e9 / 50e9)
    done = run(*args[:-1], "3")
    assert "make no fat tree" in str(done.exception)


def test_options_that_a_network_has_no_part_for_are_named():
    args = ("all_reduce", "8", "--on", "h100-sxm", "--size", "1 GiB")
    assert not any(note.startswith("not used") for note in document(*args)["notes"])
    notes = document(*args, "--leaf", "2", "--sharp", "--no-wrap", "--pcie-switch", "4", "--die-link", "1 TB/s")[
        "notes"
    ]
    unused = " ".join(note for note in notes if note.startswith("not used"))
    assert all(name in unused for name in ("--leaf, --sharp;", "--wrap;", "--pcie-switch;", "--die-link;"))
    used = document("all_reduce", "2:8", *args[2:], "--network", "50 GB/s", "--leaf", "1", "--sharp")["notes"]
    assert not any(note.startswith("not used") for note in used)


def test_groups_by_axis():
    fabric = fabric_of(load("h100-sxm"), parse_shape("4:8"), network_bytes_per_s=50e9)
    assert group_over(fabric, None) == ((8,), (4,))
    assert group_over(fabric, "network") == ((1,), (4,))
    assert group_over(fabric, "nvlink=4, network") == ((4,), (4,))
    with pytest.raises(UsageError, match="no axis 'x'"):
        group_over(fabric, "x")
    with pytest.raises(UsageError, match="nvlink twice"):
        group_over(fabric, "nvlink=4,nvlink=2")
    with pytest.raises(UsageError, match="cannot read"):
        group_over(fabric, "nvlink=")
    with pytest.raises(UsageError, match="a divisor"):
        collective_document(fabric, "all_reduce", sizes=[1e6], over="nvlink=3")
    with pytest.raises(UsageError, match="one size, 2 were given"):
        collective_document(fabric, "all_reduce", sizes=[1e6, 1e7], measured=Measured(seconds=1.0))


def test_what_is_printed_and_when_the_exit_code_is_3():
    done = run("all_reduce", "8", "--on", "a100-sxm-80gb", "--size", "8 GiB", "--busbw", "473 GB/s")
    assert done.return_value == 3
    assert "faster than any algorithm can be" in done.output
    assert "may be: the size S" in done.output
    sweep = run("all_to_all", "8:8", "--on", "h100-sxm", "--network", "50 GB/s")
    # 56/64 of S by one adapter of 50 GB/s: 57.1 GB/s of S, busbw 63/64 of it.
    assert "57.1 GB/s" in sweep.output
    assert "56.2 GB/s" in sweep.output
    assert "Latency of nvlink, network is on no record" in sweep.output
    assert "a message between two devices uses one of them, 50 GB/s" in sweep.output
    for wrong in (
        ("--size", "0 B"),
        ("--time", "1 s", "--busbw", "1 GB/s", "--size", "1 GB"),
        ("--oversubscription", "2"),
    ):
        assert run("all_reduce", "8", "--on", "h200", *wrong).exception is not None
