"""`load_model`: a configuration file, a folder, a shipped name or a mapping becomes a `Model`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from mansard.core.dtypes import short_dtype
from mansard.core.errors import InputError, MansardError, UndecidedError, UsageError
from mansard.core.unknown import Unknown
from mansard.workload.model import registry
from mansard.workload.model.decoder import Parts
from mansard.workload.model.quant import read_quantisation
from mansard.workload.model.reader import Log, Reader
from mansard.workload.records import Model

QUANT_FILE = "hf_quant_config.json"


def shipped_models() -> tuple[str, ...]:
    """Return the names of the models that come with the program."""
    folder = resources.files("mansard") / "data" / "models"
    if not folder.is_dir():
        return ()
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", hint="check the path") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text, expected a model's config.json") from None
    try:
        value = json.loads(text)  # a published configuration may hold Infinity, such as a limit of a time step
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}", hint="expected a model's config.json") from None
    if not isinstance(value, dict):
        raise InputError(
            f"{path} holds a {type(value).__name__}, expected an object", hint="expected a model's config.json"
        )
    return value


def _sources(source: str | Path | Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None, str, str]:
    """Return configuration, separate quantisation file, name and place."""
    if isinstance(source, Mapping):
        name = source.get("_name_or_path")
        return source, None, name if isinstance(name, str) and name.strip("./") else "model", "dict"
    path = Path(source)
    if path.is_dir():
        config = path / "config.json"
        if not config.is_file():
            raise InputError(
                f"{path} holds no config.json", hint="name a folder with a config.json, or the file itself"
            )
        quant = path / QUANT_FILE
        return _read_json(config), _read_json(quant) if quant.is_file() else None, path.resolve().name, str(config)
    if path.is_file():
        stem = path.stem.removesuffix("_config")
        beside = path.with_name(QUANT_FILE) if path.name == "config.json" else path.with_name(f"{stem}_{QUANT_FILE}")
        name = path.resolve().parent.name if path.name == "config.json" else stem
        return _read_json(path), _read_json(beside) if beside.is_file() else None, name, str(path)
    text = str(source)
    if text in shipped_models():
        entry = resources.files("mansard") / "data" / "models" / f"{text}.json"
        return json.loads(entry.read_text(encoding="utf-8"))["config"], None, text, f"shipped:{text}"
    near = difflib.get_close_matches(text, shipped_models(), n=1)
    raise UsageError(
        f"no model {text!r}: not a file, not a folder, not a shipped name"
        + (f"; did you mean {near[0]!r}?" if near else ""),
        hint=f"shipped: {', '.join(shipped_models())}",
    )


def _family(config: Mapping[str, Any], where: str) -> tuple[str, str, str]:
    """Return family, class and `model_type`; an undeclared or unknown architecture is an error that says what is needed."""
    named = config.get("architectures")
    architecture = "undeclared"
    if isinstance(named, list | tuple) and named and isinstance(named[0], str):
        architecture = named[0]
    elif isinstance(config.get("_class_name"), str):
        architecture = str(config["_class_name"])
    declared = config.get("model_type")
    model_type = declared if isinstance(declared, str) else ""
    if registry.known(model_type):
        return model_type, architecture, model_type
    if architecture in registry.CLASSES:
        return registry.CLASSES[architecture], architecture, model_type
    if not model_type and architecture == "undeclared":
        return registry.UNDECLARED, architecture, "undeclared"
    raise UndecidedError(
        f"{where}: no rule for model_type {model_type!r} with class {architecture!r}",
        hint="supply a configuration of a known family, or the blocks of one layer; nothing is counted by analogy",
        code="unknown_architecture",
    )


def load_model(source: str | Path | Mapping[str, Any]) -> Model:
    """Return the model that a configuration describes.

    Args:
        source: A `config.json`, a folder that holds one (with `hf_quant_config.json` where there is one), a shipped name,
            or the parsed configuration.

    Raises:
        InputError: unreadable, or a key is missing or holds a value of the wrong kind; the key is named.
        UndecidedError: the architecture is not known; the hint says what is needed.
        UsageError: `source` names nothing.

    Assumes: nothing in silence. `Model.derived` says which values were computed from which keys, `Model.assumed` which came
    from a documented class default.

    >>> load_model("llama-3.1-8b").hidden
    4096
    """
    config, quant_file, name, where = _sources(source)
    family, architecture, model_type = _family(config, where)
    log = Log()
    reader = Reader(config, where, log)
    try:
        parts = registry.build(reader, architecture, family)
    except MansardError:
        raise
    except (OverflowError, ZeroDivisionError, RecursionError) as error:
        raise InputError(f"{where}: dimensions that cannot be: {error}") from None
    text_level = next((r for r in parts.readers if r.path.endswith("text_config")), reader)
    dtype = _dtype((reader, text_level))
    quantisation = read_quantisation(config, quant_file, where)
    limit = text_level.optional("max_position_embeddings") or reader.optional("max_position_embeddings")
    _close(reader, parts)
    return _model(name, architecture, model_type or family, where, parts, log, dtype, quantisation, limit)


def _dtype(levels: tuple[Reader, ...]) -> str | Unknown:
    for level in levels:
        stated = level.raw("dtype")
        if isinstance(stated, str) and stated != "auto":
            return short_dtype(stated)
    return Unknown("the configuration states no dtype", ("dtype",))


def _close(reader: Reader, parts: Parts) -> None:
    used = (
        "quantization_config",
        "quantization",
        "quant_config",
        "compression_config",
        "torch_dtype",
        "dtype",
        "text_config_dict",
        "vision_config_dict",
    )
    reader.close(used)
    for level in parts.readers:
        level.close(used)


def _model(
    name: str, architecture: str, model_type: str, where: str, parts: Parts, log: Log, dtype: str | Unknown,
    quantisation: Any, limit: int | None,
) -> Model:  # fmt: skip
    unknown_limit = Unknown("the configuration states no context limit", ("max_position_embeddings",))
    return Model(
        name=name, architecture=architecture, model_type=model_type, source=where, hidden=parts.text.hidden, vocab=parts.vocab,
        text=parts.text, head=parts.head, tied=parts.tied, towers=parts.towers, mtp=parts.mtp, mtp_heads=parts.mtp_heads,
        dtype=dtype, max_positions=unknown_limit if limit is None else limit, quantisation=quantisation,
        phase_gap=parts.phase_gap, state_dtype=None if parts.state_dtype is None else short_dtype(parts.state_dtype), derived=tuple(log.derived),
        assumed=tuple(log.assumed), unread=tuple(log.unread), notes=tuple(log.notes),
    )  # fmt: skip
