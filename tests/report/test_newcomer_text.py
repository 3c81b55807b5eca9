"""Text that a reader without the source must understand: what is left out is said, and lines fit the terminal."""

from __future__ import annotations

from mansard.core.unknown import Unknown
from mansard.report.trace_launches import launches_lines
from mansard.report.validate_text import validate_text


def _case(name: str, error: object, expected: object) -> dict[str, object]:
    return {"name": name, "error_ratio": error, "expected_s": expected, "bound_s": 1e-3, "measured_s": 2e-3}


def test_runs_without_a_prediction_are_counted() -> None:
    unknown = Unknown("fewer than three other runs").to_json()
    document = {
        "kinds": [], "shares": {}, "implausible": [], "refused": [], "environment": {"foreign_load_ratio": 0.5},
        "cases": [_case("a", 0.1, 2.2e-3), _case("b", unknown, unknown), _case("c", unknown, unknown)],
    }  # fmt: skip
    text = validate_text(document)
    assert "Without a prediction: 2 of 3, fewer than three comparable runs" in text
    assert max(map(len, text.splitlines())) <= 80
    document["cases"] = document["cases"][:1]
    assert "Without a prediction" not in validate_text(document)


def _launch(device: str) -> dict[str, object]:
    return {
        "name": "gemm", "short_name": "gemm", "device": device, "calls": 1, "total_s": 1e-3, "blocks": 1, "threads_per_block": 128,
        "registers_per_thread": 32, "shared_bytes_per_block": 0, "blocks_per_unit": 1, "filled_ratio": 0.5,
    }  # fmt: skip


def test_launches_of_two_devices_name_the_device() -> None:
    two = launches_lines([_launch("0"), _launch("1")], limit=5)
    assert two[1].split()[:2] == ["launches", "GPU"]
    assert [line.split()[1] for line in two[2:4]] == ["0", "1"]
    assert "GPU" not in launches_lines([_launch("0")], limit=5)[1]
