"""Which product is this: exact identity or no answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.core.errors import InputError, UsageError
from mansard.hardware import entries, load, match
from mansard.hardware.catalogue import shipped_entries
from mansard.hardware.names import normalise, normalise_pci

GIB = 2.0**30
NAMES = sorted(e.name for e in shipped_entries())
ALL_KEYS = frozenset(key for e in shipped_entries() for key in e.keys)


@pytest.fixture(autouse=True, scope="module")
def _no_user_files() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MANSARD_HARDWARE_PATH", raising=False)
        yield


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA GH200 120GB", "gh200-96gb"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB300", "gb300"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090-ti"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI300X VF", "mi300x"),
        ("AMD Instinct MI250X", "mi250x"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5", "tpu-v5p"),
        ("TPU v5p", "tpu-v5p"),
        ("TPU v6 lite", "tpu-v6e"),
        ("TPU7x", "tpu-v7x"),
        ("TPU v4", "tpu-v4"),
        ("AMD EPYC 9654 96-Core Processor", "epyc-9654"),
        ("Intel(R) Xeon(R) Platinum 8480+", "xeon-8480-plus"),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "xeon-gold-6148"),
        ("  nvidia   h100_pcie ", "h100-pcie"),
    ],
)
def test_names_that_drivers_report(name: str, slug: str) -> None:
    found = match(name)
    assert found.status == "exact", found
    assert found.sku is not None
    assert found.sku.slug == slug


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA RTX A1000 Laptop GPU",  # not an A100
        "NVIDIA T400",  # not a T4
        "NVIDIA T4G",
        "NVIDIA RTX A2000",  # not an A2
        "NVIDIA GeForce RTX 4090 Laptop GPU",  # another chip than the desktop card
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 2080",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "MIG 3g.40gb",
        "NVIDIA A100X",
        "NVIDIA A800 80GB PCIe",
        "GRID A100-10C",
        "NVIDIA A10-24Q",
        "NVIDIA H2000",
        "NVIDIA L400",
        "NVIDIA H800 PCIe",
        "NVIDIA H100 80GB HBM2e",
        "NVIDIA H100 96GB HBM3",
        "AMD Instinct MI300X HF",
        "AMD Instinct MI308X",
        "TPU v4 lite",
        "TPU v9",
        "Intel(R) Xeon(R) Platinum 8480C",
        "NVIDIA Z900 SXM6",
        "Tesla K80",
        "cpu",
        "",
        "   ",
        "®",
        "🙂" * 30,
        "x" * 10_000,
        "../../etc/passwd",
        "h100\0sxm",
    ],
)
def test_what_is_not_on_record_is_never_another_card(name: str) -> None:
    found = match(name)
    assert (found.status, found.sku) == ("unknown", None), found
    assert found.reason
    assert found.needs


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("H100", {"h100-sxm", "h100-pcie", "h100-nvl"}),
        ("NVIDIA H100", {"h100-sxm", "h100-pcie", "h100-nvl"}),
        ("A100", {"a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb", "a100-pcie-80gb"}),
        ("A100 80GB", {"a100-sxm-80gb", "a100-pcie-80gb"}),
        ("V100", {"v100-sxm2-16gb", "v100-sxm2-32gb", "v100-pcie-16gb", "v100-pcie-32gb"}),
        ("GH200", {"gh200-96gb", "gh200-144gb"}),
        ("Apple M1 Max", {"apple-m1-max-24c", "apple-m1-max-32c"}),
        ("AMD EPYC", {"epyc-9654", "epyc-9755", "epyc-7742", "epyc-7763"}),
        ("RTX", None),
    ],
)
def test_part_of_a_name_lists_what_could_be_meant(name: str, candidates: set[str] | None) -> None:
    found = match(name)
    assert (found.status, found.sku) == ("ambiguous", None)
    if candidates is not None:
        assert set(found.candidates) == candidates
    assert any("short name" in n for n in found.needs)


@pytest.mark.parametrize("chip", ["GH100", "GA100", "AD102", "TU104", "GA102", "Aldebaran"])
def test_a_chip_never_decides_even_where_one_product_has_it(chip: str) -> None:
    found = match(chip)
    assert (found.status, found.sku) == ("ambiguous", None)
    assert "chip" in found.reason
    # With other facts in its favour it still does not.
    assert match(chip, memory_bytes=16 * GIB, multiprocessors=40).sku is None


def test_memory_checks_and_never_decides() -> None:
    assert match("H100", memory_bytes=80 * GIB).status == "ambiguous"
    assert match("NVIDIA A100-SXM4-80GB", memory_bytes=79.15 * GIB).status == "exact"
    # A partition or another card under that name.
    found = match("NVIDIA A100-SXM4-80GB", memory_bytes=40 * GIB)
    assert (found.status, found.sku, found.candidates) == ("unknown", None, ("a100-sxm-80gb",))
    assert "42.9 GB" in found.reason
    # What drivers report: T4 15109 MiB, H100 81559 MiB, H200 143771 MiB, L4 23034 MiB, A10G 22731 MiB, one die of MI250X 64 GiB.
    for name, mib in (("Tesla T4", 15109), ("NVIDIA H100 80GB HBM3", 81559), ("NVIDIA H200", 143771), ("NVIDIA L4", 23034),
                      ("NVIDIA A10G", 22731), ("AMD Instinct MI250X", 65520), ("NVIDIA GH200 480GB", 97871),
                      ("NVIDIA H100 NVL", 95830), ("TPU7x", 96 * 1024), ("TPU v3", 16 * 1024)):  # fmt: skip
        assert match(name, memory_bytes=mib * 2.0**20).status == "exact", name


def test_multiprocessors_check() -> None:
    assert match("NVIDIA H100 80GB HBM3", multiprocessors=132).status == "exact"
    assert match("NVIDIA H100 80GB HBM3", multiprocessors=114).status == "unknown"
    assert match("AMD Instinct MI250X", multiprocessors=110).status == "exact"  # of one die
    assert match("AMD Instinct MI300X", multiprocessors=38).status == "unknown"  # one partition of eight
    assert match("NVIDIA GeForce RTX 3080", multiprocessors=70).status == "unknown"  # the 12 GB card of the same name


def test_pci_ids() -> None:
    for text in ("10de:2330", "0x233010DE", "0x2330", "233010de", "10DE:2330"):
        found = match("", pci_device_id=text)
        assert found.sku is not None, text
        assert found.sku.slug == "h100-sxm"
    # It settles part of a name and a chip.
    assert match("NVIDIA H100", pci_device_id="10de:2331").sku.slug == "h100-pcie"  # type: ignore[union-attr]
    assert match("GH100", pci_device_id="10de:2335").sku.slug == "h200"  # type: ignore[union-attr]
    # It does not speak for a name that is not on record: virtual cards carry the id of the board.
    found = match("GRID A100-10C", pci_device_id="10de:20b0")
    assert (found.status, found.sku, found.candidates) == ("ambiguous", None, ("a100-sxm-40gb",))
    assert match("NVIDIA A100-SXM4-40GB MIG 1g.5gb", pci_device_id="10de:20b0").sku is None
    # Some drivers give every card one name.
    assert match("AMD Radeon Graphics", pci_device_id="1002:74a1").sku.slug == "mi300x"  # type: ignore[union-attr]
    assert match("AMD Radeon Graphics").sku is None
    # Name and id that disagree.
    found = match("NVIDIA H100 PCIe", pci_device_id="10de:2330")
    assert (found.status, found.sku) == ("unknown", None)
    assert "h100-pcie" in found.reason
    assert "h100-sxm" in found.reason
    # An id that is not on record says nothing against a name.
    assert match("NVIDIA H100 PCIe", pci_device_id="10de:ffff").status == "exact"
    with pytest.raises(UsageError, match="PCI"):
        match("x", pci_device_id="nonsense")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_facts_must_be_positive(value: float) -> None:
    with pytest.raises(UsageError, match="memory_bytes"):
        match("NVIDIA H100 PCIe", memory_bytes=value)
    with pytest.raises(UsageError, match="multiprocessors"):
        match("NVIDIA H100 PCIe", multiprocessors=value)  # type: ignore[arg-type]


def test_normalisation_drops_no_word_but_the_maker() -> None:
    assert normalise("NVIDIA Corporation GeForce RTX 4090") == "geforce rtx 4090"
    assert normalise("NVIDIA") == "nvidia"
    assert normalise("AMD EPYC™ 9654") == normalise("amd epyc 9654")
    assert normalise("\uff28\uff11\uff10\uff10 PCIe") == "h100 pcie"  # full-width letters
    assert normalise_pci("") is None


def test_load_names_what_is_near() -> None:
    with pytest.raises(UsageError, match="could be: h100-nvl, h100-pcie, h100-sxm") as caught:
        load("H100")
    assert caught.value.code == "hardware_ambiguous"
    with pytest.raises(UsageError, match=r"nearest: .*h100-sxm"):
        load("h100-smx")
    for name in ("", ".", "..", "x" * 5000, "h100\0", "🙂"):
        with pytest.raises(UsageError):
            load(name)
    for path in ("nowhere/mine.toml", "./nowhere", "/nowhere"):
        with pytest.raises(InputError, match="cannot read"):
            load(path)
    with pytest.raises(UsageError, match=r"could be: mi250, mi250x"):
        load("AMD Instinct MI250X / MI250")


OWN = """
schema = "hardware/1"
slug = "z900"
name = "NVIDIA Z900 SXM6"
vendor = "NVIDIA"
kind = "gpu"

