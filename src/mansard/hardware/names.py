"""Product names in one spelling, so that equal products compare equal and nothing else does."""

from __future__ import annotations

import re
import unicodedata

_MARKS = re.compile(r"\((?:r|tm|c)\)|[®™©]", re.IGNORECASE)
_SEPARATORS = re.compile(r"[\s_/,;:()\[\]@\-]+")
# Words that name the maker and no product. "GeForce", "Tesla", "Instinct" stay: they are part of product names.
_VENDORS = frozenset({"nvidia", "amd", "intel", "google", "aws", "amazon", "apple", "corporation", "inc", "inc."})
#: No product name is longer; what is longer is not compared.
MAX_NAME = 200
_MIG = re.compile(r"\bmig\b|\b\d+g\.\d+gb\b", re.IGNORECASE)


def normalise(name: str) -> str:
    """Return a product name in lower case, one space between words, without makers and trade marks.

    No word is ever dropped but the maker's, and no part of a word: equal results mean equal products.

    >>> normalise("NVIDIA A100-SXM4-80GB"), normalise("Intel(R) Xeon(R) Platinum 8480+")
    ('a100 sxm4 80gb', 'xeon platinum 8480+')
    >>> normalise("NVIDIA H20") == normalise("NVIDIA H200")
    False
    """
    text = unicodedata.normalize("NFKC", _MARKS.sub(" ", name)).casefold()
    words = [w for w in _SEPARATORS.split(_MARKS.sub(" ", text)) if w]
    kept = [w for w in words if w not in _VENDORS]
    return " ".join(kept or words)


def is_partition(name: str) -> bool:
    """Return whether a name is that of a part of a card (a MIG instance).

    >>> is_partition("NVIDIA A100-SXM4-40GB MIG 1g.5gb"), is_partition("NVIDIA A100-SXM4-40GB")
    (True, False)
    """
    return _MIG.search(name) is not None


def normalise_pci(text: str) -> tuple[str | None, str] | None:
    """Return `(vendor, device)` in hexadecimal of a PCI id in any of its spellings; vendor None if it is not in there.

    NVML packs device and vendor into one number, lspci writes `vendor:device`, sysfs writes the device alone.

    >>> normalise_pci("10de:2330"), normalise_pci("0x233010DE"), normalise_pci("0x2330")
    (('10de', '2330'), ('10de', '2330'), (None, '2330'))
    """
    value = text.strip().lower()
    pair = re.fullmatch(r"(?:0x)?([0-9a-f]{4})[:\s](?:0x)?([0-9a-f]{4})", value)
    if pair:
        return pair.group(1), pair.group(2)
    packed = re.fullmatch(r"(?:0x)?([0-9a-f]{4})([0-9a-f]{4})", value)
    if packed:
        return packed.group(2), packed.group(1)
    alone = re.fullmatch(r"(?:0x)?([0-9a-f]{4})", value)
    return (None, alone.group(1)) if alone else None
