"""Which product is this? Exact identity, or no answer.

A product name decides only if it is one of the names on record, whole; a PCI id decides only if the name does not speak
against it. Memory size, multiprocessors and bandwidth can refuse a match and never make one. A chip code name never decides:
one chip is sold as several products with different memories and clocks.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mansard.core.errors import UsageError
from mansard.core.units import format_bytes, format_bytes_per_s
from mansard.hardware.catalogue import Entry, entries
from mansard.hardware.names import MAX_NAME, is_partition, normalise, normalise_pci
from mansard.hardware.records import Sku
from mansard.hardware.systems import system

Status = Literal["exact", "ambiguous", "unknown"]

# What a driver reports of a memory: between 0.90 (ECC and reserved pages) and 1.02 of what is built in.
_MEMORY_RATIO = (0.90, 1.02)
# Drivers print clock x width, vendors round; 300 GB/s and 320 GB/s are both printed for one T4.
_BANDWIDTH_RATIO = (0.93, 1.07)
# Words that stand in names of many products; alone they say nothing.
_GENERIC = frozenset(
    {
        "radeon",
        "graphics",
        "controller",
        "accelerator",
        "virtual",
        "cpu",
        "gpu",
        "core",
        "processor",
        "pcie",
        "sxm",
        "device",
        "of",
        "card",
        "gb",
        "per",
    }
)
# Words that make another product of a name: an RTX 4070 is no RTX 4070 Ti, and an M2 no M2 Ultra.
_GRADES = frozenset({"ti", "super", "ultra", "max", "pro", "max-q", "laptop", "d"})
# What a compiler calls the instruction set of a chip; several products share one.
# Source: LLVM user guide for the AMDGPU back end, table of processors.
_TARGETS = {"gfx90a": "CDNA 2", "gfx942": "CDNA 3", "gfx950": "CDNA 4"}
HOW_TO_ADD = (
    "write one hardware file and point --hardware-dir or MANSARD_HARDWARE_PATH to it (docs/hardware.md)",
    'or pass the number: --peak "2250 TFLOP/s"',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The answer to "which product is this?".

    Args:
        status: `exact`, `ambiguous` (known in part, several or one product could be meant), or `unknown`.
        sku: The product, only if exact.
        candidates: Slugs: what could be meant, or the nearest names. Never a substitute.
        reason: What decided, in one sentence.
        needs: What would decide.
    """

    status: Status
    sku: Sku | None
    candidates: tuple[str, ...]
    reason: str
    needs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return status, reason and either `matched` (the short name) with `product`, or candidates."""
        return {
            "status": self.status,
            "matched": self.sku.slug if self.sku else None,
            "product": self.sku.name if self.sku else None,
            "candidates": list(self.candidates),
            "reason": self.reason,
            "needs": list(self.needs),
        }


def match(
    name: str,
    *,
    memory_bytes: float | None = None,
    multiprocessors: int | None = None,
    memory_bytes_per_s: float | None = None,
    pci_device_id: str | None = None,
    directories: Sequence[str | Path] = (),
) -> Match:
    """Return which product a device is, as far as its identity tells.

    Args:
        name: Product name as a driver reports it, or a slug; may be empty if a PCI id is given.
        memory_bytes: What the driver says of its memory [B]; a check.
        multiprocessors: SMs or compute units of the device; a check.
        memory_bytes_per_s: Memory bandwidth that a profile states [B/s]; a check.
        pci_device_id: `10de:2330`, NVML's `0x233010DE`, or sysfs's `0x2330`.
        directories: The user's files or folders.

    Raises:
        UsageError: a number is not positive, or the PCI id is none.

    >>> match("NVIDIA H100 80GB HBM3").sku.slug
    'h100-sxm'
    >>> match("H100").status, match("H100").candidates
    ('ambiguous', ('h100-nvl', 'h100-pcie', 'h100-sxm'))
    >>> match("NVIDIA RTX A1000 Laptop GPU").status
    'unknown'
    """
    _check_facts(memory_bytes, multiprocessors, memory_bytes_per_s)
    known = [e for e in entries(directories) if e.kind != "cpu-family" or normalise(name[:MAX_NAME]) in e.keys]
    if len(name) > MAX_NAME:
        return _unknown(f"a name of {len(name)} characters is no product name", known, "")
    key = normalise(name)
    by_pci = _by_pci(known, pci_device_id)
    if is_partition(name):
        text = f"{name!r} is a partition of a card: it has a part of the units and memory, so the card's figures are not its"
        return Match(status="unknown", sku=None, candidates=(), reason=text, needs=HOW_TO_ADD)
    named = _named(known, key)
    if len(named) > 1:
        return _ambiguous(f"{name!r} is a name of several files", named)
    if not named and "/" in name:
        both = _either(known, name)
        settled = [e for e in by_pci or () if e in both]
        if len(both) > 1 and len(settled) != 1:
            return _ambiguous(f"{name!r} names several products", both)
        named = settled
    whole = system(name) if not named and by_pci is None else None
    if whole is not None:
        return Match(
            status="ambiguous", sku=None, candidates=whole.devices,
            reason=f"{name!r} is a system that holds {whole.text}, not a device",
            needs=(f"name the device: {' or '.join(whole.devices)}",),
        )  # fmt: skip
    chosen, reason = _decide(name, key, named, by_pci, known)
    if chosen is None:
        return reason if isinstance(reason, Match) else _unknown(reason, known, key)
    assert isinstance(reason, str)
    sku = chosen.sku()
    against = _contradiction(sku, memory_bytes, multiprocessors, memory_bytes_per_s)
    if against:
        return Match(
            status="unknown",
            sku=None,
            candidates=(sku.slug,),
            reason=f"{reason}, but {against}: another product, a partition, or a virtual card",
            needs=HOW_TO_ADD,
        )
    if not chosen.shipped:
        reason += f"; the user's file {chosen.path}"
    return Match(status="exact", sku=sku, candidates=(sku.slug,), reason=reason)


def _check_facts(memory_bytes: float | None, multiprocessors: int | None, memory_bytes_per_s: float | None) -> None:
    for word, value in (("memory_bytes", memory_bytes), ("multiprocessors", multiprocessors),
                        ("memory_bytes_per_s", memory_bytes_per_s)):  # fmt: skip
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"{word} must be positive, got {value!r}")


def _named(known: Sequence[Entry], key: str) -> list[Entry]:
    """Return the entries of which `key` is an exact name; a user's file outranks a shipped one."""
    hits = [e for e in known if key and key in e.keys]
    own = [e for e in hits if not e.shipped]
    return own or hits