[[peaks]]
dtype = "bf16"
accumulate = "f32"
engine = "matrix"
flop_per_s = 2250e12
source = "sheet"

[[memory]]
level = "hbm"
capacity_bytes = 206158430208
bytes_per_s = 8e12
per = "package"
source = "sheet"

[identity]
names = ["NVIDIA Z900 SXM6"]
source = "sheet"

[package]
dies = 1
devices = 1
source = "sheet"

[sources.sheet]
source = "the vendor's datasheet"
date = "2026-11"
certainty = "checked"
"""


def test_a_users_file_or_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "z900.toml"
    path.write_text(OWN, encoding="utf-8")
    assert load(path).peaks[0].flop_per_s == 2250e12
    assert load(str(path)).slug == "z900"
    assert match("NVIDIA Z900 SXM6").status == "unknown"
    for place in (path, tmp_path):
        found = match("NVIDIA Z900 SXM6", directories=[place])
        assert found.sku is not None
        assert str(path) in found.reason
        assert load("z900", directories=[place]).slug == "z900"
    monkeypatch.setenv("MANSARD_HARDWARE_PATH", f"{tmp_path}")
    assert match("NVIDIA Z900 SXM6").status == "exact"
    assert load("h200").slug == "h200"


def test_a_users_file_outranks_a_shipped_one(tmp_path: Path) -> None:
    text = OWN.replace('"z900"', '"h200"').replace("NVIDIA Z900 SXM6", "NVIDIA H200")
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    sku = load("h200", directories=[tmp_path])
    assert (sku.peaks[0].flop_per_s, sku.origin) == (2250e12, str(tmp_path / "mine.toml"))
    assert match("NVIDIA H200", directories=[tmp_path]).sku == sku
    assert [e.slug for e in entries([tmp_path])].count("h200") == 1
    # A file of another name that claims the same product outranks it too, and the answer says whose file it is.
    other = OWN.replace("NVIDIA Z900 SXM6", "NVIDIA H200")
    (tmp_path / "mine.toml").write_text(other, encoding="utf-8")
    found = match("NVIDIA H200", directories=[tmp_path])
    assert found.sku is not None
    assert found.sku.slug == "z900"
    assert "user's file" in found.reason


def test_a_place_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such hardware file or folder"):
        match("H100", directories=[tmp_path / "missing"])
    assert match("NVIDIA H200", directories=[tmp_path]).status == "exact"


@given(text=st.text(max_size=40))
def test_whatever_is_typed_matches_by_its_whole_name_or_not_at_all(text: str) -> None:
    found = match(text)
    if found.sku is not None:
        sku = found.sku
        assert normalise(text) in {normalise(n) for n in (sku.slug, sku.name, *sku.identity.names)}
    else:
        assert found.status in ("ambiguous", "unknown")
        assert found.reason


@given(
    name=st.sampled_from(NAMES), extra=st.text(alphabet=st.characters(categories=["L", "N"]), min_size=1, max_size=6)
)
def test_a_name_with_something_added_is_another_name(name: str, extra: str) -> None:
    for changed in (name + extra, extra + name, f"{name} {extra}"):
        key = normalise(changed)
        found = match(changed)
        if key not in ALL_KEYS:
            assert found.sku is None, (changed, found)


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("NVIDIA DGX H100", "8 x h100-sxm"),
        ("HGX H200", "4 or 8 x h200"),
        ("p5.48xlarge", "8 x h100-sxm"),
        ("a3-highgpu-8g", "8 x h100-sxm"),
        ("ND H100 v5", "8 x h100-sxm"),
        ("GB200 NVL72", "72 x gb200"),
        ("dgx a100", "8 x a100-sxm-40gb or a100-sxm-80gb"),
    ],
)
def test_a_system_is_no_device_and_says_what_it_holds(name: str, holds: str) -> None:
    found = match(name)
    assert (found.sku, found.status) == (None, "ambiguous")
    assert holds in found.reason
    assert " or ".join(found.candidates) in found.needs[0]


def test_every_system_holds_products_on_record() -> None:
    from mansard.hardware.systems import _systems

    for whole in _systems().values():
        assert all(load(d).slug == d for d in whole.devices)
        assert all(n >= 1 for n in whole.counts)


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("gfx90a", ("mi210", "mi250", "mi250x")),
        ("gfx942:sramecc+:xnack-", ("mi300a", "mi300x", "mi325x")),
        ("gfx950", ("mi350x", "mi355x")),
        ("AMD Instinct MI250X/MI250", ("mi250", "mi250x")),
        ("AMD Instinct MI250X / MI250", ("mi250", "mi250x")),
    ],
)
def test_a_name_that_several_products_share_names_them(name: str, candidates: tuple[str, ...]) -> None:
    found = match(name)
    assert (found.status, found.candidates) == ("ambiguous", candidates)


def test_the_pci_id_settles_a_shared_name() -> None:
    found = match("AMD Instinct MI250X/MI250", pci_device_id="1002:7408")
    assert found.sku is not None
    assert found.sku.slug == "mi250x"


@pytest.mark.parametrize("name", ["Apple M2", "Apple M3", "Apple M4"])
def test_a_grade_is_never_guessed_onto_a_name(name: str) -> None:
    """An M2 is no M2 Ultra: the shorter name is that of another product, which is not on record."""
    found = match(name)
    assert (found.status, found.sku) == ("unknown", None), found
    assert "not on record" in found.reason


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA GeForce RTX 3070", "rtx-3070"),
        ("NVIDIA GeForce RTX 4070", "rtx-4070"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-ws"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
        ("NVIDIA A800-SXM4-80GB", "a800-sxm-80gb"),
        ("NVIDIA GB10", "gb10"),
        ("AMD EPYC 7763 64-Core Processor", "epyc-7763"),
        ("Intel(R) Data Center GPU Max 1550", "max-1550"),
    ],
)
def test_products_of_one_family_are_kept_apart(name: str, slug: str) -> None:
    found = match(name)
    assert found.candidates == (slug,)
    assert found.status == "exact"


@pytest.mark.parametrize(("slug", "count"), [("b200", 148), ("b300", 148), ("gb200", 152), ("gb300", 152)])
def test_blackwell_devices_report_these_multiprocessors(slug: str, count: int) -> None:
    """flashinfer-ai/flashinfer #5716: B200 and B300 report 148, GB200 and GB300 152."""
    sku = load(slug)
    assert match(sku.identity.names[0], multiprocessors=count).sku == sku
    assert match(sku.identity.names[0], multiprocessors=300 - count).sku is None
