"""How the tensors of a model are stored and read: as the checkpoint does, or in a type that was asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.core.errors import UndecidedError, UsageError
from mansard.core.unknown import Unknown
from mansard.workload.blocks.weight import Weight
from mansard.workload.records import Model, Quantisation, QuantRule, QuantScheme
from mansard.workload.weights import WeightStore

#: Types that are stored without scales and hold every tensor of a model.
_WIDE = ("f32", "f16", "bf16", "f64")
#: Block formats that can be asked for by name, and how they store a matrix.
#: Source: OCP Microscaling Formats specification 1.0; NVIDIA, Introducing NVFP4, 2025.
_FORMATS: dict[str, QuantScheme] = {
    "mxfp8": QuantScheme(dtype="f8_e4m3", bits=8, group=32, scale_bits=8),
    "mxfp4": QuantScheme(dtype="f4_e2m1", bits=4, group=32, scale_bits=8),
    "nvfp4": QuantScheme(dtype="f4_e2m1", bits=4, group=16, scale_bits=8, tensor_bytes=4),
}
#: Bytes of a block and its elements in GGUF files, where the token table and the head are stored in blocks too.
#: Source: llama.cpp, ggml/src/ggml-common.h, sizes of the blocks.
_GGUF: dict[str, tuple[int, int]] = {
    "q4_0": (18, 32), "q4_1": (20, 32), "q5_0": (22, 32), "q5_1": (24, 32), "q8_0": (34, 32), "q2_k": (84, 256),
    "q3_k": (110, 256), "q4_k": (144, 256), "q5_k": (176, 256), "q6_k": (210, 256), "iq4_nl": (18, 32), "iq4_xs": (136, 256),
}  # fmt: skip
#: Names of recipes that mix several of these by tensor.
_RECIPE = re.compile(r"q[2-6]_k_(?:s|m|l|xl)", re.I)
#: Words that names of quantised checkpoints carry.
_NARROW = re.compile(
    r"(?<![A-Za-z0-9])((?:mx|nv)?fp[48]|int[48]|w[48]a(?:4|8|16)|awq|gptq|gguf|bnb|bitsandbytes|[48]-?bit)(?![A-Za-z0-9])",
    re.I,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Bytes of stored tensors, as kernels read them.

    Args:
        store: What the checkpoint holds.
        dtype: Element type of everything that is not quantised.
        product_dtype: Type that activations are cast to for products with quantised weights; None: not cast.
        cache_dtype: Type of the cache that the checkpoint prescribes; None: none.
        assumed: What was taken for granted.
    """

    store: WeightStore
    dtype: str
    product_dtype: str | None = None
    cache_dtype: str | None = None
    assumed: tuple[str, ...] = field(default=())

    def is_quantised(self, weight: Weight, layer_path: str) -> bool:
        """Return whether a tensor is stored quantised."""
        return self.store.is_quantised(weight, layer_path)

    def bytes_of(self, weight: Weight, layer_path: str) -> float:
        """Return the bytes of one copy of a tensor; a tied head reads the token table."""
        return self.store.table_bytes(weight) if weight.tied else self.store.bytes_of(weight, layer_path)


def storage_of(model: Model, *, dtype: str, weights: str | None = None) -> Storage:
    """Return how a model is stored.

    Args:
        model: The model.
        dtype: Element type of what is not quantised.
        weights: Type to store the matrices of the layers in, in place of what the checkpoint does; `int4:128` has one
            16-bit scale for each 128 elements, `nvfp4`, `mxfp4` and `mxfp8` have their own, and those of GGUF files
            (`q4_0`, `q8_0`, `q4_k`, ...) hold the tables too.

    Raises:
        UndecidedError: the checkpoint is quantised in a way that is not known, and nothing else was asked for.
        UsageError: a type that cannot hold weights.
    """
    if weights is not None:
        return _asked(model, dtype, weights)
    store = WeightStore(model, dtype)
    reason = store.unknown()
    if reason is not None:
        raise UndecidedError(
            f"{model.name}: the bytes of its weights are not known: {reason.reason}",
            hint="add --weights TYPE to say how they are stored"
            + (f"; needs {', '.join(reason.needs)}" if reason.needs else ""),
        )
    scheme = model.quantisation
    if scheme is None or isinstance(scheme, Unknown):
        return Storage(store=store, dtype=dtype, assumed=_name_says_otherwise(model.name, dtype))
    cast = None if scheme.activation_dtype is None else short_dtype(scheme.activation_dtype)
    note = f"weights as {scheme.method} stores them; activations are " + (
        f"cast to {cast} for their products" if cast else f"multiplied in {dtype}"
    )
    return Storage(
        store=store, dtype=dtype, product_dtype=cast, cache_dtype=None if scheme.kv_dtype is None else short_dtype(scheme.kv_dtype),
        assumed=(note,),
    )  # fmt: skip