def _either(known: Sequence[Entry], name: str) -> list[Entry]:
    """Return the products that a name such as `Instinct MI250X/MI250` lists, which share all words but the last."""
    first, *others = (part.strip() for part in name.split("/"))
    shared = " ".join(first.split()[:-1])
    return [e for part in (first, *(f"{shared} {other}" for other in others)) for e in _named(known, normalise(part))]


def _by_pci(known: Sequence[Entry], pci: str | None) -> list[Entry] | None:
    """Return the entries with that PCI id, or None where no id was given."""
    if pci is None:
        return None
    parsed = normalise_pci(pci)
    if parsed is None:
        raise UsageError(f"{pci[:80]!r} is no PCI id", hint="like 10de:2330, or 0x233010DE as NVML prints it")
    vendor, device = parsed
    return [e for e in known for p in e.pci if p.endswith(f":{device}") and (vendor is None or p.startswith(vendor))]


def _decide(
    name: str, key: str, named: list[Entry], by_pci: list[Entry] | None, known: Sequence[Entry]
) -> tuple[Entry | None, str | Match]:
    """Return the entry and what decided, or None with the reason or the whole answer."""
    board = by_pci[0] if by_pci and len(by_pci) == 1 else None
    if named:
        only = named[0]
        if board is not None and board.slug != only.slug:
            text = f"the name says {only.slug}, the PCI id says {board.slug}"
            return None, Match(
                status="unknown", sku=None, candidates=(only.slug, board.slug), reason=text, needs=HOW_TO_ADD
            )
        both = "product name and PCI id" if board is not None else "product name"
        return only, f"the {both} of {only.name}"
    chips = [e for e in known if key and normalise(e.chip) == key]
    if board is not None:
        # Some drivers call every card "AMD Radeon Graphics"; such a name speaks neither for nor against.
        fits = not key or chips or set(key.split()) <= _GENERIC or _says_in_part(set(key.split()), board)
        if fits:
            return board, f"the PCI id of {board.name}"
        text = f"the PCI id is that of {board.slug}, but the name {name!r} is not on record: it may be a virtual or cut-down card"
        return None, Match(status="ambiguous", sku=None, candidates=(board.slug,), reason=text, needs=HOW_TO_ADD)
    if chips:
        text = f"{name!r} is a chip, sold as several products with different memories and clocks"
        return None, _ambiguous(text, chips)
    if not key:
        return None, "no name was given"
    target = _TARGETS.get(key.split()[0])
    if target is not None:
        text = f"{name!r} is an instruction set, which several products have"
        return None, _ambiguous(text, [e for e in known if e.architecture == target])
    words = set(key.split())
    if words <= _GENERIC or all(re.fullmatch(r"\d+(gb|c)", w) for w in words):
        return None, f"{name!r} names no product"
    partly = [e for e in known if _says_in_part(words, e)]
    if partly:
        return None, _ambiguous(f"{name!r} is not the whole name of a product", partly)
    return None, f"{name!r} is not on record"


