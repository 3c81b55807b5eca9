"""Which recorded program an executed operation belongs to, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from mansard.core import InputError, Unknown
from mansard.trace.hlo.cost import InstructionCost, ModuleCosts
from mansard.trace.hlo.text import parse_module


class Programs:
    """The programs of a recording, by module name.

    Args:
        entries: (module name, program ids, costs) of each distinct program; no ids means that they are not recorded.
    """

    def __init__(self, entries: Iterable[tuple[str, frozenset[int], ModuleCosts]]) -> None:
        self._by_name: dict[str, list[tuple[frozenset[int], ModuleCosts]]] = {}
        for name, ids, costs in entries:
            self._by_name.setdefault(name, []).append((ids, costs))

    def candidates(self, module: str, program_id: int, ops: frozenset[str]) -> list[ModuleCosts]:
        """Programs that can have run: right name, right number where it tells, and every executed operation in them.

        Args:
            module: Module name; empty where the profile does not say.
            program_id: Number in the profile, -1 if it has none.
            ops: Names of all operations that ran in it.
        """
        named = self._by_name.get(module, []) if module else [p for ps in self._by_name.values() for p in ps]
        numbered = [p for p in named if program_id in p[0]]
        return [costs for _, costs in (numbered or named) if ops <= costs.names]

    def cost(self, candidates: list[ModuleCosts], op: str, module: str) -> InstructionCost | Unknown:
        """The cost of an operation, where all candidates agree on it."""
        if not candidates and not module:
            return Unknown(
                f"{op!r} ran on the device without a word of its operation", ("a profile that links kernels",)
            )
        if not candidates:
            return Unknown(f"the text of the program {module!r} was not recorded", ("record the program again",))
        costs = [c.of(op) for c in candidates]
        if all(c.demand == costs[0].demand and c.control == costs[0].control for c in costs):
            return costs[0]
        return Unknown(
            f"{len(costs)} programs are called {module!r} and differ in {op!r}", ("program numbers in the profile",)
        )


def load_programs(directory: Path, index: str, known: dict[str, ModuleCosts]) -> tuple[Programs, list[str]]:
    """Read the programs of one recorded window.

    Args:
        directory: Where the index and the texts are.
        index: File name of the index.
        known: Programs read before, by file name; added to.

    Returns:
        The programs, and a sentence for each that could not be read.
    """
    problems: list[str] = []
    entries = []
    try:
        listed: list[Mapping[str, object]] = json.loads((directory / index).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        return Programs(()), [f"The programs that ran are not on record: {error}."]
    for entry in listed:
        file = str(entry["file"])
        try:
            if file not in known:
                known[file] = ModuleCosts(parse_module((directory / file).read_text(encoding="utf-8")))
        except (InputError, OSError) as error:
            problems.append(f"The program {entry['name']} could not be read: {error}.")
            continue
        ids = entry["program_ids"]
        numbers = frozenset(int(n) for n in ids) if isinstance(ids, list) else frozenset()
        entries.append((str(entry["name"]), numbers, known[file]))
    return Programs(entries), problems
