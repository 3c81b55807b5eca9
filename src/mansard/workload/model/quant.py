"""What a quantised checkpoint stores: methods, schemes and exclusions, from the configuration or a file beside it.

Each method is read by its own function. A method that is not known gives `Unknown`, so weight bytes are unknown too; it
is never taken for another method.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.workload.records import Quantisation, QuantRule, QuantScheme

KEYS = ("quantization_config", "quantization", "compression_config")
Read = Quantisation | Unknown


def read_quantisation(
    config: Mapping[str, Any], beside: Mapping[str, Any] | None, where: str
) -> Quantisation | Unknown | None:
    """Return what a checkpoint stores in other types than the model's, or None where nothing is quantised.

    Args:
        config: The whole configuration; nested text levels may hold the key too.
        beside: `hf_quant_config.json`, where there is one. It wins: it lists the exclusions of the checkpoint.
        where: For messages.
    """
    if isinstance(config.get("expert_dtype"), str) and config["expert_dtype"] not in ("fp8", "bf16"):
        return Unknown(
            f"expert_dtype {config['expert_dtype']!r} beside quantization_config: the layout of the experts' scales is not known here",
            ("elements per scale and bits of a scale of the experts",),
        )
    if beside is not None:
        inner = beside.get("quantization")
        if not isinstance(inner, Mapping):
            raise InputError(f"{where}: hf_quant_config.json has no object 'quantization'")
        return _modelopt(inner, "hf_quant_config.json")
    for level, path in ((config, ""), (config.get("text_config"), "text_config.")):
        if not isinstance(level, Mapping):
            continue
        for key in KEYS:
            value = level.get(key)
            if isinstance(value, Mapping) and value:
                made = _dispatch(value, f"{path}{key}", where)
                return replace(made, text_only=True) if path and isinstance(made, Quantisation) else made
    return None


def _dispatch(value: Mapping[str, Any], source: str, where: str) -> Read:
    method = value.get("quant_method")
    if method is None and "quant_algo" in value:
        method = "modelopt"
    if method is None and "bits" in value and source.endswith("quantization"):
        method = "mlx"
    reader = METHODS.get(str(method))
    if reader is None:
        return Unknown(
            f"{source} names the method {method!r}, whose storage is not known here",
            ("bits, group size, scales and excluded modules of the checkpoint",),
        )
    try:
        return reader(value, source)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"{where}: {source} cannot be read: {error}", hint="compare it with the checkpoint's config.json"
        ) from None


def _names(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"a list of modules, got {value!r}")
    return tuple(str(entry) for entry in value)


def _whole(value: Any, what: str, *, row: bool = False) -> int:
    """Return a positive whole number; with `row` also -1, which stands for a whole row."""
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and not (row and value == -1)):
        raise TypeError(f"{what} is {value!r}, expected a whole number of at least 1")
    return value


def _kv(value: Any) -> str | None:
    """Return the cache type a checkpoint prescribes."""
    if isinstance(value, str):
        return {"FP8": "f8_e4m3", "INT8": "i8", "NVFP4": "f4_e2m1"}.get(value.upper())
    if isinstance(value, Mapping) and value.get("num_bits") == 8:
        return "f8_e4m3" if value.get("type") == "float" else "i8"
    return None


def _fp8(value: Mapping[str, Any], source: str) -> Read:
    """FP8 with one fp32 scale per block (DeepSeek, Qwen), or per matrix where no block size is given."""
    size = value.get("weight_block_size")
    if size is None:
        scheme = QuantScheme(dtype="f8_e4m3", bits=8, tensor_bytes=4)
    else:
        rows, columns = (_whole(entry, "weight_block_size") for entry in size)
        scheme = QuantScheme(dtype="f8_e4m3", bits=8, block=(rows, columns), scale_bits=32)
    ignore = ("lm_head", *_names(value.get("modules_to_not_convert")), *_names(value.get("ignored_layers")))
    return Quantisation(
        method="fp8", rules=(QuantRule(scheme=scheme),), ignore=ignore, activation_dtype="f8_e4m3", source=source
    )


def _mxfp4(value: Mapping[str, Any], source: str) -> Read:
    """MXFP4 of gpt-oss: experts only, 32 elements share an 8-bit exponent (OCP Microscaling 1.0)."""
    scheme = QuantScheme(dtype="f4_e2m1", bits=4, group=32, scale_bits=8)
    ignore = _names(value.get("modules_to_not_convert"))
    return Quantisation(
        method="mxfp4", rules=(QuantRule(scheme=scheme, targets=("experts",)),), ignore=ignore, source=source
    )


def _modelopt_scheme(algo: Any, group: int | None) -> QuantScheme | None:
    """Return what ModelOpt stores for an algorithm; an NVFP4 scale is that of 16 elements by its definition.

    Source: NVIDIA ModelOpt export formats; OCP Microscaling 1.0 for the 32 elements of MXFP8.
    """
    if algo == "FP8":
        return QuantScheme(dtype="f8_e4m3", bits=8, tensor_bytes=8)
    if algo == "MXFP8":
        return QuantScheme(dtype="f8_e4m3", bits=8, group=group or 32, scale_bits=8)
    if algo in ("NVFP4", "NVFP4_AWQ"):
        return QuantScheme(dtype="f4_e2m1", bits=4, group=group or 16, scale_bits=8, tensor_bytes=8)
    if algo == "W4A16_NVFP4":  # activations stay as they are, so no scale of theirs is stored
        return QuantScheme(dtype="f4_e2m1", bits=4, group=group or 16, scale_bits=8, tensor_bytes=4)
    return None


def _mixed(value: Mapping[str, Any], source: str, ignore: tuple[str, ...], kv: str | None) -> Read:
    """ModelOpt with an algorithm per module, listed by name; one expert stands for all of its layer."""
    listed = value.get("quantized_layers")
    if not isinstance(listed, Mapping) or not listed:
        return Unknown(
            f"{source} names the algorithm MIXED_PRECISION and lists no quantized_layers", ("quantized_layers",)
        )
    found: dict[QuantScheme, list[str]] = {}
    for name, how in listed.items():
        if re.search(r"\.experts\.[1-9]", name):
            continue
        group = how.get("group_size")
        scheme = _modelopt_scheme(how.get("quant_algo"), None if group is None else _whole(group, "group_size"))
        if scheme is None:
            return Unknown(f"{source}: {name} has the algorithm {how.get('quant_algo')!r}", ("its storage",))
        found.setdefault(scheme, []).append(_ours(str(name)))
    rules = tuple(QuantRule(scheme=scheme, targets=tuple(names)) for scheme, names in found.items())
    return Quantisation(method="modelopt MIXED_PRECISION", rules=rules, ignore=ignore, kv_dtype=kv, source=source)


def _ours(name: str) -> str:
    """Return a module's name with the names of gated experts that Mixtral began."""
    for theirs, own in ((".w1", ".gate_proj"), (".w2", ".down_proj"), (".w3", ".up_proj")):
        if ".experts." in name and name.endswith(theirs):
            return name.removesuffix(theirs) + own
    return name


