"""JSON Schema of configuration files, made from the registered benchmarks, for editors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mansard.core.dtypes import DTYPE_BYTES
from mansard.measure.config.common import COMMON, default_of
from mansard.measure.config.declared import ICI_KEYS
from mansard.measure.config.names import all_names, find_benchmark, known_words, meaning_of
from mansard.measure.config.presets import PRESETS
from mansard.measure.config.published import SPELLED, V1_OUTPUTS
from mansard.measure.config.written import V2_KEYS
from mansard.measure.points.benchmark import REQUIRED, Benchmark, Parameter

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES: dict[str, dict[str, Any]] = {
    "int": {"type": "number", "multipleOf": 1},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "str": {"type": ["string", "integer"]},
    "dtype": {"type": "string", "examples": sorted(DTYPE_BYTES)},
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration file: all that is accepted, with the meaning of each key.

    What a schema cannot say, such as a range that never ends, is checked when the file is read.
    """
    kinds = _kinds()
    v1_names = sorted(name for names, _ in kinds.values() for name in names)
    return {
        "$schema": DIALECT,
        "title": "Mansard microbenchmarks",
        "type": "object",
        "additionalProperties": False,
        "required": ["benchmarks"],
        "properties": {
            "global": _global(kinds),
            "hardware": _hardware(),
            "op_flags": {"type": "string", "description": "environments by benchmark, as the suite's op_flags.yaml"},
            "benchmarks": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "if": {"required": ["benchmark_name"]},
                    "then": {"allOf": [_v1_entry(v1_names), *(_v1_choice(k, *v) for k, v in kinds.items())]},
                    "else": {"allOf": [_v2_entry(v1_names), *(_v2_choice(k, *v) for k, v in kinds.items())]},
                },
            },
        },
        "$defs": {
            "axis": {
                "anyOf": [
                    {"type": ["number", "string", "boolean", "null"]},
                    {"type": "array", "minItems": 1},
                    {"$ref": "#/$defs/range"},
                ]
            },
            "range": _range(),
            "common": {
                "properties": {
                    w: _or_same(of_parameter(p)) for p in COMMON for w in (p.name, *p.aliases) if p.name != "impl"
                }
            },
            **{key: {"properties": _own(words)} for key, (_, words) in kinds.items()},
        },
    }


Words = dict[str, dict[str, Any]]


def _kinds() -> dict[str, tuple[tuple[str, ...], Words]]:
    """Return the names that take the same parameters, with these; the key is the first of them."""
    by_words: dict[str, tuple[list[str], Words]] = {}
    for name in dict.fromkeys([*all_names(), *SPELLED]):
        words = _words_of(name)
        by_words.setdefault(json.dumps(words, sort_keys=True), ([], words))[0].append(name)
    return {names[0]: (tuple(names), words) for names, words in by_words.values()}


def _own(words: Words) -> Words:
    """Return the words that are not those of every benchmark."""
    return {word: _or_same(schema) for word, schema in words.items() if word == "impl" or word not in _common()}


def _common() -> set[str]:
    return {w for p in COMMON for w in (p.name, *p.aliases)} - {"dtype", "impl", "implementation"}


def _range() -> dict[str, Any]:
    number = {"type": "number"}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["start", "end"],
        "properties": {
            "start": number, "end": {**number, "description": "always the last value, once"},
            "multiplier": {**number, "exclusiveMinimum": 1}, "increase_by": {**number, "exclusiveMinimum": 0},
        },
        "oneOf": [{"required": ["multiplier"]}, {"required": ["increase_by"]}],
    }  # fmt: skip


def of_parameter(parameter: Parameter) -> dict[str, Any]:
    """Return the schema of one parameter."""
    out = dict(_TYPES[parameter.kind])
    if parameter.choices and parameter.kind != "dtype":
        out = {"enum": list(parameter.choices)}
    if parameter.minimum is not None:
        out["minimum"] = parameter.minimum
    if parameter.default is None:
        out = {"anyOf": [out, {"type": "null"}]}
    if parameter.text:
        out["description"] = parameter.text
    if parameter.default is not REQUIRED and parameter.default is not None:
        out["default"] = default_of(parameter)
    return out


def _words_of(name: str) -> dict[str, dict[str, Any]]:
    """Return the schema of every word that an entry of this name may give."""
    benchmark = find_benchmark(name, None)
    out: dict[str, dict[str, Any]] = {}
    for word in known_words(benchmark, name):
        out[word] = _meant(word, benchmark, name)
    for word in ("impl", "implementation"):
        names = {"enum": list(benchmark.implementations)} if benchmark is not None else {"type": "string"}
        # One, several as a list, or several as text with commas.
        out[word] = {
            "anyOf": [names, {"type": "array", "items": names, "minItems": 1}, {"type": "string", "pattern": ","}]
        }
    return out


