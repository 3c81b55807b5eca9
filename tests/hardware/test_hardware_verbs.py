"""`mansard hardware` and `mansard doctor` as people type them, and every example of the documentation."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from mansard.cli.main import main

DOCS = Path(__file__).resolve().parents[2] / "docs" / "hardware.md"


@pytest.fixture(autouse=True)
def _no_user_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MANSARD_HARDWARE_PATH", raising=False)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(list(args))
    out = capsys.readouterr()
    return int(caught.value.code or 0), out.out, out.err


def document(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, Any]:
    got, out, err = run(capsys, *args, "--json")
    assert got == code, err
    found = json.loads(out)
    assert {"schema", "tool_version", "created", "environment"} <= set(found) or "error" in found
    assert "NaN" not in out
    assert "Infinity" not in out
    return dict(found)


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "hardware", "show", "h100-sxm")
    assert (found["name"], found["schema"]) == ("h100-sxm", "hardware_show/1")
    assert "NVIDIA H100 80GB HBM3" in found["aliases"]
    bf16 = [p for p in found["peaks"] if (p["dtype"], p["engine"]) == ("bf16", "matrix")]
    assert [(p["kind"], p["dense"], p["scope"]) for p in bf16] == [
        ("declared", True, "device"),
        ("derived", True, "device"),
    ]
    assert bf16[0]["flop_per_s"] == 989.4e12
    for item in (
        *found["peaks"],
        *found["memory"],
        *found["links"],
        *found["units"],
        *found["clocks"],
        *found["prices"],
    ):
        assert item["source"]
        assert item["date"]
        assert item["certainty"]
    hbm = next(m for m in found["memory"] if m["level"] == "hbm")
    assert (hbm["bytes_per_s"], hbm["capacity_bytes"], hbm["usable_bytes"]) == (3350e9, 80 * 2**30, 85.5e9)
    l2 = next(m for m in found["memory"] if m["level"] == "l2")
    assert set(l2["bytes_per_s"]) == {"unknown", "needs"}
    ridge = next(r for r in found["ridge_points"] if (r["dtype"], r["engine"]) == ("bf16", "matrix"))
    assert ridge["flop_per_byte"] == pytest.approx(295.35, rel=1e-3)
    code, out, err = run(capsys, "hardware", "show", "h100-sxm")
    assert (code, err) == (0, "")
    assert "989 TFLOP/s" in out
    assert re.search(r"\[1\] NVIDIA H100 page and whitepaper \(2026-11, checked\)", out)


def test_show_of_a_package_of_two_devices(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "hardware", "show", "mi250x")
    bf16 = next(p for p in found["peaks"] if p["dtype"] == "bf16")
    assert (bf16["flop_per_s"], bf16["package_flop_per_s"]) == (191.5e12, 383e12)
    hbm = next(m for m in found["memory"] if m["level"] == "hbm")
    assert (hbm["bytes_per_s"], hbm["capacity_bytes"], hbm["instances"]) == (1638.5e9, 64 * 2**30, 1)
    assert "2 devices per package" in run(capsys, "hardware", "show", "mi250x")[1]


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "hardware", "list", "--kind", "tpu")
    assert [h["name"] for h in found["hardware"]] == [
        "tpu-v2", "tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x",
    ]  # fmt: skip
    out = run(capsys, "hardware", "list")[1]
    assert len(out.splitlines()) >= 55
    assert re.search(r"^tpu-v7x .*1\.15 PFLOP/s.*1 of 2 devices$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "code", "status", "matched"),
    [("NVIDIA H200", 0, "exact", "h200"), ("H100", 3, "ambiguous", None), ("NVIDIA Z900 SXM6", 3, "unknown", None)],
)
def test_match(capsys: pytest.CaptureFixture[str], name: str, code: int, status: str, matched: str | None) -> None:
    found = document(capsys, "hardware", "match", name, code=code)
    assert (found["status"], found["matched"], found["name"]) == (status, matched, name)
    got, out, _ = run(capsys, "hardware", "match", name)
    assert got == code
    assert (matched or status) in out


def test_match_with_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "hardware", "match", "--pci", "0x233010DE")["matched"] == "h100-sxm"
    found = document(capsys, "hardware", "match", "NVIDIA A100-SXM4-80GB", "--memory", "40 GiB", code=3)
    assert found["status"] == "unknown"
    assert document(capsys, "hardware", "match", "NVIDIA H200", "--bandwidth", "4.9 TB/s")["matched"] == "h200"
    slice_ = document(capsys, "hardware", "match", "tpu7x-8")
    assert (slice_["matched"], slice_["slice"]) == ("tpu-v7x", {"chips": 4, "devices": 8})


def test_match_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "hardware", "match")
    assert found["devices"][0]["kind"] == "cpu"
    assert run(capsys, "hardware", "match")[0] == 0


def test_peak(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "hardware", "peak", "h100-sxm", "--clock", "1.6 GHz", "--dtype", "tf32", "--achieved",
                     "399 TFLOP/s")  # fmt: skip
    (row,) = found["rows"]
    # 132 x 4 x 256 x 2 x 1.6e9 = 432.5e12 beside 494.7e12: 0.874.
    assert row["derived_flop_per_s"] == pytest.approx(432.5e12, rel=1e-3)
    assert (row["declared_flop_per_s"], row["ratio"]) == (494.7e12, pytest.approx(0.8743, abs=1e-3))
    assert found["achieved"]["share"] == pytest.approx(0.9225, abs=1e-3)
    assert found["achieved"]["declared"]["share"] == pytest.approx(0.8065, abs=1e-3)
    assert found["achieved"]["shortfall"]["clock_ratio"] == pytest.approx(0.8743, abs=1e-3)
    assert "mostly the clock" in run(capsys, "hardware", "peak", "h100-sxm", "--clock", "1.6 GHz", "--dtype", "tf32",
                                     "--achieved", "399 TFLOP/s")[1]  # fmt: skip


def test_peak_of_one_core_and_of_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "hardware", "peak", "grace", "--cores", "1", "--dtype", "f32")
    assert found["rows"][0]["derived_flop_per_s"] == pytest.approx(99.2e9)
    assert found["partial_ceilings"][0]["ratio"] == 0.25
    bare = document(capsys, "hardware", "peak", "--units", "288", "--width", "4", "--clock", "3.0 GHz")
    assert bare["flop_per_s"] == pytest.approx(6.912e12)
    zen = document(capsys, "hardware", "peak", "zen5", "--cores", "1", "--clock", "4.28 GHz")
    best = max(u["flop_per_s"] for u in zen["unit_peaks"] if u["dtype"] == "f32")
    assert best == pytest.approx(273.9e9, rel=1e-3)


def test_peak_of_the_worked_example(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "hardware", "peak", "gh200-96gb", "--gemm", "512", "--fixed-cost", "12.1 us", "--latency",
                     "1 us", "--in-flight", "9.4 MB")  # fmt: skip
    gemm = {(g["dtype"], g["engine"]): g for g in found["gemm"]}
    assert gemm["tf32", "matrix"]["attainable_flop_per_s"] == pytest.approx(341.3e12, rel=1e-3)
    assert gemm["tf32", "matrix"]["bound"] == "memory"
    assert gemm["f32", "vector"]["attainable_flop_per_s"] == pytest.approx(66.9e12, rel=1e-3)
    assert gemm["f32", "vector"]["flop_per_byte"] == pytest.approx(85.33, abs=0.01)
    hidden = {h["dtype"]: h["gemm_size"] for h in found["hidden"]}
    assert hidden["tf32"] == pytest.approx(2288, abs=2)
    assert found["matmul_in_cache"][0]["flop_per_byte"] == pytest.approx(905.1, abs=0.1)
    c2c = next(f for f in found["in_flight"] if f["what"] == "c2c")
    assert c2c["bytes_to_fill"] == pytest.approx(450e3)  # 450e9 x 1e-6
    assert c2c["reached_bytes_per_s"] == 450e9


@pytest.mark.parametrize(
    ("args", "code", "status"),
    [
        (["NVIDIA Z900 SXM6", "--dtype", "bf16", "--achieved", "275.6 TFLOP/s"], 3, "unknown_peak"),
        (["TPU7x", "--dtype", "fp32", "--achieved", "1441.9 TFLOP/s"], 3, "no_published_peak"),
        (["h200", "--dtype", "bf16", "--achieved", "3651 TFLOP/s"], 3, "implausible"),
        (["NVIDIA Z900 SXM6", "--achieved", "275.6 TFLOP/s", "--peak", "2250 TFLOP/s"], 0, "ok"),
        (["--achieved", "275.6 TFLOP/s", "--peak", "2250 TFLOP/s"], 0, "ok"),
        (["mi250x", "--dtype", "bf16", "--achieved", "147 TFLOP/s"], 0, "ok"),
    ],
)
def test_shares(capsys: pytest.CaptureFixture[str], args: list[str], code: int, status: str) -> None:
    found = document(capsys, "hardware", "peak", *args, code=code)
    assert found["achieved"]["status"] == status
    got, out, _ = run(capsys, "hardware", "peak", *args)
    assert got == code
    assert "achieved" in out


def test_a_mix_has_one_denominator(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "hardware", "peak", "h100-sxm", "--mix", "bf16=0.25,fp8=0.75", "--achieved", "600 TFLOP/s")
    # 1 / (0.25 / 989.4 + 0.75 / 1978.9) = 1583.1; 600 / 1583.1 = 0.379.
    assert found["mix"]["flop_per_s"] == pytest.approx(1583.1e12, rel=1e-3)
    assert found["achieved"]["share"] == pytest.approx(0.379, abs=1e-3)
    assert "mix" in found["achieved"]["peak_from"]


def test_an_explicit_peak_wins_and_is_printed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["hardware", "peak", "h200", "--dtype", "bf16", "--achieved", "400 TFLOP/s", "--peak", "800 TFLOP/s"]
    assert document(capsys, *args)["achieved"]["share"] == 0.5
    assert "peak 800 TFLOP/s: named by the user" in run(capsys, *args)[1]


@pytest.mark.parametrize(
    "args",
    [
        ["show", ""],
        ["show", "h100"],
        ["show", "h100-smx"],
        ["show", "x" * 10_000],
        ["match", "H100", "--memory", "80 Gbps"],
        ["match", "H100", "--memory", "-1 GB"],
        ["match", "H100", "--multiprocessors", "0"],
        ["match", "H100", "--pci", "zz"],
        ["match", "H100", "--hardware-dir", "nowhere"],
        ["peak"],
        ["peak", "--units", "1"],
        ["peak", "--units", "-1", "--width", "1", "--clock", "1 GHz"],
        ["peak", "--units", "nan", "--width", "1", "--clock", "1 GHz"],
        ["peak", "h200", "--units", "3"],
        ["peak", "h200", "--clock", "1.6"],
        ["peak", "h200", "--clock", "0 GHz"],
        ["peak", "h200", "--dtype", "bf17"],
        ["peak", "h200", "--achieved", "400 TFLOPS"],
        ["peak", "h200", "--achieved", "400 TFLOP/s"],
        ["peak", "h200", "--dtype", "bf16", "--achieved", "0 TFLOP/s"],
        ["peak", "h200", "--peak", "400 TFLOP/s"],
        ["peak", "h200", "--scope", "core", "--cores", "3"],
        ["peak", "h200", "--scope", "chip"],
        ["peak", "h200", "--in-flight", "1 MB"],
        ["peak", "h200", "--latency", "0 us"],
        ["peak", "rtx-4090", "--dtype", "f16", "--achieved", "100 TFLOP/s"],
        ["peak", "rtx-4090", "--scope", "node"],
        ["peak", "h200", "--devices", "3"],
        ["peak", "h200", "--cores", "500"],
        ["peak", "h200", "--mix", "bf16"],
        ["peak", "h200", "--mix", "bf16=1,bf16=2"],
        ["peak", "h200", "--mix", "bf16=-1,fp8=2"],
        ["peak", "h200", "--mix", "bf16=1,i4=2"],
        ["peak", "h200", "--mix", "bf16=1,fp8=2", "--dtype", "bf16"],
        ["peak", "zen4"],
        ["peak", "zen4", "--cores", "4"],
        ["peak", "zen4", "--scope", "core"],
        ["nothing"],
    ],
)
def test_wrong_usage_is_code_2_without_a_traceback(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    code, out, err = run(capsys, "hardware", *args)
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    assert err


def test_errors_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "hardware", "show", "h100", "--json")
    assert code == 2
    error = json.loads(out)["error"]
    assert error["code"] == "hardware_ambiguous"
    assert "h100-pcie" in error["message"]


def test_a_broken_user_file_is_code_4(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("schema = 'hardware/1'\nslug = 'mine'\ncolour = 'red'\n", encoding="utf-8")
    code, _, err = run(capsys, "hardware", "show", str(path))
    assert code == 4
    assert "colour: unknown key" in err


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "doctor", "--window", "0.1")
    assert found["devices"][0]["kind"] == "cpu"
    assert 0.0 <= found["noise"]["foreign_load_ratio"] <= 1.0
    assert {"what", "can", "why", "needs"} == set(found["abilities"][0])
    assert found["environment"]["caches"] is not None
    code, out, _ = run(capsys, "doctor", "--window", "0.1", "--hardware", "h100-sxm")
    assert code == 0
    assert "named by the user" in out
    assert run(capsys, "doctor", "--hardware", "H100")[0] == 2


def _examples() -> list[str]:
    text = DOCS.read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith(("mansard hardware", "mansard doctor"))]


@pytest.mark.parametrize("line", _examples())
def test_every_example_of_the_documentation_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    toml = re.search(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert toml is not None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "z900.toml").write_text(toml.group(1), encoding="utf-8")
    command, _, comment = line.partition("  #")
    expected = int(found.group(1)) if (found := re.search(r"exit (\d)", comment)) else 0
    code, out, err = run(capsys, *shlex.split(command)[1:])
    assert code == expected, err
    assert out


def test_parts_of_a_mix_on_different_engines_work_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Half in bf16 on the tensor cores, half in f32 beside them: the f32 half takes 0.5/66.9, the other 0.5/989."""
    mix = document(capsys, "hardware", "peak", "h100-sxm", "--mix", "bf16=0.5,f32=0.5")["mix"]
    assert mix["flop_per_s"] == pytest.approx(66.9e12 / 0.5, rel=1e-3)
    assert {p["dtype"]: p["engine"] for p in mix["parts"]} == {"bf16": "matrix", "f32": "vector"}


