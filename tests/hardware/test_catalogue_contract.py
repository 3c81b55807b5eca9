"""The contract that every hardware file keeps."""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mansard.core.unknown import is_known
from mansard.hardware import ceilings, entries, load, match, peak_rows
from mansard.hardware.catalogue import SHIPPED
from mansard.hardware.names import normalise
from mansard.hardware.records import DERIVED_TOLERANCE_RATIO, Receipt, Sku

FILES = sorted(SHIPPED.glob("*.toml"))
SKUS = {path.stem: load(path.stem) for path in FILES}
PRODUCTS = {slug: sku for slug, sku in SKUS.items() if sku.kind != "cpu-family"}
each = pytest.mark.parametrize("slug", list(SKUS))
each_product = pytest.mark.parametrize("slug", list(PRODUCTS))


@pytest.fixture(autouse=True)
def _no_user_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MANSARD_HARDWARE_PATH", raising=False)


def test_the_catalogue_is_there() -> None:
    assert len(PRODUCTS) >= 54
    families = {"zen2", "zen3", "zen4", "zen5", "skylake-sp", "cascade-lake", "ice-lake-sp", "sapphire-rapids",
                "emerald-rapids", "granite-rapids", "neoverse-v1", "neoverse-v2", "apple-m-p-core"}  # fmt: skip
    assert families <= set(SKUS)


def test_short_names_that_others_rely_on() -> None:
    names = {"h100-sxm", "h100-pcie", "h100-nvl", "h200", "gh200-96gb", "a100-sxm-40gb", "mi300x", "tpu-v5e", "tpu-v7x",
             "grace", "epyc-9654"}  # fmt: skip
    assert names <= set(SKUS)


@each
def test_file_name_is_the_slug(slug: str) -> None:
    assert SKUS[slug].slug == slug


@each
def test_the_head_of_a_file_holds_its_identity(slug: str) -> None:
    """Searches read only what comes before the first array of tables."""
    entry = next(e for e in entries() if e.slug == slug)
    sku = SKUS[slug]
    assert entry.keys == {normalise(n) for n in (sku.slug, sku.name, *sku.identity.names)}
    assert (entry.pci, entry.cpuid, entry.kind) == (sku.identity.pci, sku.identity.cpuid, sku.kind)


def _receipts(sku: Sku) -> Iterator[Receipt]:
    yield sku.identity.receipt
    yield sku.package.receipt
    for rows in (sku.units, sku.clocks, sku.peaks, sku.memory, sku.links, sku.prices):
        for row in rows:
            yield row.receipt
    for m in sku.memory:
        if m.granularity_bytes is not None:
            yield m.granularity_receipt or m.receipt
    if sku.tdp_w is not None:
        assert sku.tdp_receipt is not None
        yield sku.tdp_receipt


@each
def test_every_number_has_source_date_and_certainty(slug: str) -> None:
    for r in _receipts(SKUS[slug]):
        assert len(r.source) > 8
        assert re.fullmatch(r"20\d\d(-\d\d)?(-\d\d)?", r.date), r
        assert r.certainty in ("checked", "reported", "from memory")


@each
def test_no_key_of_a_file_is_about_sparsity(slug: str) -> None:
    def keys(table: object) -> Iterator[str]:
        if isinstance(table, dict):
            for key, value in table.items():
                yield key
                yield from keys(value)
        elif isinstance(table, list):
            for value in table:
                yield from keys(value)

    found = list(keys(tomllib.loads((SHIPPED / f"{slug}.toml").read_text(encoding="utf-8"))))
    assert not [k for k in found if "sparse" in k or "sparsity" in k]


@each
def test_derived_is_within_one_percent_of_declared_or_the_file_says_why(slug: str) -> None:
    for row in peak_rows(SKUS[slug]):
        if not is_known(row.ratio):
            continue
        far = abs(row.ratio - 1.0) > DERIVED_TOLERANCE_RATIO
        assert far == bool(row.peak.difference), (row.peak.key, row.ratio, row.peak.difference)


def test_most_derivations_have_a_clock_known_independently_of_the_peak() -> None:
    rows = [r for s in PRODUCTS.values() for r in peak_rows(s) if is_known(r.ratio)]
    independent = [r for r in rows if r.peak.clock_basis == "independent"]
    assert len(independent) > 0.7 * len(rows)
    solved = {s.slug for s in PRODUCTS.values() for p in s.peaks if p.clock_basis == "solved"}
    # Their vendors print no matrix clock; every other clock is from a source of its own.
    assert solved == {"h100-pcie", "h100-nvl", "h200-nvl", "b200", "b300", "gb200", "gb300"}


# Narrower types are never slower on one engine: pairs (slower or equal, faster or equal).
_ORDER = [("f64", "tf32"), ("f32", "tf32"), ("tf32", "bf16"), ("bf16", "f8_e4m3"), ("f16", "f8_e4m3"),
          ("f8_e4m3", "f4_e2m1"), ("bf16", "i8"), ("i8", "i4"), ("f64", "f32"), ("f32", "f16"), ("f32", "bf16")]  # fmt: skip


