from __future__ import annotations

import pytest

from mansard.core.errors import UsageError
from mansard.history.fingerprint import COMPONENTS, differences, fingerprint_of, labels_of


def test_what_a_document_says_in_its_own_words_is_the_same_component() -> None:
    a = fingerprint_of({"gpu": "H100", "num_gpus": 8, "versions": {"torch": "2.13.0"}})
    b = fingerprint_of({"device_name": "H100", "device_count": 8.0, "torch": "2.13.0"})
    assert differences(a, b) == ()


@pytest.mark.parametrize(
    ("key", "component", "forbids"),
    [
        ("gpu", "device", True), ("gpus", "device_count", True), ("topology", "topology", True), ("governor", "clock_policy", True),
        ("region", "region", True), ("zone", "zone", True), ("dtype", "dtype", True), ("shapes", "shapes", True),
        ("dataset", "data", True), ("config_hash", "config", True), ("driver_version", "driver", False), ("torch", "framework", False),
        ("cuda", "runtime", False), ("container_image", "image", False), ("commit", "revision", False),
    ],
)  # fmt: skip
def test_each_component_is_seen_and_conditions_forbid(key: str, component: str, forbids: bool) -> None:
    found = differences(fingerprint_of({key: "a"}), fingerprint_of({key: "b"}))
    assert [(d.component, d.forbids, d.baseline, d.candidate) for d in found] == [(component, forbids, "a", "b")]


def test_the_table_above_has_every_component() -> None:
    assert len(COMPONENTS) == 15


def test_what_one_side_does_not_tell_is_listed_and_forbids_nothing() -> None:
    (found,) = differences(fingerprint_of({}), fingerprint_of({"gpu": "H100"}))
    assert (found.component, found.forbids, found.text) == ("device", False, "device: not told -> H100")


def test_allow_and_require_turn_the_classes_round() -> None:
    a, b = fingerprint_of({"zone": "a", "driver": "1"}), fingerprint_of({"zone": "b", "driver": "2"})
    assert [(d.component, d.forbids) for d in differences(a, b, allow=["zone"])] == [("zone", False), ("driver", False)]
    assert [d.forbids for d in differences(a, b, require=["driver"])] == [True, True]
    with pytest.raises(UsageError, match="unknown component 'colour'"):
        differences(a, b, allow=["colour"])


def test_labels_need_a_component_and_a_value() -> None:
    assert labels_of(["image=ghcr:1", "zone=b"]) == {"image": {"image": "ghcr:1"}, "zone": {"zone": "b"}}
    for wrong in ("zone", "zone=", "colour=red"):
        with pytest.raises(UsageError):
            labels_of([wrong])


def test_an_unknown_figure_is_no_value_of_a_fingerprint() -> None:
    assert fingerprint_of({"gpu": {"unknown": "no driver", "needs": []}, "zone": None}).parts == {}