@pytest.mark.parametrize(("name", "dtype", "peak"), [("nvfp4", "f4_e2m1", 9.0e15), ("mxfp8", "f8_e4m3", 4.5e15)])
def test_block_formats_have_the_peak_of_their_elements(
    name: str, dtype: str, peak: float, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, "hardware", "peak", "b200", "--dtype", name, "--achieved", "3 PFLOP/s")["achieved"]
    assert found["peak_from"]["dtype"] == dtype
    assert found["share"] == pytest.approx(3e15 / peak, rel=1e-3)


@pytest.mark.parametrize(
    ("args", "code", "status", "share"),
    [
        # 4.1 of the 4.8 TB/s of the data sheet: 0.854.
        (["h200", "--achieved", "4.1 TB/s"], 0, "ok", 0.8542),
        # NVLink 4 of 900 GB/s counts both ways; 360 GB/s of one way's 450: 0.8.
        (["h100-sxm", "--of", "nvlink", "--achieved", "360 GB/s"], 0, "ok", 0.8),
        # A bus bandwidth of 480 GB/s (all-reduce in the switch) exceeds the 450 of one way.
        (["h100-sxm", "--of", "nvlink", "--achieved", "480 GB/s"], 3, "implausible", 1.0667),
        # A loop in a cache of 256 MB: 9 of the 8 TB/s that the memory gives.
        (["mi355x", "--achieved", "9 TB/s"], 3, "implausible", 1.125),
        (["h100-sxm", "--of", "l2", "--achieved", "5 TB/s"], 3, "no_published_bandwidth", None),
        (["NVIDIA Z900 SXM6", "--achieved", "3 TB/s"], 3, "unknown_ceiling", None),
        (["NVIDIA Z900 SXM6", "--achieved", "3 TB/s", "--peak", "4 TB/s"], 0, "ok", 0.75),
        (["--achieved", "3 TB/s", "--peak", "4 TB/s"], 0, "ok", 0.75),
    ],
)
def test_a_share_of_a_bandwidth(
    capsys: pytest.CaptureFixture[str], args: list[str], code: int, status: str, share: float | None
) -> None:
    found = document(capsys, "hardware", "peak", *args, code=code)["achieved"]
    assert found["status"] == status
    got = found["share"]
    if share is None:
        assert got["unknown"]
    elif code:
        assert got["implausible"] == pytest.approx(share, abs=1e-3)
        first = "both directions" if found["one_way"] else "a cache holds"
        assert first in got["suspects"][0]
        assert not any("sparse" in s for s in got["suspects"])
    else:
        assert got == pytest.approx(share, abs=1e-3)
    assert "achieved" in run(capsys, "hardware", "peak", *args)[1]


