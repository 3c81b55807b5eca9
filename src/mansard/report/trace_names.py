"""Names of kernels and operators for a column of a given width: names that differ never look the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mansard.trace.categories import short_name

_DOTS = "..."
_SCOPES = re.compile(r"(?:\(anonymous namespace\)::|\{anonymous\}::|\b[A-Za-z_]\w*::)+(?=[A-Za-z_(])")
_CASTS = re.compile(r"\((?:int|bool|unsigned int|long|unsigned long)\)(?=[\w-])")
_RESULT = re.compile(r"^(?:static\s+)?void\s+")
_LEAST_PART = 4


def labels(names: Sequence[str]) -> list[str]:
    """Return a short label of each kernel name; where several names share one, with the template arguments that differ.

    Args:
        names: Full names, one a row.

    >>> labels(["void n::fill<4, n::Add<float>>(int)", "void n::fill<4, n::Mul<float>>(int)", "void n::norm<float>(int)"])
    ['fill<4, Add<float>>', 'fill<4, Mul<float>>', 'norm']
    >>> labels(["a(int)", "a(float)"])
    ['a(int)', 'a(float)']
    """
    distinct = list(dict.fromkeys(names))
    found = {name: short_name(name) for name in distinct}
    for form in (_with_arguments, str):
        owners: dict[str, list[str]] = {}
        for name, label in found.items():
            owners.setdefault(label, []).append(name)
        for same in owners.values():
            if len(same) > 1:
                found |= {name: form(name) for name in same}
    return [found[name] for name in names]


def _with_arguments(name: str) -> str:
    """Return a name with its template arguments, without result type, parameters, namespaces and casts."""
    text = _SCOPES.sub("", _CASTS.sub("", _RESULT.sub("", name)))
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and place:
            return text[:place].strip()
    return text


def apart(texts: Sequence[str], width: int) -> list[str]:
    """Return texts of at most `width` columns; those that would look the same show where they differ.

    Args:
        texts: One a row; equal texts stay equal.
        width: Columns, at least 14 for texts to be told apart.

    >>> apart(["gemm_128x64_tn_kernel_a", "gemm_128x64_tn_kernel_b", "copy"], 14)
    ['gem...kernel_a', 'gem...kernel_b', 'copy']
    >>> apart(["vectorized_kernel<4, multiply_by<float>>", "vectorized_kernel<4, exponent_of<float>>"], 24)
    ['vectori...multiply_by...', 'vectori...exponent_of...']
    """
    found = {text: _head(text, width) for text in dict.fromkeys(texts)}
    _split(list(found), found, width)
    return [found[text] for text in texts]


def _split(texts: Sequence[str], found: dict[str, str], width: int) -> None:
    """Give every text of a group that looks the same a cut around the place where it leaves the others."""
    looks: dict[str, list[str]] = {}
    for text in texts:
        looks.setdefault(found[text], []).append(text)
    for same in looks.values():
        if len(same) < 2:
            continue
        differs = next(
            (i for i, letters in enumerate(zip(*same, strict=False)) if len(set(letters)) > 1), min(map(len, same))
        )
        for text in same:
            found[text] = _around(text, differs, width)
        if len({found[text] for text in same}) > 1:
            _split(same, found, width)


def _head(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - len(_DOTS))] + _DOTS


def _around(text: str, differs: int, width: int) -> str:
    """Return the head of a text and what stands from a place in it on, from the beginning of the word there."""
    room = width - len(_DOTS)
    head = max(_LEAST_PART - 1, room // 3)
    rest = room - head
    word = differs
    while word > 0 and differs - word < rest // 2 and (text[word - 1].isalnum() or text[word - 1] == "_"):
        word -= 1
    if differs - word >= rest // 2:
        word = max(0, differs - 2)
    if len(text) - word <= rest:  # the tail holds it
        return text[:head] + _DOTS + text[len(text) - rest :]
    return text[:head] + _DOTS + _head(text[max(head, word) :], rest)
