"""Case D34: real files that stopped a public tool. The totals are those of the clean trace, and one warning names the defect."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mansard.cli.main import main
from mansard.trace.readers import chrome

# Three kernels of 3, 4 and 5 us: 12 us in all.
CLEAN = json.dumps({
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": f"k{i}", "pid": 0, "tid": 7, "ts": 10 * i, "dur": i + 3,
         "args": {"device": 0, "stream": 7, "correlation": i}}
        for i in range(3)
    ],
}).replace("}}]}", "}}\n]}").encode()  # fmt: skip


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert data.count(old) >= 1
        return data.replace(old, new, 1)

    return change


WHOLE = [
    ("infinite rate", replaced(b'"correlation": 1}', b'"correlation": 1, "memory bandwidth (GB/s)": inf}'), "not_a_number"),
    ("control byte", replaced(b'"k1"', b'"k\x011"'), "control_character"),
    ("no UTF-8", replaced(b'"k1"', b'"k\x9f1"'), "bad_utf8"),
    ("no escape", replaced(b'"k1"', rb'"C:\q"'), "bad_escape"),
    ("unsigned, field in use", replaced(b'"correlation": 1}', b'"correlation": 18446744073709551615}'), "big_integer"),
    ("unsigned, other field", replaced(b'"correlation": 1}', b'"correlation": 1, "x": 18446744073709551615}'), "big_integer"),
    ("empty object", replaced(b"\n]}", b",\n{}]}"), "empty_events"),
]  # fmt: skip


def summary(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as ended:
        main(["trace", "summary", str(path), "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("change", "code"), [w[1:] for w in WHOLE], ids=[w[0] for w in WHOLE])
def test_d34_same_totals_and_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[bytes], bytes], code: str
) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(change(CLEAN))
    done, document = summary(file, capsys)
    assert (done, document["status"], document["kernel_count"]) == (0, "complete", 3)
    assert document["devices"][0]["kernel_sum_s"] == pytest.approx(12e-6)
    assert [(d["code"], d["count"]) for d in document["damage"]] == [(code, 1)]


def test_d34_gzip_without_suffix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t"
    file.write_bytes(gzip.compress(CLEAN))
    done, document = summary(file, capsys)
    assert (done, document["kernel_count"], document["damage"]) == (0, 3, [])


def test_d34_cut_after_the_third_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(CLEAN[: CLEAN.rindex(b"}}") + 2] + b',\n{"ph": "X", "cat": "kern')
    done, document = summary(file, capsys)
    assert (done, document["status"], document["kernel_count"]) == (3, "incomplete", 3)
    assert [d["code"] for d in document["damage"]] == ["truncated"]


def test_d34_capped(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # As many complete events as the cap, the last before the first step closes; a cap of 3 stands for 1,000,000.
    monkeypatch.setattr(chrome, "EVENT_CAP", 3)
    file = tmp_path / "t.json"
    file.write_bytes(
        CLEAN.replace(
            b"[", b'[{"ph": "B", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": 1, "tid": 1, "ts": 0},', 1
        )
    )
    done, document = summary(file, capsys)
    assert (done, document["status"]) == (3, "incomplete")
    (cap,) = [d for d in document["damage"] if d["code"] == "event_cap"]
    assert cap["count"] == 3
    assert document["steps"]["count"] == 0
    with pytest.raises(SystemExit) as ended:
        main(["trace", "steps", str(file)])
    assert ended.value.code == 3
    assert "steps are not complete" in capsys.readouterr().out