def _modelopt(value: Mapping[str, Any], source: str) -> Read:
    """NVIDIA ModelOpt: FP8 with one scale per matrix; NVFP4 with 8-bit scales per 16 elements and a global one."""
    algo = value.get("quant_algo")
    ignore = (*_names(value.get("exclude_modules")), *_names(value.get("ignore")))
    kv = _kv(value.get("kv_cache_quant_algo") or value.get("kv_cache_scheme"))
    if algo == "MIXED_PRECISION":
        return _mixed(value, source, ignore, kv)
    group = value.get("group_size")
    if group is None:
        groups = value.get("config_groups")
        inner = next(iter(groups.values()))["weights"] if isinstance(groups, Mapping) and groups else {}
        group = inner.get("group_size")
    scheme = _modelopt_scheme(algo, None if group is None else _whole(group, "group_size"))
    if scheme is None:
        return Unknown(
            f"{source} names the algorithm {algo!r}, whose storage is not known here", ("quant_algo FP8 or NVFP4",)
        )
    if "exclude_modules" not in value and "ignore" not in value:
        return Unknown(
            f"{source} does not say which modules keep the model's type", ("exclude_modules, empty if there are none",)
        )
    activation = None if algo == "W4A16_NVFP4" else scheme.dtype
    return Quantisation(
        method=f"modelopt {algo}", rules=(QuantRule(scheme=scheme),), ignore=ignore, activation_dtype=activation, kv_dtype=kv,
        source=source,
    )  # fmt: skip


def _compressed(value: Mapping[str, Any], source: str) -> Read:
    """compressed-tensors: groups of modules, each with bits, type and strategy; scales in the model's 16-bit type."""
    groups = value["config_groups"]
    packed = str(value.get("format", "")) == "pack-quantized"
    rules: list[QuantRule] = []
    activation: str | None = None
    for group in groups.values():
        weights = group.get("weights")
        if weights is None:
            continue
        rules.append(
            QuantRule(
                scheme=_compressed_scheme(weights, packed=packed), targets=_names(group.get("targets")) or ("Linear",)
            )
        )
        inputs = group.get("input_activations")
        if isinstance(inputs, Mapping):
            activation = _element(inputs)
    if not rules:
        return Unknown(f"{source} quantises no weights in a way known here", ("config_groups with weights",))
    return Quantisation(
        method="compressed-tensors", rules=tuple(rules), ignore=_names(value.get("ignore")), activation_dtype=activation,
        kv_dtype=_kv(value.get("kv_cache_scheme")), source=source,
    )  # fmt: skip


def _element(spec: Mapping[str, Any]) -> str:
    bits, kind = _whole(spec["num_bits"], "num_bits"), str(spec.get("type", "int"))
    names = {(4, "int"): "i4", (8, "int"): "i8", (8, "float"): "f8_e4m3", (4, "float"): "f4_e2m1"}
    if (bits, kind) not in names:
        raise ValueError(f"{bits}-bit {kind} weights are not known here")
    return names[bits, kind]


