"""Bytes of stored weights: elements, scales, zero points and per-matrix extras, with exclusions by module name."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mansard.core.dtypes import dtype_bytes
from mansard.core.unknown import Unknown
from mansard.workload.records import Model, Quantisation, QuantScheme, Stack, Weight

BUFFER_DTYPE = (
    "f32"  # Routing biases are stored in fp32 (DeepSeek-V3 README_WEIGHTS: the F32 tensors of the checkpoint).
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Bytes of the stored weights of a model.

    Args:
        total: All of them.
        unquantised: Tensors in the model's own type, buffers included.
        quantised: Packed elements.
        scales: Scales and zero points beside them.
        extras: What is stored once per matrix: global scales, shapes, group indices.
        quantised_params: Parameters that are stored quantised.
        mtp: Bytes of multi-token-prediction layers, which `total` leaves out.
        by_block: Bytes by block; the sum is `total`.
    """

    total: float
    unquantised: float
    quantised: float
    scales: float
    extras: float
    quantised_params: int
    mtp: float = 0.0
    by_block: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Stored:
    elements: float
    scales: float = 0.0
    extras: float = 0.0
    quantised: bool = False

    @property
    def total(self) -> float:
        return self.elements + self.scales + self.extras


def scheme_bytes(scheme: QuantScheme, shape: tuple[int, ...]) -> tuple[float, float, float]:
    """Return bytes of elements, of scales and zero points, and of extras for one `(out, in)` matrix.

    Source: storage layouts of the methods named in workload.model.quant.

    >>> scheme_bytes(QuantScheme(dtype="i4", bits=4, group=128, scale_bits=16), (4096, 4096))
    (8388608.0, 262144.0, 0.0)
    >>> scheme_bytes(QuantScheme(dtype="f8_e4m3", bits=8, block=(128, 128), scale_bits=32), (576, 7168))
    (4128768.0, 1120.0, 0.0)
    """
    columns = shape[-1]
    rows = math.prod(shape[:-1])
    elements = rows * columns * scheme.bits / 8
    if scheme.block is not None:
        places = math.ceil(rows / scheme.block[0]) * math.ceil(columns / scheme.block[1])
    elif scheme.group is not None:
        places = rows * math.ceil(columns / scheme.group)
    else:
        places = rows if scheme.per_row else 0
    scales = places * (scheme.scale_bits + scheme.zero_bits) / 8
    return elements, scales, float(scheme.tensor_bytes) + columns * scheme.input_bits / 8


