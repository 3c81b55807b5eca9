"""A parser of optimised HLO text, as `HloModule::ToString` of XLA prints it.

Everything is kept as text until it is asked for: attributes are split at the top level, with braces, brackets,
parentheses and quotes balanced, so that an attribute this reader has never seen does no harm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mansard.core import InputError
from mansard.trace.hlo.shapes import Shape, scan_shape

_OPEN = {"(": ")", "{": "}", "[": "]"}
_CLOSE = set(_OPEN.values())
_HEADER = re.compile(r"^(ENTRY\s+)?%?([^\s(]+)\s*(?=\(|\{)")
_RESULT = re.compile(r"^\s*(ROOT\s+)?%?([^\s=]+)\s*=\s*")
_NAME = re.compile(r"%([^\s,()}{]+)")
_COMMENT = re.compile(r"/\*.*?\*/")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_CALLS = ("calls", "to_apply", "body", "condition", "branch_computations", "called_computations", "true_computation",
          "false_computation", "select", "scatter")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One HLO instruction.

    Args:
        name: Name without the percent sign, unique in its module.
        opcode: Such as `dot`, `fusion`, `custom-call`.
        shape: Its result.
        operands: Names of its operands; for a parameter or constant none.
        argument: Text between the parentheses (the number of a parameter, the value of a constant).
        attributes: Attribute texts by name, unparsed.
        root: Whether it is the result of its computation.
    """

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...]
    argument: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    root: bool = False

    def ints(self, name: str) -> tuple[int, ...]:
        """The integers of an attribute such as `dimensions={0,1}`; empty if it is absent."""
        return tuple(int(x) for x in re.findall(r"-?\d+", self.attributes.get(name, "")))

    @property
    def called(self) -> dict[str, tuple[str, ...]]:
        """Names of the computations it calls, by attribute."""
        found = {}
        for key in _CALLS:
            value = self.attributes.get(key)
            if value is not None and "%" in value:
                found[key] = tuple(_NAME.findall(value))
        return found

    @property
    def op_name(self) -> str:
        """Framework name such as `jit(step)/transpose(jvp())/dot_general`; empty if not recorded."""
        match = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes.get("metadata", ""))
        return match.group(1) if match else ""

    @property
    def stack_frame(self) -> int | None:
        """Number of its row in the module's stack frame table."""
        match = re.search(r"stack_frame_id=(\d+)", self.attributes.get("metadata", ""))
        return int(match.group(1)) if match else None

    @property
    def source(self) -> str:
        """`file:line` where the metadata holds it itself; see `Module.location` for the table form."""
        metadata = self.attributes.get("metadata", "")
        file, line = re.search(r'source_file="([^"]*)"', metadata), re.search(r"source_line=(\d+)", metadata)
        return f"{file.group(1)}:{line.group(1)}" if file and line else (file.group(1) if file else "")

    @property
    def backend_config(self) -> dict[str, Any]:
        """The backend configuration where it is JSON, else empty."""
        text = self.attributes.get("backend_config", "").strip()
        if text.startswith('"'):
            text = text[1:-1].replace('\\"', '"')
        try:
            value = json.loads(text) if text else {}
        except json.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def target(self) -> str:
        """`custom_call_target`; empty if it is no custom call."""
        match = _QUOTED.match(self.attributes.get("custom_call_target", ""))
        return match.group(1) if match else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """A named list of instructions; an operand is always defined before its use."""

    name: str
    instructions: Mapping[str, Instruction]
    entry: bool = False

    @property
    def root(self) -> Instruction:
        """The instruction whose value is the result."""
        for instruction in self.instructions.values():
            if instruction.root:
                return instruction
        return list(self.instructions.values())[-1]

    @property
    def parameters(self) -> dict[int, Instruction]:
        """Its parameters by number."""
        return {int(i.argument): i for i in self.instructions.values() if i.opcode == "parameter"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A compiled program.

    Args:
        name: Module name, such as `jit_step`.
        computations: By name.
        entry: Name of the entry computation.
        header: Attribute texts of the first line, such as `input_output_alias`.
        frames: Source frames by number: (file, function, line, number of the caller's frame).
    """

    name: str
    computations: Mapping[str, Computation]
    entry: str
    header: Mapping[str, str] = field(default_factory=dict)
    frames: Mapping[int, tuple[str, str, int, int]] = field(default_factory=dict)

    def frames_of(self, instruction: Instruction) -> list[tuple[str, str, int]]:
        """Source frames of an instruction (file, function, line), the innermost first."""
        out, seen, at = [], set(), instruction.stack_frame
        while at is not None and at in self.frames and at not in seen:
            seen.add(at)
            file, function, line, parent = self.frames[at]
            out.append((file, function, line))
            at = parent
        return out

    def location(self, instruction: Instruction) -> str:
        """`file:line` of an instruction; empty if not recorded."""
        frames = self.frames_of(instruction)
        return f"{frames[0][0]}:{frames[0][2]}" if frames else instruction.source


def parse_module(text: str) -> Module:
    """Return the module that `text` holds.

    Raises:
        InputError: not HLO text, or a line that cannot be read; the line number is named.

    >>> m = parse_module("HloModule m\\n\\nENTRY %main (p: f32[2]) -> f32[2] {\\n  %p = f32[2]{0} parameter(0)\\n"
    ...                  "  ROOT %n = f32[2]{0} negate(%p)\\n}\\n")
    >>> m.computations[m.entry].root.opcode
    'negate'
    """
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.strip()), None)
    if first is None or not lines[first].startswith("HloModule"):
        got = lines[first][:60] if first is not None else ""
        raise InputError(f"not HLO text: it starts with {got!r}, expected 'HloModule'", code="hlo_syntax")
    pieces = list(_split(lines[first][len("HloModule") :]))
    header = _attributes(pieces[1:])
    computations: dict[str, Computation] = {}
    entry = ""
    tables: dict[str, list[str]] = {}
    at = first + 1
    while at < len(lines):
        line = lines[at].rstrip()
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            at, tables[line] = _table(lines, at + 1)
        elif line and not line[0].isspace() and line.endswith("{"):
            computation, at = _computation(lines, at)
            computations[computation.name] = computation
            entry = computation.name if computation.entry else entry
        else:
            at += 1
    if not computations:
        raise InputError("the HLO text holds no computation", hint="it may be cut off", code="hlo_syntax")
    if not entry:
        entry = next(reversed(computations))
    name = pieces[0].strip().split()[0] if pieces[0].strip() else ""
    return Module(name=name, computations=computations, entry=entry, header=header, frames=_frames(tables))


def _table(lines: list[str], at: int) -> tuple[int, list[str]]:
    rows = []
    while at < len(lines) and lines[at].strip():
        rows.append(lines[at].strip())
        at += 1
    return at, rows


def _frames(tables: Mapping[str, list[str]]) -> dict[int, tuple[str, str, int, int]]:
    """Join the four tables of source positions; numbers start at 1, a frame that is its own parent is outermost."""

    def named(rows: list[str]) -> dict[int, str]:
        out = {}
        for row in rows:
            number, _, value = row.partition(" ")
            out[int(number)] = value.strip().strip('"')
        return out

    def numbered(rows: list[str]) -> dict[int, dict[str, int]]:
        return {
            int(row.split(" ", 1)[0]): {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", row)} for row in rows
        }  # fmt: skip

    files, functions = named(tables.get("FileNames", [])), named(tables.get("FunctionNames", []))
    places = numbered(tables.get("FileLocations", []))
    out = {}
    for number, row in numbered(tables.get("StackFrames", [])).items():
        place = places.get(row.get("file_location_id", 0), {})
        file = files.get(place.get("file_name_id", 0), "")
        function = functions.get(place.get("function_name_id", 0), "")
        # The printed parent is one above the frame's own number: a frame without a caller names itself.
        parent = row.get("parent_frame_id", 0)
        out[number] = (file, function, place.get("line", 0), parent - 1)
    return out


def _computation(lines: list[str], at: int) -> tuple[Computation, int]:
    match = _HEADER.match(lines[at])
    if match is None:
        raise InputError(
            f"line {at + 1} of the HLO text is no computation header: {lines[at][:80]!r}", code="hlo_syntax"
        )
    instructions: dict[str, Instruction] = {}
    entry = match.group(1) is not None
    name = match.group(2)
    at += 1
    while at < len(lines) and not lines[at].startswith("}"):
        if lines[at].strip():
            try:
                instruction = _instruction(lines[at])
            except (ValueError, IndexError, InputError) as error:
                raise InputError(
                    f"line {at + 1} of the HLO text: {error}: {lines[at][:100]!r}", code="hlo_syntax"
                ) from None
            instructions[instruction.name] = instruction
        at += 1
    if at >= len(lines):
        raise InputError(f"the HLO text ends inside computation {name!r}", hint="it may be cut off", code="hlo_syntax")
    if not instructions:
        raise InputError(f"computation {name!r} of the HLO text is empty", code="hlo_syntax")
    return Computation(name=name, instructions=instructions, entry=entry), at + 1


def _instruction(line: str) -> Instruction:
    match = _RESULT.match(line)
    if match is None:
        raise ValueError("no result name")
    shape, at = scan_shape(line, match.end())
    open_at = line.index("(", at)
    opcode = line[at:open_at].strip()
    close = _balanced(line, open_at)
    argument = line[open_at + 1 : close]
    attributes = _attributes(list(_split(line[close + 1 :].lstrip(", "))))
    operands = () if opcode in ("parameter", "constant") else tuple(_operands(argument))
    return Instruction(
        name=match.group(2), opcode=opcode, shape=shape, operands=operands, argument=argument.strip(),
        attributes=attributes, root=match.group(1) is not None,
    )  # fmt: skip


def _operands(argument: str) -> Iterator[str]:
    """Names of operands, with or without percent signs and shapes before them."""
    for piece in _split(_COMMENT.sub("", argument)):
        words = piece.split()
        if words:
            yield words[-1].lstrip("%")


def _attributes(pieces: list[str]) -> dict[str, str]:
    out = {}
    for piece in pieces:
        key, equals, value = piece.strip().partition("=")
        if key:
            out[key.strip()] = value.strip() if equals else ""
    return out


def _balanced(text: str, at: int) -> int:
    """Position of the bracket that closes the one at `at`."""
    depth, size = 0, len(text)
    while at < size:
        char = text[at]
        if char == '"':
            match = _QUOTED.match(text, at)
            at = match.end() if match else size
            continue
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise ValueError("a bracket is not closed")


def _split(text: str) -> Iterator[str]:
    """Split at commas outside of brackets and quotes."""
    depth, start, at, size = 0, 0, 0, len(text)
    while at < size:
        char = text[at]
        if char == '"':
            match = _QUOTED.match(text, at)
            at = match.end() if match else size
            continue
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
        at += 1
    if text[start:].strip():
        yield text[start:]
