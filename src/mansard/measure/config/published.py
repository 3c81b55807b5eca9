"""Names and parameters of the published microbenchmark suite, so that its files are read as they are.

Source: accelerator-microbenchmarks, v2 at 6a306a8, v1 at c953ad7 (both trees).
"""

from __future__ import annotations

from dataclasses import dataclass

_MNK = ("m", "k", "n")
_MN = ("m", "n")
_V1_COLLECTIVE = ("ici_size", "dcn_size", "op_dimension")
_V2_COLLECTIVE = ("mesh_shape", "sharding_strategy", "matrix_dim", "dtype", "seed", "reduce_op")
_COLLECTIVE = (*_V2_COLLECTIVE, *_V1_COLLECTIVE)
_GEMM = (
    *_MNK, "in_dtype", "out_dtype", "dtype", "seed", "use_scaling_factors", "transpose_a", "transpose_b", "alpha", "beta",
)  # fmt: skip
_V1_ATTENTION = ("batch", "seq_len", "d_model", "num_heads", "causal", "scale")
_TOKAMAX = (
    "batch_size", "q_seq_len", "kv_seq_len", "q_heads", "kv_heads", "qk_head_dim", "v_head_dim", "mode", "causal",
    "num_samples", "tune_pallas_only",
)  # fmt: skip
_CONVOLUTION = ("input_size", "kernel_size", "padding_mode")
_LAX = (
    "batch_size", "input_h", "input_w", "in_channel", "out_channel", "kernel_h", "kernel_w", "stride", "dilation",
    "padding_mode", "dtype",
)  # fmt: skip
_FP8 = ("gemm_fp8_rowwise", "gemm_fp8_b128_fp32", "gemm_mxfp8_b32")

#: Every name of the suite with the parameters its files may give.
PUBLISHED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("all_reduce", "psum", "all_gather", "reduce_scatter", "psum_scatter", "all_to_all", "ppermute"),
                    _COLLECTIVE),
    "send_recv": ("num_elements", "dtype", "source_id", "target_id", "n_repeats"),
    "device_to_device": ("data_size_mib", "direction", "seed", "dtype"),
    "gemm_generalized": _GEMM,
    **dict.fromkeys(("gemm", "gemm_simple", "gemm_accum", "gemm_multiple_run"), (*_MNK, "dtype")),
    "gemm_simple_with_dtype": (*_MNK, "in_dtype_str", "out_dtype_str"),
    "gemm_throttling": (*_MNK, "dtype", "gap_strategy"),
    **dict.fromkeys(("naive_matmul", "single_host_naive_matmul", "multilayer_collective_matmul",
                     "collective_matmul_one_direction", "collective_matmul_two_directions", "gemm_all_reduce"),
                    (*_MNK, "dtype")),
    **dict.fromkeys(("single_device_bmm", "multi_host_bmm", "bmm"), ("b", "batch", *_MNK, "dtype")),
    **dict.fromkeys((*_FP8, *(f"{name}_static_scaling" for name in _FP8), "gemm_fp8_rowwise_w_dequantize"),
                    (*_MNK, "dtype")),
    **dict.fromkeys(("swiglu", "rmsnorm", "sigmoid"), ("dim", "batch", "mode", "dtype")),
    **dict.fromkeys(("swiglu_fwd", "swiglu_bwd", "rmsnorm_fwd", "rmsnorm_bwd", "add", "inference_add",
                     "inference_rmsnorm", "inference_silu_mul", "inference_sigmoid"), (*_MN, "dtype")),
    "rope": ("seq_len", "head_dim", "batch", "heads", "dtype"),
    **dict.fromkeys(("quantization", "quantization_static_scaling", "transpose_quantization",
                     "transpose_quantization_static_scaling"), (*_MN, "dtype", "quant_dtype")),
    "simple_add": ("size", "dtype"),
    "transformer_layer_moe": ("model_dim", "mslen", "tp", "etp", "cp", "ep", "dtype"),
    "attention_flashed": (
        "mode", "causal", "batch", "seq_len", "num_q_heads", "num_kv_heads", "head_dim", "dtype",
    ),
    **dict.fromkeys(("naive_attention", "pallas_flash_attention", "splash_attention", "flax_nnx_attention",
                     "flax_linen_attention", "keras_attention"), (*_V1_ATTENTION, "dtype")),
    "tokamax_splash_attention": (*_TOKAMAX, "dtype"),
    "ragged_paged_attention": ("dtype",),
    "hbm_bandwidth": ("op_type", "size", "device_id", "dtype"),
    **dict.fromkeys(("single_chip_hbm_copy", "single_device_hbm_copy"), ("num_elements", "dtype")),
    **dict.fromkeys(("host_to_device", "device_to_host", "host_device"), ("data_size_mib", "dtype")),
    **dict.fromkeys(("numpy_convolve", "scipy_signal_convolve2d"), (*_CONVOLUTION, "dimension", "dtype")),
    "scipy_signal_convolve": (*_CONVOLUTION, "dimension", "dtype"),
    "lax_conv_general_dilated": _LAX,
}  # fmt: skip

