"""The devices of the corpus, as their vendor's data sheets state them: this table knows nothing of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One device.

    Args:
        slug: Short name in case names.
        product: Name as the driver prints it.
        bf16_flop_per_s, tf32_flop_per_s: Dense tensor-core peaks [FLOP/s].
        hbm_bytes_per_s: Memory bandwidth [B/s].
        nvlink_bytes_per_s: One way, all links of one device [B/s].
        pcie_bytes_per_s: One way [B/s].
        l2_bytes: Last-level cache [B].
        multiprocessors: Number of SMs.
        memory_bytes: Memory as the driver reports it [B].
        major: Compute capability.
        chip: Name of the chip in Nsight Systems files.
        boost_hz: Highest clock [Hz].
        gemm, gemm_tf32: Names of matrix kernels of its generation.
        runtime: How the calls of its runtime begin.
        fp8_flop_per_s, f32_flop_per_s: Dense 8-bit tensor-core peak, float32 peak without tensor cores [FLOP/s];
            0 where no case asks.
    """

    slug: str
    product: str
    bf16_flop_per_s: float
    tf32_flop_per_s: float
    hbm_bytes_per_s: float
    nvlink_bytes_per_s: float
    pcie_bytes_per_s: float
    l2_bytes: int
    multiprocessors: int
    memory_bytes: int
    major: int
    chip: str
    boost_hz: int
    gemm: str
    gemm_tf32: str
    runtime: str = "cuda"
    fp8_flop_per_s: float = 0.0
    f32_flop_per_s: float = 0.0


_HOPPER = {
    # NVIDIA H100 data sheet: 1,979 TFLOP/s bf16 and 989 TFLOP/s TF32 with sparsity, half of it dense;
    # NVLink 900 GB/s both ways.
    "bf16_flop_per_s": 989.4e12,
    "tf32_flop_per_s": 494.7e12,
    "fp8_flop_per_s": 1978.9e12,  # 3,958 TFLOP/s with sparsity
    "f32_flop_per_s": 67e12,
    "nvlink_bytes_per_s": 450e9,
    "pcie_bytes_per_s": 64e9,
    "l2_bytes": 50 * 2**20,
    "multiprocessors": 132,
    "major": 9,
    "chip": "GH100",
    "boost_hz": 1_980_000_000,
    "gemm": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_"
    "execute_segment_k_off_kernel__5x_cublas",
    "gemm_tf32": "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_"
    "execute_segment_k_off_kernel__5x_cublas",
}
H100 = Machine(
    slug="h100", product="NVIDIA H100 80GB HBM3", hbm_bytes_per_s=3.35e12, memory_bytes=85018279936, **_HOPPER
)
H200 = Machine(slug="h200", product="NVIDIA H200", hbm_bytes_per_s=4.8e12, memory_bytes=150121545728, **_HOPPER)
A100 = Machine(
    # NVIDIA A100 80GB data sheet: 312 / 156 TFLOP/s dense, 2,039 GB/s, NVLink 600 GB/s both ways.
    slug="a100",
    product="NVIDIA A100-SXM4-80GB",
    bf16_flop_per_s=312e12,
    tf32_flop_per_s=156e12,
    f32_flop_per_s=19.5e12,
    hbm_bytes_per_s=2.039e12,
    nvlink_bytes_per_s=300e9,
    pcie_bytes_per_s=32e9,
    l2_bytes=40 * 2**20,
    multiprocessors=108,
    memory_bytes=85051572224,
    major=8,
    chip="GA100",
    boost_hz=1_410_000_000,
    gemm="ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn",
    gemm_tf32="ampere_sgemm_tf32_128x128_ldg4_relu_stages_64x3_tn",
)

#: NVIDIA A100 data sheet: the 40 GB board has 1,555 GB/s, the 80 GB PCIe board 1,935 GB/s; the rest as above.
A100_40 = replace(
    A100, slug="a100-40", product="NVIDIA A100-SXM4-40GB", hbm_bytes_per_s=1.555e12, memory_bytes=42298834944
)
A100_PCIE = replace(A100, slug="a100-pcie", product="NVIDIA A100 80GB PCIe", hbm_bytes_per_s=1.935e12)
MI300X = Machine(
    # AMD Instinct MI300X data sheet: 1,307.4 / 653.7 / 2,614.9 TFLOP/s dense bf16 / TF32 / FP8, 163.4 TFLOP/s float32,
    # 5.325 TB/s, 256 MB of Infinity Cache, seven Infinity Fabric links of 128 GB/s both ways, PCIe 5 x16.
    slug="mi300x",
    product="AMD Instinct MI300X",
    bf16_flop_per_s=1307.4e12,
    tf32_flop_per_s=653.7e12,
    hbm_bytes_per_s=5.325e12,
    nvlink_bytes_per_s=448e9,
    pcie_bytes_per_s=64e9,
    l2_bytes=256 * 2**20,
    multiprocessors=304,
    memory_bytes=205571227648,
    major=9,
    chip="gfx942",
    boost_hz=2_100_000_000,
    gemm="Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB1_AFC1_AFEM1_GLVWA8_GLVWB8",
    gemm_tf32="Cijk_Alik_Bljk_S_MX_B_Bias_HAS_SAV_UserArgs_MT128x128x32_MI16x16x1_SN_LDSB1_AFC1",
    runtime="hip",
    fp8_flop_per_s=2614.9e12,
    f32_flop_per_s=163.4e12,
)
