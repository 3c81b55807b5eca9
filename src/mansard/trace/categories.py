"""What a kernel is, from its name, by the rules of `data/kernel_rules.toml`; what no rule knows stays unclassified."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mansard.core.errors import InputError

UNCLASSIFIED = "unclassified"
COLLECTIVE = "collective"
_DTYPES = {
    "f16": "f16", "half": "f16", "f32": "f32", "float": "f32", "f64": "f64", "double": "f64", "bf16": "bf16",
    "__nv_bfloat16": "bf16", "hip_bfloat16": "bf16", "rccl_bfloat16": "bf16", "i8": "i8", "int8_t": "i8", "u8": "u8",
    "uint8_t": "u8", "i32": "i32", "int32_t": "i32", "u32": "u32", "uint32_t": "u32", "i64": "i64", "int64_t": "i64",
    "u64": "u64", "uint64_t": "u64", "f8e4m3": "f8e4m3", "f8e5m2": "f8e5m2",
}  # fmt: skip
_DTYPE = re.compile(r"_(" + "|".join(sorted(_DTYPES, key=len, reverse=True)) + r")(?=[_(<\s]|$)", re.IGNORECASE)
_REDUCTION = re.compile(r"_(sum|prod|min|max|avg|minmax|premulsum|sumpostdiv)(?=_|$)", re.IGNORECASE)
_PROTOCOL = re.compile(r"_(LL128|LL|SIMPLE)(?=[_(<\s]|$)", re.IGNORECASE)
_ALGORITHM = re.compile(r"_(RING|TREE|COLLNET\w*|NVLS\w*|PAT)(?=_)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What the name of a communication kernel tells.

    Args:
        operation: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `send_recv`, `broadcast`, `reduce`, or
            `unknown` where the name does not tell, as with `ncclDevKernel_Generic`.
        dtype: Element type; empty where the name does not tell.
        reduction: `sum`, `max`, ...; empty where the name does not tell.
        algorithm, protocol: Such as `ring` and `ll128`; empty where the name does not tell.
    """

    operation: str
    dtype: str = ""
    reduction: str = ""
    algorithm: str = ""
    protocol: str = ""


@dataclass(frozen=True)
class Rules:
    """Ordered rules from names to categories.

    Args:
        rules: Category and pattern, in order; the first pattern that is found decides.
        collectives: Operation and pattern of communication kernels.
        source: Where they come from.
    """

    rules: tuple[tuple[str, re.Pattern[str]], ...]
    collectives: tuple[tuple[str, re.Pattern[str]], ...]
    source: str

    def category(self, name: str) -> str:
        """Return the category of a kernel name, `unclassified` where no rule knows it.

        >>> shipped_rules().category("ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
        'collective'
        >>> shipped_rules().category("fused_moe_kernel"), shipped_rules().category("mystery")
        ('moe', 'unclassified')
        """
        return next((c for c, pattern in self.rules if pattern.search(name)), UNCLASSIFIED)

    def collective(self, name: str) -> Collective:
        """Return what the name of a communication kernel tells.

        >>> shipped_rules().collective("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)")
        Collective(operation='all_reduce', dtype='f32', reduction='sum', algorithm='ring', protocol='ll')
        """
        operation = next((o for o, pattern in self.collectives if pattern.search(name)), "unknown")

        def part(pattern: re.Pattern[str]) -> str:
            found = pattern.search(name)
            return found.group(1).lower() if found else ""

        algorithm, protocol = part(_ALGORITHM), part(_PROTOCOL)
        older = re.search(r"(Ring|Tree)(LL128|LL|Simple)?Kernel", name)
        if older:
            algorithm = algorithm or older.group(1).lower()
            protocol = protocol or (older.group(2) or "").lower()
        return Collective(
            operation=operation, dtype=_DTYPES.get(part(_DTYPE), ""), reduction=part(_REDUCTION),
            algorithm=algorithm, protocol=protocol,
        )  # fmt: skip

    def codes(self, names: Sequence[str]) -> tuple[tuple[str, ...], npt.NDArray[np.int16]]:
        """Return the categories and, for each name of a table, the index of its own.

        Args:
            names: Kernel names; each is looked at once, however many kernels have it.
        """
        known: dict[str, int] = {UNCLASSIFIED: 0}
        codes = np.array([known.setdefault(self.category(n), len(known)) for n in names], dtype=np.int16)
        return tuple(known), codes


@lru_cache(maxsize=1)
def shipped_rules() -> Rules:
    """Return the rules that come with the program."""
    text = (files("mansard") / "data" / "kernel_rules.toml").read_text(encoding="utf-8")
    return _parse(text, "kernel_rules.toml")


def load_rules(path: Path) -> Rules:
    """Return the rules of a file, before the shipped ones.

    Args:
        path: A file of the form of `data/kernel_rules.toml`.

    Raises:
        InputError: It cannot be read, or a pattern is wrong.
    """
    try:
        own = _parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text, expected a TOML file of rules") from None
    shipped = shipped_rules()
    return Rules(
        rules=own.rules + shipped.rules, collectives=own.collectives + shipped.collectives,
        source=f"{path}, then {shipped.source}",
    )  # fmt: skip


def _parse(text: str, source: str) -> Rules:
    try:
        document = tomllib.loads(text)
        rules = tuple((r["category"], _joined(r["patterns"])) for r in document.get("rule", ()))
        collectives = tuple((r["operation"], _joined(r["patterns"])) for r in document.get("collective", ()))
    except (tomllib.TOMLDecodeError, re.error, KeyError, TypeError) as error:
        raise InputError(
            f"{source} holds no kernel rules: {error}", hint="see the shipped kernel_rules.toml for the form"
        ) from None
    return Rules(rules=rules, collectives=collectives, source=source)


def _joined(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{p})" for p in patterns), re.IGNORECASE)


def short_name(name: str) -> str:
    """Return a kernel's name without result type, namespaces, template arguments and parameters.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float *)")
    'vectorized_elementwise_kernel'
    >>> short_name("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (bool)0>, (bool)1>(flash::Flash_fwd_params)")
    'flash_fwd_kernel'
    >>> short_name("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn")
    'ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn'
    """
    text = name.replace("(anonymous namespace)::", "").replace("->", "")
    depth = 0
    kept = []
    for letter in text:
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(letter)
    plain = "".join(kept)
    head = plain.split("(", 1)[0].strip()
    return head.rsplit("::", 1)[-1].rsplit(" ", 1)[-1] or name