def _name_says_otherwise(name: str, dtype: str) -> tuple[str, ...]:
    """A note where a name speaks of narrow weights and the configuration states none: its figures may be twice too large.

    >>> _name_says_otherwise("Llama-3.1-70B-Instruct-FP8", "bf16")[0].split(":")[0]
    "the name says 'FP8', but the configuration states no quantisation"
    >>> _name_says_otherwise("Llama-3.1-70B-Instruct", "bf16")
    ()
    """
    found = _NARROW.search(name)
    if found is None:
        return ()
    return (
        f"the name says {found[1]!r}, but the configuration states no quantisation: every weight in {dtype} "
        "(--weights, or hf_quant_config.json beside the configuration)",
    )


def _asked(model: Model, dtype: str, weights: str) -> Storage:
    """Storage in a type that was asked for."""
    name, colon, group = weights.partition(":")
    named = _named_format(name.strip().lower(), colon, dtype)
    if named is not None:
        rule, note = named
        asked = Quantisation(method="asked", rules=(rule,), source="--weights")
        return Storage(store=WeightStore(model, dtype, asked), dtype=dtype, assumed=(note,))
    short = short_dtype(name)
    if colon and not (group.isdigit() and int(group) > 0):
        raise UsageError(f"cannot read the group size of {weights!r}", hint="such as int4:128")
    if short in _WIDE:
        if colon:
            raise UsageError(f"{short} weights have no groups that share a scale")
        return Storage(store=WeightStore(model, short, False), dtype=short, assumed=(f"every weight in {short}",))
    if dtype_bytes(short) > 1:
        raise UsageError(f"weights cannot be stored in {short}", hint="bf16, f16, f32, fp8, int8, fp4 or int4")
    scheme = QuantScheme(
        dtype=short,
        bits=8.0 * dtype_bytes(short),
        group=int(group) if colon else None,
        scale_bits=16.0 if colon else 0.0,
    )
    # Scales per group are given by name; without them the figure is the elements alone.
    asked = Quantisation(method="asked", rules=(QuantRule(scheme=scheme, targets=("decoder",)),), source="--weights")
    scales = f"one 16-bit scale for {group} elements" if colon else "without scales"
    note = f"matrices of the layers in {short}, {scales}; tables, head, norms and routers in {dtype}"
    return Storage(store=WeightStore(model, dtype, asked), dtype=dtype, assumed=(note,))


def stored_bits(weights: str) -> float:
    """Return the bits that one element of a large matrix takes, its scales included.

    Args:
        weights: As `storage_of` takes it.

    Raises:
        UsageError: not a type that can hold weights.

    >>> stored_bits("bf16"), stored_bits("nvfp4"), stored_bits("int4:128"), stored_bits("q6_k")
    (16.0, 4.5, 4.125, 6.5625)
    """
    name, colon, group = weights.partition(":")
    named = _named_format(name.strip().lower(), colon, "")
    if named is not None:
        scheme = named[0].scheme
        return scheme.bits + scheme.scale_bits / (scheme.group or 1)
    bits = 8.0 * dtype_bytes(short_dtype(name))
    if not colon:
        return bits
    if not (group.isdigit() and int(group) > 0):
        raise UsageError(f"cannot read the group size of {weights!r}", hint="such as int4:128")
    return bits + 16.0 / int(group)


def _named_format(name: str, colon: str, dtype: str) -> tuple[QuantRule, str] | None:
    """Return how a format that has a name of its own stores a model, and a note; None where it is an element type."""
    if _RECIPE.fullmatch(name):
        base = name.rsplit("_", 1)[0]
        raise UsageError(
            f"{name} mixes several formats, by tensor and by file",
            hint=f"--weights {base}, the format of most of its matrices, for a floor",
        )
    if colon and (name in _FORMATS or name in _GGUF):
        raise UsageError(f"{name} says itself how many elements share a scale", hint=f"--weights {name}")
    if name in _FORMATS:
        scheme = _FORMATS[name]
        note = (
            f"matrices of the layers in {name}, {scheme.bits + scheme.scale_bits / (scheme.group or 1):g} bits an element "
            f"with their scales; tables, head, norms and routers in {dtype}"
        )
        return QuantRule(scheme=scheme, targets=("decoder",)), note
    if name in _GGUF:
        size, elements = _GGUF[name]
        scheme = QuantScheme(dtype="i4" if size < elements else "i8", bits=8.0 * size / elements)
        note = (
            f"every matrix and table in {name}, {scheme.bits:g} bits an element with their scales, norms in {dtype}; files "
            "often keep the head in a wider format"
        )
        return QuantRule(scheme=scheme, targets=("Linear", "Embedding")), note
    return None
