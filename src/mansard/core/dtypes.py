"""Element types: one short name each, and how many bytes one element takes."""

from __future__ import annotations

from mansard.core.errors import UsageError

DTYPE_BYTES: dict[str, float] = {
    "f64": 8, "f32": 4, "tf32": 4, "f16": 2, "bf16": 2, "f8_e4m3": 1, "f8_e5m2": 1, "f4_e2m1": 0.5,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i4": 0.5, "u64": 8, "u32": 4, "u16": 2, "u8": 1, "u4": 0.5, "bool": 1,
    "c64": 8, "c128": 16,
}  # fmt: skip

_ALIASES: dict[str, str] = {
    "float": "f32", "float32": "f32", "fp32": "f32", "double": "f64", "float64": "f64", "fp64": "f64",
    "half": "f16", "float16": "f16", "fp16": "f16", "bfloat16": "bf16", "c10::bfloat16": "bf16", "c10::half": "f16",
    "tensorfloat32": "tf32", "fp8": "f8_e4m3", "float8_e4m3fn": "f8_e4m3", "float8_e4m3": "f8_e4m3", "f8e4m3fn": "f8_e4m3",
    "f8e4m3": "f8_e4m3", "float8_e5m2": "f8_e5m2", "f8e5m2": "f8_e5m2", "float8_e4m3fnuz": "f8_e4m3",
    "float8_e5m2fnuz": "f8_e5m2", "fp4": "f4_e2m1", "float4_e2m1fn": "f4_e2m1", "f4e2m1fn": "f4_e2m1",
    "long": "i64", "long int": "i64", "int64": "i64", "s64": "i64", "int": "i32", "int32": "i32", "s32": "i32",
    "short": "i16", "short int": "i16", "int16": "i16", "s16": "i16", "signed char": "i8", "char": "i8", "int8": "i8",
    "s8": "i8", "s4": "i4", "int4": "i4", "unsigned char": "u8", "byte": "u8", "uint8": "u8", "uint16": "u16", "uint32": "u32",
    "uint64": "u64", "uint4": "u4", "pred": "bool", "c10::complex<float>": "c64", "complex64": "c64",
    "c10::complex<double>": "c128", "complex128": "c128",
}  # fmt: skip


#: Formats whose elements share a scale in blocks; the elements alone are multiplied at the peak of their type.
_BLOCK_ELEMENTS: dict[str, str] = {"nvfp4": "f4_e2m1", "mxfp4": "f4_e2m1", "mxfp8": "f8_e4m3"}


def short_dtype(name: str) -> str:
    """Return the short name of an element type, whatever framework wrote it.

    Raises:
        UsageError: the name is not known; it is never replaced by another type.

    >>> short_dtype("c10::BFloat16"), short_dtype("float32"), short_dtype("f16")
    ('bf16', 'f32', 'f16')
    """
    key = name.strip().lower().removeprefix("torch.").removeprefix("jnp.")
    if key in DTYPE_BYTES:
        return key
    if key in _ALIASES:
        return _ALIASES[key]
    raise UsageError(f"unknown element type {name!r}", hint="known: " + ", ".join(sorted(DTYPE_BYTES)))


def element_dtype(name: str) -> str:
    """Return the element type that is multiplied: of a block format that of its elements, else as `short_dtype`.

    Source: OCP Microscaling Formats specification 1.0 (MXFP8, MXFP4); NVIDIA, Introducing NVFP4, 2025.

    >>> element_dtype("nvfp4"), element_dtype("mxfp8"), element_dtype("bfloat16")
    ('f4_e2m1', 'f8_e4m3', 'bf16')
    """
    return _BLOCK_ELEMENTS.get(name.strip().lower()) or short_dtype(name)


def dtype_bytes(name: str) -> float:
    """Return the bytes of one element; four-bit types take half a byte.

    >>> dtype_bytes("bf16"), dtype_bytes("int4")
    (2, 0.5)
    """
    return DTYPE_BYTES[short_dtype(name)]
