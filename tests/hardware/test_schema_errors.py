"""A hardware file that is wrong says where and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from mansard.core.errors import InputError
from mansard.hardware import load, match
from mansard.hardware.catalogue import MAX_FILE_BYTES, SHIPPED
from mansard.hardware.schema import sku_from_toml

GOOD = (SHIPPED / "h200.toml").read_text(encoding="utf-8")


def error(text: str) -> str:
    with pytest.raises(InputError) as caught:
        sku_from_toml(text, where="mine.toml")
    assert caught.value.exit_code == 4
    assert "mine.toml" in caught.value.message
    assert caught.value.hint
    return caught.value.message


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def test_the_unchanged_file_is_fine() -> None:
    assert sku_from_toml(GOOD, where="mine.toml").slug == "h200"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('schema = "hardware/1"', 'schema = "hardware/9"', ["schema", "hardware/9", "hardware/1"]),
        ('slug = "h200"', 'slug = "H 200"', ["slug", "lower-case"]),
        ('slug = "h200"', 'slug = "../h200"', ["slug"]),
        ('slug = "h200"', "slug = 200", ["slug", "text"]),
        ('kind = "gpu"', 'kind = "gpus"', ["kind", "gpus", "cpu-family"]),
        ('name = "NVIDIA H200 SXM 141GB"', "", ["name", "missing"]),
        ("[power]\ntdp_w = 700.0", "[power]\ntpd_w = 700.0", ["power.tpd_w", "did you mean 'tdp_w'"]),
        ("tdp_w = 700.0", "tdp_w = -700.0", ["power.tdp_w", "positive", "-700"]),
        ("tdp_w = 700.0", "tdp_w = nan", ["power.tdp_w", "finite"]),
        ("tdp_w = 700.0", "tdp_w = inf", ["power.tdp_w", "finite"]),
        ("tdp_w = 700.0", "tdp_w = true", ["power.tdp_w", "number"]),
        ("tdp_w = 700.0", 'tdp_w = "700 W"', ["power.tdp_w", "number"]),
        ("dies = 1", "", ["package", "missing"]),
        ("dies = 1", "dies = 1.5", ["package.dies", "whole"]),
        ("groups = 132", "groups = 0", ["units[0].groups", "positive"]),
        ('dtype = "bf16"', 'dtype = "bf17"', ["peaks[", "bf17", "known"]),
        ("flop_per_s = 989.4e12", "flop_per_s = 0", ["flop_per_s", "positive"]),
        ("flop_per_s = 989.4e12", "sparse_flop_per_s = 1978.9e12", ["sparse_flop_per_s", "unknown key"]),
        ('unit = "tensor core"', 'unit = "tensor cores"', ["tensor cores", "'tensor core'"]),
        ('clock_basis = "independent"', "", ["clock_basis", "missing", "solved"]),
        ('engine = "matrix"', 'engine = "tensor"', ["engine", "matrix, vector"]),
        ('certainty = "checked"', 'certainty = "certain"', ["sources.sheet.certainty", "from memory"]),
        ('pci = ["10de:2335"]', 'pci = ["10DE2335"]', ["identity.pci", "10de:2330"]),
        ('per = "package"', 'per = "chip"', ["memory[0].per", "group, die, package"]),
        ('role = "peer"', 'role = "friend"', ["links[0].role", "peer, host"]),
        ('accumulate = "f32"', "", ["accumulate", "missing"]),
        ("notes = [", "prices = 3\nnotes = [", ["prices", "[[prices]]"]),
        ('level = "hbm"', 'level = "l2"', ["memory", "'l2' is there twice"]),
    ],
)
def test_errors_name_the_place(old: str, new: str, words: list[str]) -> None:
    message = error(changed(old, new))
    for word in words:
        assert word in message, message


def test_every_number_needs_a_source() -> None:
    assert "source" in error(changed('tdp_w = 700.0\nsource = "sheet"', "tdp_w = 700.0"))
    # A source that is not one of [sources] needs its own date and certainty.
    assert "power.date" in error(changed('tdp_w = 700.0\nsource = "sheet"', 'tdp_w = 700.0\nsource = "a page"'))
    inline = 'tdp_w = 700.0\nsource = "a page"\ndate = "2026-11"\ncertainty = "reported"'
    sku = sku_from_toml(changed('tdp_w = 700.0\nsource = "sheet"', inline), where="mine.toml")
    assert sku.tdp_receipt is not None
    assert (sku.tdp_receipt.source, sku.tdp_receipt.certainty) == ("a page", "reported")


@pytest.mark.parametrize(
    "text", ["", "[", "a = ", "schema = 1", "[[identity]]", "\x00", "identity = 3", "a = " + "[" * 3000]
)
def test_text_that_is_no_hardware_file(text: str) -> None:
    error(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="not text"):
        load(binary)
    large = tmp_path / "large.toml"
    large.write_text("#" * (MAX_FILE_BYTES + 1), encoding="utf-8")
    with pytest.raises(InputError, match="larger"):
        load(large)
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    with pytest.raises(InputError, match="cannot read"):
        load(folder)


def test_one_bad_file_in_a_folder_is_named_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "bad.toml").write_text(GOOD.replace("tdp_w", "tdp"), encoding="utf-8")
    with pytest.raises(InputError, match=r"bad\.toml"):
        match("NVIDIA H200", directories=[tmp_path])