#: Older spellings of names.
SPELLED: dict[str, str] = {
    "naive_outputs": "naive_matmul",
    "single_host_naive_outputs": "single_host_naive_matmul",
    "multilayer_collective_outputs": "multilayer_collective_matmul",
    "collective_outputs_one_direction": "collective_matmul_one_direction",
    "collective_outputs_two_directions": "collective_matmul_two_directions",
    "hbm_copy": "single_chip_hbm_copy",
}

#: Other words of the suite for a parameter, where a benchmark has the second one and not the first.
ALSO_CALLED: dict[str, str] = {
    "in_dtype_str": "in_dtype",
    "out_dtype_str": "out_dtype",
    "batch_size": "batch",
    "b": "batch",
    "num_elements": "size",
    "q_heads": "num_q_heads",
    "kv_heads": "num_kv_heads",
    "source_id": "source",
    "target_id": "target",
}

#: The suite's parameters that change nothing here, and why. They count only where a benchmark has none of that name.
WITHOUT_EFFECT: dict[str, str] = {
    "num_samples": "block sizes are not searched; it is the number of configurations that the suite's search tries",
    "tune_pallas_only": "block sizes are not searched",
    "seed": "the data have a fixed seed, which is in the result",
    "op_dimension": "it is a label of the row; the sharding strategy decides which devices take part",
    "reduce_op": "this operation reduces nothing",
    "tp": "the layer is measured whole on one device; its widths are not divided",
    "etp": "the layer is measured whole on one device; the experts' widths are not divided",
    "cp": "`mslen` is taken as it is written",
    "ep": "the layer is measured whole on one device; the experts are not divided",
    "scale": "scores are always scaled by 1 / sqrt(head_dim), which changes neither FLOP nor bytes",
    "dimension": "it is fixed by the name of the benchmark",
}

#: Keys of a v1 entry beside its parameters, and what becomes of them.
V1_OUTPUTS: dict[str, str] = {
    "csv_path": "results go to the output folder as summary.csv",
    "trace_dir": "no profile is written",
    "xlml_metrics_dir": "results go to the output folder as detailed.json",
    "xla_dump_dir": "the compiled program is audited and not kept",
}
V1_KEYS = (
    "benchmark_name", "benchmark_params", "benchmark_sweep_params", "num_runs", "warmup_tries", *V1_OUTPUTS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A name of the suite that has no benchmark here, and why."""

    name: str
    reason: str


def canonical(name: str) -> str:
    """Return the newer spelling of a benchmark name.

    >>> canonical("naive_outputs"), canonical("gemm")
    ('naive_matmul', 'gemm')
    """
    return SPELLED.get(name, name)


def missing(name: str) -> Missing | None:
    """Return why a name of the suite has no benchmark here; None where it is no name of the suite."""
    if name not in PUBLISHED:
        return None
    return Missing(name=name, reason=f"there is no benchmark {name} in this version")
