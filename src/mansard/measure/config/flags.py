"""Environment variables that a benchmark needs before its runtime starts, in the form of the suite's `op_flags.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mansard.measure.config.yamlfile import Value, config_error, read_yaml, shown, table_of, unknown_name

#: A list of flags goes into this variable, as the suite does it.
FLAGS_VARIABLE = "LIBTPU_INIT_ARGS"
#: Variables whose flags are added to what is there; of any other the last one counts.
ADDED_TO = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")
KEYS = ("flags", "env")

Environment = Mapping[str, str]


def read_op_flags(path: Path) -> dict[str, dict[str, str]]:
    """Return the environment of each benchmark of an `op_flags.yaml`.

    An entry is a list of flags for libtpu, or a table with `flags` and `env`.

    Raises:
        InputError: the file cannot be read.
        UsageError: an entry of another form.
    """
    document = table_of(read_yaml(path), str(path))
    # Anchors that only hold a list for others carry names like `gemm_flags`; they do no harm as entries.
    return {name: environment_of(value, name) for name, value in document.items()}


def environment_of(value: Value, name: str) -> dict[str, str]:
    """Return the environment of one entry.

    Raises:
        UsageError: it is neither a list of flags nor a table of `flags` and `env`.
    """
    if value.is_list:
        return {FLAGS_VARIABLE: _joined(value, name)}
    entries = table_of(value, f"the entry of {name}")
    for key, item in entries.items():
        if key not in KEYS:
            raise unknown_name(item.at, "key", key, KEYS, within=name)
    out: dict[str, str] = {}
    if "flags" in entries:
        out[FLAGS_VARIABLE] = _joined(entries["flags"], name)
    if "env" in entries:
        out = merged(out, variables(entries["env"]))
    return out


def variables(value: Value) -> dict[str, str]:
    """Return the variables of an `env` table; numbers become text.

    Raises:
        UsageError: a name that is none, or a value that is a table, a list or nothing.
    """
    out: dict[str, str] = {}
    for name, item in table_of(value, "env").items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise config_error(item.at, f"{name!r} is no name of an environment variable")
        if item.data is None or item.is_table or item.is_list:
            raise config_error(item.at, f"{name} must be text, got {shown(item)}")
        out[name] = str(item.data).lower() if isinstance(item.data, bool) else str(item.data)
    return out


def merged(*parts: Environment) -> dict[str, str]:
    """Return environments in one, the later one before the earlier; flags are added up.

    >>> merged({"XLA_FLAGS": "--a", "X": "1"}, {"XLA_FLAGS": "--b", "X": "2"})
    {'XLA_FLAGS': '--a --b', 'X': '2'}
    """
    out: dict[str, str] = {}
    for part in parts:
        for name, text in part.items():
            held = out.get(name)
            if held and name in ADDED_TO:
                new = [word for word in text.split() if word not in held.split()]
                out[name] = " ".join([held, *new])
            else:
                out[name] = text
    return out


def flags_for(names: Sequence[str], table: Mapping[str, Environment]) -> dict[str, str]:
    """Return the environment of the first of `names` that the table has: as written, registered, then its aliases."""
    return next((dict(table[name]) for name in names if name in table), {})


def _joined(value: Value, name: str) -> str:
    if not value.is_list:
        raise config_error(value.at, f"the flags of {name} must be a list, got {shown(value)}")
    words = []
    for item in value.data:
        if not isinstance(item.data, str) or not item.data.startswith("-"):
            raise config_error(item.at, f"a flag of {name} must be text such as --xla_flag=true, got {shown(item)}")
        words.append(item.data)
    return " ".join(words)
