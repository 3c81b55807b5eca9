"""Real configurations with keys deleted or spoiled: an error of ours or the same count, never a silent change, never a crash."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mansard.core.errors import MansardError
from mansard.workload.cache import CacheLayout, cache_layout
from mansard.workload.counts import count_params
from mansard.workload.model.load import load_model
from mansard.workload.records import Model
from mansard.workload.weights import weight_bytes

Path_ = tuple[str, ...]
NESTED = ("text_config", "vision_config", "quantization_config")


def keys(config: dict[str, Any], before: Path_ = ()) -> Iterator[Path_]:
    for key, value in config.items():
        yield (*before, key)
        if isinstance(value, dict) and key in NESTED:
            yield from keys(value, (*before, key))


def level(config: dict[str, Any], path: Path_) -> dict[str, Any] | None:
    for key in path[:-1]:
        config = config.get(key, {})
    return config if isinstance(config, dict) and path[-1] in config else None


def result(model: Model) -> tuple[object, ...]:
    """What must not change in silence: counts, active counts, MTP, and what the cache holds."""
    count = count_params(model)
    held = cache_layout(model, dtype="bf16")
    cached = (held.growing_bytes, held.windows, held.fixed_bytes) if isinstance(held, CacheLayout) else (held,)
    return count.total, count.active, count.matmul_active, count.mtp, *cached


def written(model: Model) -> set[str]:
    return {a.key for a in model.assumed} | {d.key for d in model.derived} | set(model.notes)


@cache
def configs(folder: Path) -> tuple[dict[str, Any], ...]:
    found = []
    for path in sorted(folder.glob("*_config.json")):
        config = json.loads(path.read_text())
        try:
            load_model(config)
        except MansardError:
            continue
        found.append(config)
    return tuple(found)


def test_each_deleted_key_is_an_error_or_is_accounted_for(shared: Path) -> None:
    """Delete every key of every real file, one at a time (2,262 deletions)."""
    outcomes = {"same": 0, "refused": 0, "written": 0}
    for config in configs(shared / "data/configs"):
        base = load_model(config)
        expected, before = result(base), written(base)
        for path in keys(config):
            changed = copy.deepcopy(config)
            holder = level(changed, path)
            assert holder is not None
            del holder[path[-1]]
            try:
                model = load_model(changed)
            except MansardError:
                outcomes["refused"] += 1
                continue
            if result(model) == expected:
                outcomes["same"] += 1
            else:
                assert written(model) - before, f"silent change without {'.'.join(path)}"
                outcomes["written"] += 1
    assert outcomes["refused"] > 400
    assert outcomes["written"] > 50


SPOILED = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.floats(allow_nan=True), st.text(max_size=6), st.just([]), st.just({}),
    st.lists(st.one_of(st.integers(0, 9), st.text(max_size=3)), max_size=4), st.just(10**30),
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_several_deleted_and_spoiled_keys_never_crash(shared: Path, data: st.DataObject) -> None:
    known = configs(shared / "data/configs")
    config = copy.deepcopy(data.draw(st.sampled_from(known)))
    for path in data.draw(st.lists(st.sampled_from(sorted(keys(config))), max_size=4)):
        holder = level(config, path)
        if holder is None:
            continue
        if data.draw(st.booleans()):
            del holder[path[-1]]
        else:
            holder[path[-1]] = data.draw(SPOILED)
    try:
        model = load_model(config)
        count = count_params(model)
        assert count.total >= count.active > 0
        assert sum(count.by_block.values()) == count.total
        weight_bytes(model)
        cache_layout(model)
    except MansardError:
        return


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_order_and_unrelated_keys_do_not_matter(shared: Path, data: st.DataObject) -> None:
    config = data.draw(st.sampled_from(configs(shared / "data/configs")))
    shuffled = dict(data.draw(st.permutations(sorted(config.items(), key=lambda item: item[0]))))
    shuffled["_comment"] = "unrelated"
    assert result(load_model(shuffled)) == result(load_model(config))


@pytest.mark.parametrize("text", ["null", "true", "1e999", '"llama"', "[]"])
def test_files_that_are_json_but_no_configuration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(MansardError):
        load_model(path)
