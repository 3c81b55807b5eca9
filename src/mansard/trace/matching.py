"""How the name of a range or a kernel that is asked for is compared with those of a profile."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from mansard.core.errors import UsageError

Match = Literal["auto", "exact", "contains", "startswith", "glob", "regex"]
MATCHES = ("auto", "exact", "contains", "startswith", "glob", "regex")
_SUFFIX = re.compile(r"(, (seq|op_id|sizes|trace_id|input_op_ids) = .*)$")
_WILD = re.compile(r"[*?\[]")


def base_name(name: str) -> str:
    """Return a range name without the numbers PyTorch adds to it.

    >>> base_name("aten::addmm, seq = 45339, op_id = 990761")
    'aten::addmm'
    """
    return _SUFFIX.sub("", name)


def matching(names: Sequence[str], used: Iterable[int], name: str, match: Match) -> list[int]:
    """Return which names of a table are meant.

    Args:
        names: The table.
        used: Indices of the names that come into question.
        name: What to look for.
        match: `exact`, `contains`, `startswith`, `glob` or `regex`; `auto` takes the exact name, else the name without PyTorch's
            numbers, else a glob where it has `*`, `?` or `[`.

    Raises:
        UsageError: Not a way to compare, or no regular expression.
    """
    used = list(used)
    if match not in MATCHES:
        raise UsageError(f"unknown way to match {match!r}", hint=f"one of {', '.join(MATCHES)}")
    if match == "contains":
        return [i for i in used if name in names[i]]
    if match == "startswith":
        return [i for i in used if names[i].startswith(name)]
    if match == "glob":
        return [i for i in used if fnmatch.fnmatchcase(names[i], name)]
    if match == "regex":
        try:
            wanted = re.compile(name)
        except re.error as error:
            raise UsageError(f"{name!r} is no regular expression: {error}") from None
        return [i for i in used if wanted.search(names[i])]
    exact = [i for i in used if names[i] == name]
    if exact or match == "exact":
        return exact
    based = [i for i in used if base_name(names[i]) == name]
    return based or [i for i in used if _WILD.search(name) and fnmatch.fnmatchcase(names[i], name)]


def kernels_matching(names: Sequence[str], used: Iterable[int], name: str, match: Match) -> list[int]:
    """Return which kernel names are meant; `auto` also takes a part of a name, since nobody types all of it.

    Args:
        names, used, name, match: As in `matching`.

    >>> kernels_matching(["void flash::fwd<1>(int)", "gemm"], [0, 1], "flash", "auto")
    [0]
    """
    used = list(used)
    found = matching(names, used, name, match)
    return matching(names, used, name, "contains") if match == "auto" and not found else found
