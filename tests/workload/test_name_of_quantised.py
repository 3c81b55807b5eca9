"""A name that speaks of narrow weights where the configuration states none is said aloud, not followed in silence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mansard.predict.estimate import Request, estimate
from mansard.workload.model.load import load_model
from mansard.workload.storage import storage_of


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("Llama-3.1-70B-Instruct-FP8", "FP8"),
        ("x-NVFP4", "NVFP4"),
        ("m-W4A16-G128", "W4A16"),
        ("m_awq", "awq"),
        ("m-4bit", "4bit"),
    ],
)
def test_a_name_of_narrow_weights_without_a_scheme_is_noted(name, word):
    model = replace(load_model("llama-3.1-8b"), name=name)
    (note,) = storage_of(model, dtype="bf16", weights=None).assumed
    assert note.startswith(
        f"the name says {word!r}, but the configuration states no quantisation: every weight in bf16"
    )
    # The figure itself stays what the configuration says: 8,030,261,248 parameters of 2 bytes.
    found = estimate(model, Request(phase="decode", context=4096))
    assert found.memory.weight_bytes == 2 * 8_030_261_248
    assert note in found.assumed


@pytest.mark.parametrize("name", ["llama-3.1-8b", "Fp80", "abfp8x", "a8b-w4"])
def test_other_names_say_nothing(name):
    assert storage_of(replace(load_model("llama-3.1-8b"), name=name), dtype="bf16", weights=None).assumed == ()


def test_a_type_that_was_asked_for_needs_no_note():
    model = replace(load_model("llama-3.1-8b"), name="x-FP8")
    assert not any("the name says" in n for n in storage_of(model, dtype="bf16", weights="fp8").assumed)