def _compressed_scheme(weights: Mapping[str, Any], *, packed: bool) -> QuantScheme:
    dtype, bits = _element(weights), _whole(weights["num_bits"], "num_bits")
    strategy = str(weights.get("strategy") or ("group" if weights.get("group_size") else "tensor"))
    # A packed matrix stores its own shape as two 64-bit numbers.
    shape_bytes = 16 if packed else 0
    zero = 0 if weights.get("symmetric", True) else bits
    if strategy in ("group", "tensor_group"):
        group = _whole(weights["group_size"], "group_size")
        if dtype == "f4_e2m1":
            return QuantScheme(dtype=dtype, bits=bits, group=group, scale_bits=8, tensor_bytes=8)
        return QuantScheme(dtype=dtype, bits=bits, group=group, scale_bits=16, zero_bits=zero, tensor_bytes=shape_bytes)
    if strategy == "channel":
        return QuantScheme(
            dtype=dtype, bits=bits, per_row=True, scale_bits=16, zero_bits=zero, tensor_bytes=shape_bytes
        )
    if strategy == "block":
        rows, columns = (_whole(entry, "block_structure") for entry in weights["block_structure"])
        return QuantScheme(dtype=dtype, bits=bits, block=(rows, columns), scale_bits=16)
    if strategy == "tensor":
        return QuantScheme(dtype=dtype, bits=bits, tensor_bytes=2 + shape_bytes)
    raise ValueError(f"strategy {strategy!r}")


def _grouped(value: Mapping[str, Any], source: str, *, method: str, zeros: bool, indices: bool) -> Read:
    bits, size = _whole(value["bits"], "bits"), _whole(value["group_size"], "group_size", row=True)
    if bits not in (4, 8):
        return Unknown(
            f"{source}: {bits}-bit {method} packs across words, whose padding is not known here", ("bits 4 or 8",)
        )
    scheme = QuantScheme(
        dtype="i4" if bits == 4 else "i8", bits=bits, group=size if size > 0 else None, per_row=size <= 0, scale_bits=16,
        zero_bits=bits if zeros else 0, input_bits=32 if indices else 0,
    )  # fmt: skip
    ignore = _names(value.get("modules_to_not_convert"))
    if value.get("lm_head") is not True:
        ignore = ("lm_head", *ignore)
    return Quantisation(
        method=method, rules=(QuantRule(scheme=scheme, targets=("decoder",)),), ignore=ignore, source=source
    )


def _gptq(value: Mapping[str, Any], source: str) -> Read:
    """GPTQ: fp16 scales and packed zeros per group, one 32-bit group index per input column."""
    return _grouped(value, source, method="gptq", zeros=True, indices=True)


def _awq(value: Mapping[str, Any], source: str) -> Read:
    """AWQ: fp16 scales and packed zeros per group."""
    return _grouped(value, source, method="awq", zeros=value.get("zero_point", True) is not False, indices=False)


def _mlx(value: Mapping[str, Any], source: str) -> Read:
    """MLX: a 16-bit scale and a 16-bit bias per group, tables included."""
    bits, size = _whole(value["bits"], "bits"), _whole(value["group_size"], "group_size")
    if bits not in (4, 8):
        return Unknown(f"{source}: {bits}-bit MLX storage is not known here", ("bits 4 or 8",))
    dtype = "u4" if bits == 4 else "u8"
    scheme = QuantScheme(dtype=dtype, bits=bits, group=size, scale_bits=16, zero_bits=16)
    return Quantisation(method="mlx", rules=(QuantRule(scheme=scheme, targets=("Linear", "Embedding")),), source=source)


def _bitsandbytes(value: Mapping[str, Any], source: str) -> Read:
    """bitsandbytes: 4 bits with a maximum per 64 elements, or 8 bits with a scale per row."""
    ignore = ("lm_head", *_names(value.get("llm_int8_skip_modules")))
    if value.get("load_in_4bit") is True:
        if value.get("bnb_4bit_use_double_quant") is True:
            # An 8-bit maximum per 64 elements, and an fp32 maximum per 256 of those.
            scheme = QuantScheme(dtype="u4", bits=4, group=64, scale_bits=8 + 32 / 256)
        else:
            scheme = QuantScheme(dtype="u4", bits=4, group=64, scale_bits=32)
    elif value.get("load_in_8bit") is True:
        scheme = QuantScheme(dtype="i8", bits=8, per_row=True, scale_bits=32)
    else:
        return Unknown(f"{source}: bitsandbytes without load_in_4bit or load_in_8bit", ("load_in_4bit", "load_in_8bit"))
    return Quantisation(method="bitsandbytes", rules=(QuantRule(scheme=scheme),), ignore=ignore, source=source)


METHODS: dict[str, Callable[[Mapping[str, Any], str], Read]] = {
    "fp8": _fp8, "mxfp4": _mxfp4, "modelopt": _modelopt, "compressed-tensors": _compressed, "gptq": _gptq, "awq": _awq,
    "mlx": _mlx, "bitsandbytes": _bitsandbytes,
}  # fmt: skip