@lru_cache(maxsize=64)
def _patterns(ignore: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """Split an exclusion list into plain names and one expression for globs and `re:` entries."""
    plain, expressions = set(), []
    for entry in ignore:
        if entry.startswith("re:"):
            expressions.append(f"(?:{entry[3:]})")
        elif any(sign in entry for sign in "*?["):
            expressions.append(f"(?:{fnmatch.translate(entry)})")
            expressions.append(f"(?:{fnmatch.translate(entry + '.*')})")
        else:
            plain.add(entry)
    return frozenset(plain), re.compile("|".join(expressions)) if expressions else None


def _variants(name: str) -> Iterator[str]:
    """Yield the names under which checkpoints may list a module."""
    yield name
    if name.startswith("model.layers."):
        yield f"backbone.{name.removeprefix('model.')}"
        yield f"model.language_model.{name.removeprefix('model.')}"
        yield f"language_model.{name}"
    elif not name.startswith(("model.", "lm_head")):
        yield f"model.{name}"
    for ours, theirs in (("q_proj", "qkv"), ("k_proj", "qkv"), ("v_proj", "qkv"), ("o_proj", "proj"),
                         ("up_proj", "linear_fc1"), ("down_proj", "linear_fc2"), (".shared_experts.", ".shared_expert."),
                         ("self_attn.", "mixer.")):  # fmt: skip
        if ours in name:
            yield name.replace(ours, theirs)
            yield f"model.{name.replace(ours, theirs)}"


def excluded(name: str, ignore: tuple[str, ...]) -> bool:
    """Return whether an exclusion list covers a module: by its name, a level above it, its last parts, or a pattern.

    >>> excluded("model.layers.3.mlp.gate", ("gate",)), excluded("model.layers.3.mlp.gate_proj", ("gate",))
    (True, False)
    >>> excluded("model.layers.61.mlp.up_proj", ("model.layers.61*",))
    True
    """
    plain, expression = _patterns(ignore)
    for variant in _variants(name):
        parts = variant.split(".")
        if any(".".join(parts[:i]) in plain or ".".join(parts[-i:]) in plain for i in range(1, len(parts) + 1)):
            return True
        if expression is not None and expression.match(variant):
            return True
    return False


_KINDS = frozenset({"Embedding", "Linear", "experts", "decoder"})


@lru_cache(maxsize=64)
def _modules(targets: tuple[str, ...]) -> tuple[str, ...]:
    """The targets that are names of modules, not kinds of them."""
    return tuple(target for target in targets if target not in _KINDS)


def _applies(targets: tuple[str, ...], weight: Weight, name: str, stack: str) -> bool:
    if weight.role == "embedding":
        return "Embedding" in targets
    if weight.role != "matmul" or weight.keep:
        return False
    if "Linear" in targets or ("experts" in targets and weight.block == "experts"):
        return True
    if "decoder" in targets and stack in ("text", "encoder") and weight.block != "head":
        return True
    return excluded(name, _modules(targets))


def scheme_of(quantisation: Quantisation, weight: Weight, name: str, stack: str) -> QuantScheme | None:
    """Return the scheme a tensor is stored in, or None where it keeps the model's type."""
    # The projection that joins two inputs of an MTP layer stays in the model's type in every published checkpoint.
    if weight.block == "mtp" or (quantisation.text_only and stack not in ("text", "mtp")):
        return None
    for rule in quantisation.rules:
        if _applies(rule.targets, weight, name, stack):
            return None if excluded(name, quantisation.ignore) else rule.scheme
    return None


class WeightStore:
    """How the tensors of a model are stored.

    Args:
        model: The model; its `quantisation` decides, and its `dtype` for everything else.
        dtype: Type of unquantised tensors, where the caller states another one.
        quantisation: None: as the model says; False: as if nothing were quantised.
    """

    def __init__(self, model: Model, dtype: str | None = None, quantisation: Quantisation | bool | None = None) -> None:
        self.model = model
        self.dtype = model.dtype if dtype is None else dtype
        declared = model.quantisation if quantisation is None else quantisation
        self.quantisation = None if isinstance(declared, bool) else declared
        self._means: dict[tuple[str, Weight], tuple[float, float]] | None = None

    def unknown(self) -> Unknown | None:
        """Return why bytes are not known, or None where they are."""
        if isinstance(self.dtype, Unknown):
            return self.dtype
        return self.quantisation if isinstance(self.quantisation, Unknown) else None

    def stored(self, weight: Weight, name: str, stack: str) -> _Stored:
        """Return the bytes of one copy of a tensor under its full name."""
        assert isinstance(self.dtype, str)
        assert not isinstance(self.quantisation, Unknown)
        if weight.tied:
            return _Stored(0.0)
        if weight.role == "buffer":
            return _Stored(weight.elements * float(dtype_bytes(BUFFER_DTYPE)))
        scheme = scheme_of(self.quantisation, weight, name, stack) if self.quantisation else None
        if scheme is None:
            return _Stored(weight.elements * float(dtype_bytes(self.dtype)))
        elements, scales, extras = scheme_bytes(scheme, weight.shape)
        return _Stored(elements, scales, extras, quantised=True)

    def table_bytes(self, head: Weight) -> float:
        """Return the bytes of the token table, which a tied head multiplies as it is stored."""
        table = replace(head, role="embedding", tied=False)
        return self.stored(table, "model.embed_tokens", "text").total

    def _in_stack(self, stack: Stack) -> Iterator[tuple[str, Weight, int, _Stored]]:
        """Yield path template, tensor, copies and bytes of one copy, for every tensor of a stack."""
        # What stands around the layers of a tower is listed under the tower's name.
        tower = "" if stack.name in ("text", "mtp") else stack.path.split(".")[0] + "."
        for block in (*stack.inputs, *stack.outputs):
            for weight in block.weights():
                yield "", weight, weight.copies, self.stored(weight, tower + weight.name, stack.name)
        # Exclusions differ by layer only where a quantised checkpoint lists layers.
        every_layer = self.quantisation is not None
        # DeepSeek numbers its MTP layers after the main ones.
        first = self.model.text.depth if stack.name == "mtp" and stack.path == self.model.text.path else 0
        for group in stack.groups:
            indices = group.indices if every_layer else group.indices[:1]
            times = 1 if every_layer else group.count
            for weight in group.layer.weights():
                inner = weight.name.replace(".*.", ".0.")
                for index in indices:
                    name = f"{stack.path.format(index + first)}.{inner}"
                    yield stack.path, weight, weight.copies * times, self.stored(weight, name, stack.name)

    def every(self, *, mtp: bool) -> Iterator[tuple[str, str, Weight, int, _Stored]]:
        """Yield stack, path, tensor, copies and bytes of one copy, for the main model or for its MTP layers."""
        if mtp:
            if self.model.mtp is not None:
                for path, weight, copies, stored in self._in_stack(self.model.mtp):
                    yield "mtp", path, weight, copies, stored
            return
        for stack in self.model.stacks:
            for path, weight, copies, stored in self._in_stack(stack):
                yield stack.name, path, weight, copies, stored
        for block in self.model.head:
            for weight in block.weights():
                yield "head", "", weight, weight.copies, self.stored(weight, weight.name, "text")

    def _mean(self, weight: Weight, layer_path: str) -> tuple[float, float]:
        """Return mean bytes of one copy, and the quantised share, over the layers that hold such a tensor."""
        if self._means is None:
            sums: dict[tuple[str, Weight], list[float]] = {}
            for part in (False, True):
                for _stack, path, held, copies, stored in self.every(mtp=part):
                    entry = sums.setdefault((path, held), [0.0, 0.0, 0.0])
                    entry[0] += copies
                    entry[1] += copies * stored.total
                    entry[2] += copies * stored.quantised
            self._means = {key: (size / n, share / n) for key, (n, size, share) in sums.items()}
        found = self._means.get((layer_path, weight))
        if found is None:
            stored = self.stored(weight, f"{layer_path.format(0)}.{weight.name}" if layer_path else weight.name, "text")
            found = (stored.total, float(stored.quantised))
        return found

    def bytes_of(self, weight: Weight, layer_path: str) -> float:
        """Return the bytes of one copy of a tensor, the mean over the layers of a stack that hold it.

        Args:
            layer_path: `Stack.path` (with its `{}`), or an empty text for tensors outside layers.
        """
        return self._mean(weight, layer_path)[0]

    def is_quantised(self, weight: Weight, layer_path: str) -> bool:
        """Return whether at least half of the layers that hold such a tensor store it quantised."""
        return self._mean(weight, layer_path)[1] >= 0.5


def weight_bytes(
    model: Model, *, dtype: str | None = None, quantisation: Quantisation | bool | None = None
) -> WeightBytes | Unknown:
    """Return the bytes a model's weights take in memory, by kind and by block.

    Args:
        dtype: Type of unquantised tensors; the configuration's, where None.
        quantisation: None: as the model says; False: nothing quantised; or another description.

    Assumes: tables, heads, norms and biases keep the model's type unless the method says otherwise.
    """
    store = WeightStore(model, dtype, quantisation)
    reason = store.unknown()
    if reason is not None:
        return reason
    kinds = {"unquantised": 0.0, "quantised": 0.0, "scales": 0.0, "extras": 0.0}
    params = 0
    by_block: dict[str, float] = {}
    for stack, _path, weight, copies, stored in store.every(mtp=False):
        if stored.quantised:
            kinds["quantised"] += copies * stored.elements
            params += weight.elements * copies
        else:
            kinds["unquantised"] += copies * stored.elements
        kinds["scales"] += copies * stored.scales
        kinds["extras"] += copies * stored.extras
        if stored.total:
            block = weight.block if stack in ("text", "head") else f"{stack}.{weight.block}"
            by_block[block] = by_block.get(block, 0.0) + copies * stored.total
    mtp = sum(copies * stored.total for _s, _p, _w, copies, stored in store.every(mtp=True))
    return WeightBytes(total=sum(kinds.values()), quantised_params=params, mtp=float(mtp), by_block=by_block, **kinds)
