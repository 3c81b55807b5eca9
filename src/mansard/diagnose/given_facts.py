"""What no recording tells and somebody knows: padding, experts, offloading, clocks and memory, from a file or a mapping.

    {"workload": {"phase": "training", "tokens": 8192, "real_tokens": 6100},
     "experts": {"tokens_by_rank": [9000, 3000, 2000, 2000]},
     "offload": {"bytes_each": "9.4 MB"}}

Every key is a field of a record of `diagnose.facts`. An amount is a plain number in the SI base unit of its key, or text with a
unit. Fields that the recording tells may be left out; what is given is preferred to what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mansard.core import Area, Ceilings, Demand, Unknown
from mansard.core.ceilings import Kind
from mansard.core.document import parse_json
from mansard.core.errors import InputError, UsageError
from mansard.core.intervals import difference, intersection, merge
from mansard.core.units import positive_amount
from mansard.diagnose.facts import ClockFacts, ExpertFacts, Facts, MemoryUse, OffloadFacts, WorkloadFacts
from mansard.trace.run import RunTrace

T = TypeVar("T")
_SECTIONS: Mapping[str, type] = {
    "workload": WorkloadFacts, "experts": ExpertFacts, "offload": OffloadFacts, "clock": ClockFacts, "memory": MemoryUse,
}  # fmt: skip
_WORDS = ("phase", "cache_dtype", "reason")
_PHASES = ("training", "prefill", "decode")
_DIMENSIONS = (
    ("_bytes_per_s", "bytes_per_s"),
    ("_hz", "hz"),
    ("_s", "s"),
    ("bytes_each", "bytes"),
    ("_bytes", "bytes"),
)
_HINT = 'such as {"workload": {"tokens": 8192, "real_tokens": 6100}}; docs/rules.md names the keys'
#: Two sizes that differ by less are those of one piece: sizes in text are rounded.
_SAME_SIZE = 0.005
_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFacts:
    """Facts by section, each with the fields that were given.

    Args:
        workload, experts, offload, clock, memory: Fields of `WorkloadFacts`, `ExpertFacts`, `OffloadFacts`, `ClockFacts`, `MemoryUse`.
    """

    workload: Mapping[str, Any] = field(default_factory=dict)
    experts: Mapping[str, Any] = field(default_factory=dict)
    offload: Mapping[str, Any] = field(default_factory=dict)
    clock: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))


def read_facts(given: Mapping[str, Any] | str | Path) -> GivenFacts:
    """Return facts of a mapping or a JSON file.

    Raises:
        InputError: The file cannot be read.
        UsageError: A section or a key that there is none of, or a value that cannot be read.

    >>> read_facts({"offload": {"bytes_each": "9.4 MB"}}).offload
    {'bytes_each': 9400000.0}
    """
    if isinstance(given, Mapping):
        where, content = "facts", given
    else:
        where = str(given)
        try:
            content = parse_json(Path(given).read_text(encoding="utf-8"), where)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the facts in {where}: {error}", hint=_HINT) from None
    if not isinstance(content, Mapping):
        raise UsageError(f"{where} holds no sections of facts", hint=_HINT)
    unknown = sorted(set(content) - set(_SECTIONS) - {"schema"})
    if unknown:
        raise UsageError(f"{where}: no facts are called {', '.join(unknown)}", hint="one of " + ", ".join(_SECTIONS))
    return GivenFacts(**{name: _section(where, name, content[name]) for name in _SECTIONS if name in content})


def _section(where: str, name: str, content: Any) -> dict[str, Any]:
    known = {f.name for f in fields(_SECTIONS[name])}
    if not isinstance(content, Mapping) or (set(content) - known):
        wrong = ", ".join(sorted(set(content) - known)) if isinstance(content, Mapping) else repr(content)
        raise UsageError(f"{where}: {name} has no {wrong}", hint="one of " + ", ".join(sorted(known)))
    return {key: _value(f"{where}: {name}.{key}", key, value) for key, value in content.items()}


def _value(where: str, key: str, value: Any) -> Any:
    """Return one value: a word, true or false, a list of counts, or an amount."""
    if key in _WORDS:
        if not isinstance(value, str) or (key == "phase" and value not in _PHASES):
            raise UsageError(
                f"{where} is {value!r}", hint="one of " + ", ".join(_PHASES) if key == "phase" else "a text"
            )
        return value
    if key == "causal":
        if not isinstance(value, bool):
            raise UsageError(f"{where} is {value!r}, expected true or false")
        return value
    if key == "tokens_by_rank":
        if not isinstance(value, list | tuple) or len(value) < 2 or not all(_counts(v) for v in value):
            raise UsageError(f"{where} is {value!r:.60}, expected the tokens of each rank, two or more")
        return tuple(float(v) for v in value)
    dimension = next((d for end, d in _DIMENSIONS if key.endswith(end)), None)
    if dimension is not None and isinstance(value, str | int | float) and not isinstance(value, bool):
        return positive_amount(value, dimension, where)
    if not _counts(value):
        raise UsageError(f"{where} is {value!r}, expected a number from 0 on")
    return value


def _counts(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def with_given(facts: Facts, given: GivenFacts, run: RunTrace, ceilings: Ceilings, *, rank: int | None) -> Facts:
    """Return the facts of a run with what was given.

    Args:
        facts: What the recording tells.
        given: What was given.
        run: The run.
        ceilings: Its machine, for the link that pieces come over.
        rank: Its rank, where the file states it.

    Raises:
        UsageError: Something is missing that the recording does not tell either.
    """
    if given.workload:
        facts = replace(facts, workload=replace(facts.workload, **given.workload))
    if given.memory:
        facts = replace(facts, memory=replace(facts.memory, **given.memory))
    if given.clock:
        facts = replace(facts, clock=_made(ClockFacts, "clock", given.clock))
    if given.experts:
        told = {"rank": rank} if rank is not None else {}
        experts = _made(ExpertFacts, "experts", {**told, **given.experts})
        if not 0 <= experts.rank < len(experts.tokens_by_rank):
            raise UsageError(f"experts: rank {experts.rank} is none of {len(experts.tokens_by_rank)} ranks")
        facts = replace(facts, experts=experts)
    if given.offload:
        told = _fetched(given.offload.get("bytes_each"), run, ceilings)
        facts = replace(facts, offload=_made(OffloadFacts, "offload", {**told, **given.offload}))
    return facts


def _made(make: Callable[..., T], name: str, content: Mapping[str, Any]) -> T:
    try:
        return make(**content)
    except TypeError:
        needed = [f.name for f in fields(_SECTIONS[name]) if f.name not in content]
        raise UsageError(
            f"{name}: what is given and what the recording tells is not enough", hint="add " + ", ".join(needed)
        ) from None


def _fetched(bytes_each: float | None, run: RunTrace, ceilings: Ceilings) -> dict[str, Any]:
    """Return what a recording tells of pieces of a size that come from the host: how many, how fast, and the wait for them."""
    if bytes_each is None or not run.steps.count:
        return {}
    link = ""
    mine = np.zeros(len(run.operators) + 1, dtype=np.bool_)
    for index, operator in enumerate(run.operators):
        demand = operator.demand
        if operator.name != "copy host to device" or isinstance(demand, Unknown) or not isinstance(demand, Demand):
            continue
        link, size = next(((n, float(b)) for n, b in demand.link_bytes.items()), ("", 0.0))
        mine[index] = abs(size - bytes_each) <= _SAME_SIZE * bytes_each
    steps = merge(run.steps.start_ns, run.steps.end_ns)
    fetching = mine[run.op] & (steps.covered_ns(run.start_ns, run.start_ns + 1) > 0)
    if not fetching.any():
        return {}
    under_way = merge(run.start_ns[fetching], run.end_ns[fetching])
    others = merge(run.start_ns[~mine[run.op]], run.end_ns[~mine[run.op]])
    length = float((run.end_ns - run.start_ns)[fetching].sum())
    told: dict[str, Any] = {
        "pieces": float(np.count_nonzero(fetching)) / run.steps.count,
        "rate_bytes_per_s": bytes_each * float(np.count_nonzero(fetching)) / (under_way.length_ns * _S),
        "exposed_s": intersection(difference(under_way, others), steps).length_ns * _S / run.steps.count,
        "in_flight": length / under_way.length_ns,
    }
    for ceiling in ceilings.find(scope="device", area=Area.HOST):
        if ceiling.resource.link == link:
            key = "ceiling_bytes_per_s" if ceiling.kind is Kind.MEASURED else "declared_bytes_per_s"
            told.setdefault(key, ceiling.value)
    return told