def _meant(word: str, benchmark: Benchmark | None, name: str) -> dict[str, Any]:
    if benchmark is None:
        common = next((p for p in COMMON if word in (p.name, *p.aliases)), None)
        return of_parameter(common) if common is not None and word != "dtype" else {}
    meaning = meaning_of(word, benchmark, name)
    if meaning is None:
        return {}
    if meaning.parameter is None:
        return {"description": f"accepted without effect: {meaning.why}"}
    return of_parameter(meaning.parameter)


def _or_same(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "string", "pattern": "^SAME_AS_"}]}


def _v2_entry(names: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "$ref": "#/$defs/common",
        "required": ["name"],
        "properties": {
            "name": {"enum": names},
            "model": {
                "anyOf": [{"enum": list(PRESETS)}, {"type": "string", "pattern": "\\.json$"}],
                "description": "dimensions of a model, below what the entry says itself",
            },
            "csv_shapes": {"type": "string", "description": "CSV file or address: one row is one set of parameters"},
            "sweep": {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#/$defs/axis"}},
            "env": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
        },
    }


def _v2_choice(key: str, names: tuple[str, ...], words: Words) -> dict[str, Any]:
    allowed = sorted({*words, *_common()})
    return {
        "if": {"properties": {"name": {"enum": list(names)}}, "required": ["name"]},
        "then": {
            "$ref": f"#/$defs/{key}",
            "propertyNames": {"enum": [*V2_KEYS, *allowed]},
            "properties": {"sweep": {"propertyNames": {"enum": allowed}}},
        },
    }


def _v1_entry(names: list[str]) -> dict[str, Any]:
    by_name = {p.name: of_parameter(p) for p in COMMON}
    outputs = {key: {"type": "string", "description": f"accepted; {why}"} for key, why in V1_OUTPUTS.items()}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["benchmark_name"],
        "properties": {
            "benchmark_name": {"enum": names},
            "benchmark_params": {"type": "array", "items": {"type": "object"}},
            "benchmark_sweep_params": {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]},
            "num_runs": by_name["num_runs"],
            "warmup_tries": by_name["warmup_tries"],
            **outputs,
        },
    }


def _v1_choice(key: str, names: tuple[str, ...], words: Words) -> dict[str, Any]:
    allowed = sorted({*words, *_common()})
    swept = {
        "type": "object",
        "propertyNames": {"pattern": f"^({'|'.join(allowed)})(_range|_list)?$"},
        "additionalProperties": {"$ref": "#/$defs/axis"},
    }
    fixed = {"$ref": f"#/$defs/{key}", "propertyNames": {"enum": allowed}}
    return {
        "if": {"properties": {"benchmark_name": {"enum": list(names)}}, "required": ["benchmark_name"]},
        "then": {
            "properties": {
                "benchmark_params": {"items": fixed},
                "benchmark_sweep_params": {"if": {"type": "array"}, "then": {"items": swept}, "else": swept},
            }
        },
    }


def _global(kinds: Mapping[str, tuple[tuple[str, ...], Words]]) -> dict[str, Any]:
    allowed = sorted({word for _, words in kinds.values() for word in words} | _common() | {"dtype"})
    return {
        "type": "object",
        "$ref": "#/$defs/common",
        "propertyNames": {"enum": allowed},
        "description": "values merged into every entry, below what it says itself",
    }


def _hardware() -> dict[str, Any]:
    rate = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
    by_dtype = {"anyOf": [rate, {"type": "object", "additionalProperties": rate}]}
    pairs = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "array", "prefixItems": [{"type": "number"}, rate], "minItems": 2, "maxItems": 2},
    }
    properties: dict[str, Any] = {
        "tflops": {**by_dtype, "description": "declared dense peak [TFLOP/s], of the global dtype or by type"},
        "peak_tflops": {**by_dtype, "description": "the same as tflops"},
        "hbm_bw": {"anyOf": [rate, {"type": "object", "additionalProperties": rate}, pairs],
                   "description": "declared memory bandwidth [GB/s], or over the bytes of a transfer"},
        "ici": {"type": "object", "additionalProperties": False, "required": ["peak_bw_gbps"],
                "properties": {ICI_KEYS[0]: rate, ICI_KEYS[1]: {"type": "boolean"}},
                "description": "declared link bandwidth [GB/s]"},
    }  # fmt: skip
    return {"type": "object", "additionalProperties": False, "properties": properties,
            "description": "declared ceilings of one device"}  # fmt: skip