@pytest.mark.parametrize(
    "args",
    [
        ["h100-sxm", "--of", "nvlink"],
        ["h100-sxm", "--of", "moon", "--achieved", "3 TB/s"],
        ["h100-sxm", "--dtype", "bf16", "--achieved", "3 TB/s"],
        ["--achieved", "3 TB/s"],
        ["h100-sxm", "--achieved", "0 TB/s"],
    ],
)
def test_a_share_of_a_bandwidth_is_refused(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    document(capsys, "hardware", "peak", *args, code=2)


def test_a_share_of_a_bandwidth_names_its_device(capsys: pytest.CaptureFixture[str]) -> None:
    # MI250X: 3.28 TB/s of the package are 1.64 of each of its two devices; 1.4 of that is 0.854.
    out = run(capsys, "hardware", "peak", "mi250x", "--achieved", "1.4 TB/s")[1]
    assert "a package holds 2" in out
    assert "share of it 85 %" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["t4", "--dtype", "bf16"], "no bf16 peak is published"),
        (["p100-sxm2-16gb", "--dtype", "bf16"], "no bf16 peak is published"),
        (["gb10", "--dtype", "bf16"], "no bf16 peak is published"),
        (["h200", "--dtype", "bf16", "--accumulate", "f16"], "no bf16 into f16 peak is published"),
    ],
)
def test_a_peak_that_is_on_no_record_is_said_to_be_none(
    capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    assert says in run(capsys, "hardware", "peak", *args)[1]
    assert says in document(capsys, "hardware", "peak", *args)["no_peak"]["unknown"]


def test_a_peak_that_is_on_record_is_not_denied(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no_peak" not in document(capsys, "hardware", "peak", "h200", "--dtype", "bf16")
    rows = document(capsys, "hardware", "peak", "gb10", "--dtype", "f32")["rows"]
    assert [r["declared_flop_per_s"] for r in rows] == [31e12]