@each
def test_narrower_types_are_never_slower(slug: str) -> None:
    sku = SKUS[slug]
    exempt = {e.dtype for e in sku.exemptions}
    used = set()
    for engine in ("matrix", "vector"):
        best: dict[str, float] = {}
        for row in peak_rows(sku):
            value = row.declared if is_known(row.declared) else row.derived
            if row.peak.engine == engine and is_known(value) and row.peak.accumulate != "f16":
                best[row.peak.dtype] = value
        for slow, fast in _ORDER:
            if slow in best and fast in best and best[fast] < best[slow] * 0.999:
                assert fast in exempt, f"{engine} {fast} {best[fast]:.4g} is slower than {slow} {best[slow]:.4g}"
                used.add(fast)
    assert used == exempt, "an exemption that exempts nothing"


@each
def test_f16_and_bf16_are_equal_where_both_accumulate_in_f32(slug: str) -> None:
    rates = {p.dtype: p.flop_per_s for p in SKUS[slug].peaks if p.engine == "matrix" and p.accumulate == "f32"}
    if "f16" in rates and "bf16" in rates:
        # The first CDNA multiplies bf16 at half of that rate: 92.3 and 184.6 TFLOP/s.
        assert rates["f16"] == (2.0 * rates["bf16"] if slug == "mi100" else rates["bf16"])


def test_identities_are_unique() -> None:
    owners: dict[str, str] = {}
    for entry in entries():
        for key in (*entry.keys, *entry.pci):
            assert owners.setdefault(key, entry.slug) == entry.slug, f"{key!r}: {owners[key]} and {entry.slug}"


@each
def test_every_name_of_a_file_is_matched_to_it_and_to_nothing_else(slug: str) -> None:
    sku = SKUS[slug]
    for name in (sku.slug, sku.name, *sku.identity.names):
        found = match(name)
        assert (found.status, found.sku.slug if found.sku else None) == ("exact", slug), name


@each
def test_no_name_is_a_trap_for_a_longer_or_shorter_one(slug: str) -> None:
    sku = SKUS[slug]
    others = {key for e in entries() if e.slug != slug for key in e.keys}
    for name in (sku.name, *sku.identity.names):
        for changed in (
            f"{name}0",
            f"{name} Ti",
            f"{name} Laptop GPU",
            f"G{name}",
            f"{name} MIG 1g.5gb",
            f"{name}X",
            name[:-1],
        ):
            found = match(changed)
            if normalise(changed) not in others:
                assert found.sku is None or normalise(changed) in {
                    normalise(n) for n in (sku.name, *sku.identity.names)
                }, changed
            else:
                assert found.sku is None or found.sku.slug != slug, changed


def test_names_that_begin_with_another_products_name_are_kept_apart() -> None:
    """Every pair of which one name starts with the other, such as H20 and H200, goes to two products."""
    keys = [(key, e.slug) for e in entries() for key in e.keys]
    pairs = [(a, sa, b, sb) for a, sa in keys for b, sb in keys if sa != sb and b.startswith(a)]
    assert {("h20", "h200"), ("l40", "l40s"), ("a10", "a10g"), ("h200", "h200 nvl"), ("t4", "t4")} - {("t4", "t4")} <= {
        (a, b) for a, _, b, _ in pairs
    }
    for a, sa, b, sb in pairs:
        first, second = match(a), match(b)
        assert first.sku is not None
        assert second.sku is not None
        assert (first.sku.slug, second.sku.slug) == (sa, sb)


@each_product
def test_memory_is_listed_from_near_to_far_and_has_a_bandwidth_at_the_end(slug: str) -> None:
    memory = PRODUCTS[slug].memory
    sizes = [m.capacity_bytes for m in memory]
    assert sizes == sorted(sizes)
    assert memory[-1].bytes_per_s is not None
    for m in memory:
        if m.usable_bytes is not None:
            assert 0.9 * m.capacity_bytes <= m.usable_bytes <= m.capacity_bytes


@each_product
def test_ceilings_of_one_device_are_its_share_of_the_package(slug: str) -> None:
    sku = PRODUCTS[slug]
    paper = ceilings(sku)
    assert paper.ceilings
    assert all(c.scope == "device" and c.source for c in paper.ceilings)
    node = ceilings(sku, scope="node", devices=sku.package.devices)
    for one, package in zip(paper.ceilings, node.ceilings, strict=True):
        assert package.value == pytest.approx(one.value * sku.package.devices)
    outer = sku.memory[-1]
    total = sum(level.capacity_bytes * level.instances for level in node.levels if level.level == outer.level)
    per_die = sku.package.dies if outer.per == "die" else 1
    assert total == pytest.approx((outer.usable_bytes or outer.capacity_bytes) * per_die)


