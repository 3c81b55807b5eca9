"""Documents with damage are one error that names the place, whatever the damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from mansard.core import Area, InputError, Resource
from mansard.core.ceilings import MemoryLevel, read_ceilings
from mansard.core.document import damage_in_words, damage_named, parse_json, read_document

ONE = (
    '{"schema": "ceilings/1", "ceilings": [{"resource": {"area": "memory", "level": %s}, "value": %s, "unit": "B/s",'
    ' "kind": "measured", "scope": "node"}], "levels": [%s], "environment": %s}'
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": NaN}', "NaN is no finite number"),
        ('{"a": -Infinity}', "-Infinity is no finite number"),
        ('{"a": 1e999}', "1e999 is no finite number"),
        ('{"a": ' + "9" * 400 + "}", "is no finite number"),  # no float holds it: every sum of it would overflow
        ("9" * 5000, "is no finite number"),  # more digits than Python reads as an int
        ("[" * 200_000, "nested too deeply"),
        ('{"a" 1}', "line 1, column 6"),
        ("", "line 1, column 1"),
    ],
)
def test_what_no_document_holds_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=r"x\.json is not valid JSON") as refused:
        parse_json(text, "x.json")
    assert said in refused.value.message
    assert len(refused.value.message) < 200


def test_a_version_in_another_script_is_no_version(tmp_path: Path) -> None:
    for version in ("²", "\u0661", "1" * 5000, ""):
        path = tmp_path / "a.json"
        path.write_text(f'{{"schema": "run/{version}"}}', encoding="utf-8")
        with pytest.raises(InputError, match="this version reads up to"):
            read_document(path, "run/1")


@pytest.mark.parametrize(
    ("level", "value", "levels", "environment"),
    [
        ('["dram"]', "1e9", "", "{}"),  # a list cannot be looked up: it broke the first question
        ('{"a": 1}', "1e9", "", "{}"),
        ('"dram"', "null", "", "{}"),
        ('"dram"', "-1", "", "{}"),
        ('"dram"', "1e9", '{"level": "dram", "capacity_bytes": null}', "{}"),
        ('"dram"', "1e9", '{"level": "dram", "capacity_bytes": 1e9, "instances": "2"}', "{}"),
        ('"dram"', "1e9", '{"level": 3, "capacity_bytes": 1e9}', "{}"),
        ('"dram"', "1e9", "7", "{}"),
        ('"dram"', "1e9", "", "[]"),
    ],
)
def test_damaged_ceilings_are_refused_when_read(
    tmp_path: Path, level: str, value: str, levels: str, environment: str
) -> None:
    path = tmp_path / "ceilings.json"
    path.write_text(ONE % ('"dram"', "1e9", "", "{}"))
    assert len(read_ceilings(path).ceilings) == 1
    path.write_text(ONE % (level, value, levels, environment))
    with pytest.raises(InputError, match="is a damaged ceilings document") as refused:
        read_ceilings(path)
    assert refused.value.hint


def test_a_level_that_holds_everything_is_a_level() -> None:
    assert MemoryLevel(level="hbm", capacity_bytes=float("inf")).capacity("node") == float("inf")
    with pytest.raises(ValueError, match="positive"):
        MemoryLevel(level="hbm", capacity_bytes=float("nan"))
    with pytest.raises(TypeError, match="expected a text"):
        Resource(area=Area.MEMORY, level=3)  # type: ignore[arg-type]


def test_damage_is_said_in_words() -> None:
    assert damage_in_words(KeyError("value")) == "it lacks the key 'value'"
    assert damage_in_words(IndexError("list index out of range")) == "a list in it is too short"
    with (
        pytest.raises(InputError, match=r"a\.json is damaged: it has a value that cannot be: bad") as refused,
        damage_named("a.json is damaged"),
    ):
        raise OverflowError("bad")
    assert refused.value.hint == "the file may be cut short"
    with pytest.raises(InputError, match="already said"), damage_named("x"):
        raise InputError("already said")