def _says_in_part(words: set[str], entry: Entry) -> bool:
    """Return whether words are some of those of a name of the entry, and lack none that makes it another product."""
    return any(words <= whole and not (whole - words) & _GRADES for whole in entry.words)


def _contradiction(
    sku: Sku, memory_bytes: float | None, multiprocessors: int | None, bytes_per_s: float | None
) -> str | None:
    """Return what the device reports that this product cannot report, or None."""
    devices = sku.package.devices
    expected = sku.identity.multiprocessors
    if multiprocessors is not None and expected is not None and multiprocessors != expected:
        return f"it has {multiprocessors} multiprocessors and {sku.slug} has {expected}"
    memory = sku.outer_memory
    if memory is None:
        return None
    if memory_bytes is not None and not memory.configurable:
        size = memory.capacity_bytes * (sku.package.dies if memory.per == "die" else 1) / devices
        if not _MEMORY_RATIO[0] * size <= memory_bytes <= _MEMORY_RATIO[1] * size:
            return f"it has {format_bytes(memory_bytes)} of memory and a {sku.slug} device has {format_bytes(size)}"
    if bytes_per_s is not None and memory.bytes_per_s is not None:
        rate = memory.bytes_per_s / devices
        if not _BANDWIDTH_RATIO[0] * rate <= bytes_per_s <= _BANDWIDTH_RATIO[1] * rate:
            return f"its memory does {format_bytes_per_s(bytes_per_s)} and that of {sku.slug} does {format_bytes_per_s(rate)}"
    return None


def _ambiguous(reason: str, among: Sequence[Entry]) -> Match:
    slugs = tuple(sorted({e.slug for e in among}))
    pci = ("or the PCI id (lspci -nn, or nvidia-smi --query-gpu=pci.device_id)",) if any(e.pci for e in among) else ()
    return Match(
        status="ambiguous",
        sku=None,
        candidates=slugs,
        reason=reason,
        needs=("one of the candidates by its short name", *pci),
    )


def _unknown(reason: str, known: Sequence[Entry], key: str) -> Match:
    return Match(status="unknown", sku=None, candidates=nearest(key, known), reason=reason, needs=HOW_TO_ADD)


def nearest(key: str, known: Sequence[Entry], count: int = 5) -> tuple[str, ...]:
    """Return the slugs whose names are spelt most like `key`; they are for reading, never for use."""
    if not key:
        return ()
    owner = {k: e.slug for e in known for k in sorted(e.keys)}
    close = difflib.get_close_matches(key[:80], list(owner), n=4 * count, cutoff=0.5)
    return tuple(dict.fromkeys(owner[k] for k in close))[:count]
