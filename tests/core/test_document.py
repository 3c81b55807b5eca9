from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from mansard.core import Area, Ceiling, Ceilings, InputError, Kind, Resource, Unknown, median_interval
from mansard.core.ceilings import ceilings_from_json
from mansard.core.document import TOOL_VERSION, dumps, header, read_document, to_jsonable


def test_version_is_the_one_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["version"] == TOOL_VERSION


def test_header_comes_first_and_unknown_has_its_form() -> None:
    text = dumps({**header("run/1", {"host": "x"}), "mfu_ratio": Unknown("no peak", ("--peak",))})
    document = json.loads(text)
    assert list(document)[:4] == ["schema", "tool_version", "created", "environment"]
    assert document["mfu_ratio"] == {"unknown": "no peak", "needs": ["--peak"]}


def test_nan_is_never_written() -> None:
    with pytest.raises(ValueError, match="NaN"):
        to_jsonable({"a": float("nan")})


def test_ceilings_survive_a_round_trip(tmp_path: Path) -> None:
    ceiling = Ceiling(
        resource=Resource(area=Area.MEMORY, level="dram", mix="triad", page="huge", store="streaming"),
        value=80e9, unit="B/s", kind=Kind.MEASURED, ci95=(78e9, 82e9), conditions={"threads": 2}, source="test",
    )  # fmt: skip
    path = tmp_path / "ceilings.json"
    path.write_text(dumps({**header("ceilings/1", {}), "ceilings": [ceiling], "levels": []}))
    back = ceilings_from_json(read_document(path, "ceilings/1"))
    assert back == Ceilings(ceilings=(ceiling,))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a ceilings document"),
        ('{"schema": "run/1"}', "not a ceilings document"),
        ('{"schema": "ceilings/2"}', "reads up to"),
    ],
)
def test_bad_documents_give_one_clear_error(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(InputError, match=words):
        read_document(path, "ceilings/1")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_document(tmp_path / "none.json", "ceilings/1")


def test_median_interval_covers_the_median_of_the_population() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for trial in range(200):
        summary = median_interval(rng.lognormal(0.0, 0.2, size=31), resamples=500, seed=trial)
        hits += summary.low <= 1.0 <= summary.high
    assert 0.88 <= hits / 200 <= 1.0


def test_median_interval_refuses_nothing() -> None:
    with pytest.raises(ValueError, match="finite samples"):
        median_interval([])