# Rows of the facts table and the file that holds each.
_ROWS = {
    "V100 SXM2 32GB": "v100-sxm2-32gb", "V100 PCIe": "v100-pcie-16gb", "T4": "t4", "A100 40GB SXM": "a100-sxm-40gb",
    "A100 80GB SXM": "a100-sxm-80gb", "A100 80GB PCIe": "a100-pcie-80gb", "H100 SXM5": "h100-sxm", "H100 PCIe": "h100-pcie",
    "H100 NVL": "h100-nvl", "H800 SXM": "h800-sxm", "H20": "h20", "H200 SXM": "h200", "GH200 96GB": "gh200-96gb",
    "GH200 144GB": "gh200-144gb", "B200 HGX": "b200", "GB200 (per GPU)": "gb200", "B300 HGX": "b300",
    "GB300 (per GPU)": "gb300", "L4": "l4", "L40S": "l40s", "RTX 4090": "rtx-4090", "RTX 5090": "rtx-5090",
    "RTX 3090": "rtx-3090", "A10": "a10", "A10G (AWS g5)": "a10g", "RTX A6000": "rtx-a6000", "MI250X (OAM, 2 GCD)": "mi250x",
    "MI300X": "mi300x", "MI325X": "mi325x", "MI355X": "mi355x", "Gaudi2": "gaudi2", "Gaudi3": "gaudi3",
    "Trainium2": "trainium2", "Trainium3": "trainium3", "TPU v2": "tpu-v2", "TPU v3": "tpu-v3", "TPU v4": "tpu-v4",
    "TPU v5e": "tpu-v5e", "TPU v5p": "tpu-v5p", "TPU v6e Trillium": "tpu-v6e", "TPU7x Ironwood": "tpu-v7x",
    "Apple M1 (7c)": "apple-m1-7c", "Apple M1 Max": "apple-m1-max-32c", "Apple M2 Ultra": "apple-m2-ultra-76c",
    "Apple M3 Max 40c": "apple-m3-max-40c", "Apple M4 Max 40c": "apple-m4-max-40c", "Apple M3 Ultra 80c": "apple-m3-ultra-80c",
    "Grace CPU (72 V2)": "grace", "EPYC 9654 Zen4": "epyc-9654", "EPYC 9755 Zen5": "epyc-9755", "EPYC 7742 Zen2": "epyc-7742",
    "Xeon 8480+ SPR": "xeon-8480-plus", "Xeon 6980P GNR": "xeon-6980p", "Xeon Gold 6148 SKX": "xeon-gold-6148",
}  # fmt: skip
_COLUMNS = {"fp32_TF": ("f32",), "tf32_TF": ("tf32",), "bf16_dense_TF": ("bf16", "f16"), "fp8_dense_TF": ("f8_e4m3",),
            "int8_dense_TOPS": ("i8",), "fp4_dense_TF": ("f4_e2m1",)}  # fmt: skip


def _number(text: str) -> float | None:
    found = re.match(r"\s*([\d.]+)", text)
    return float(found.group(1)) if found else None


def test_all_54_devices_of_the_facts_table_are_there_with_its_figures(shared: Path) -> None:
    with (shared / "data" / "hardware_facts.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {r["name"] for r in rows} == set(_ROWS)
    for row in rows:
        sku = SKUS[_ROWS[row["name"]]]
        rates: dict[str, list[float]] = {}
        for r in peak_rows(sku):
            value = r.declared if is_known(r.declared) else r.derived
            if is_known(value):
                rates.setdefault(r.peak.dtype, []).append(value / 1e12)
        for column, dtypes in _COLUMNS.items():
            value = _number(row[column])
            if value is None:
                continue
            known = [x for d in dtypes for x in rates.get(d, [])]
            assert any(x == pytest.approx(value, rel=0.012) for x in known), (row["name"], column, value, known)
        bandwidth = _number(row["mem_bw_GBps"])
        outer = sku.memory[-1]
        if bandwidth is not None and sku.kind == "gpu":
            assert outer.bytes_per_s == pytest.approx(bandwidth * 1e9, rel=0.001), row["name"]
        if _number(row["TDP_W"]) is not None and sku.slug not in ("gh200-96gb", "gh200-144gb"):
            assert sku.tdp_w == _number(row["TDP_W"])


def test_no_dense_peak_is_the_sparse_figure_of_the_facts_table(shared: Path) -> None:
    with (shared / "data" / "hardware_facts.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            sparse = _number(row["bf16_sparse_TF"])
            for peak in SKUS[_ROWS[row["name"]]].peaks:
                if sparse and peak.dtype in ("bf16", "f16") and peak.accumulate == "f32" and peak.flop_per_s:
                    assert peak.flop_per_s / 1e12 < 0.6 * sparse, (row["name"], peak.key)
