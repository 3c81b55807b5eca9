"""Pieces of device work: their shapes, their demand by elementary arithmetic, and the time they are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from corpus.machines import Machine

BF16, F16, F32, FP8 = "c10::BFloat16", "c10::Half", "float", "c10::Float8_e4m3fn"
_BYTES = {BF16: 2, F16: 2, F32: 4}
Outer = tuple[str, Any, Any, Any]  # an operator around another


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One operator and the device work it launches.

    Args:
        operator: Name of the operator; empty for a copy the runtime is asked for directly.
        kernel: Name of the kernel or copy.
        area: The true area of its time: compute, memory, network, host or latency.
        least_s: Demand over ceiling [s].
        duration_ns: Length of the kernel [ns].
        dims, types, values: `Input Dims`, `Input type`, `Concrete Inputs` of the operator.
        kind: kernel, copy or graph.
        nbytes: Bytes of a copy.
        record: Fields of the collective.
        wrappers: Operators around it, outermost first: name, `Input Dims`, `Input type`, `Concrete Inputs`.
        known: Whether a reader can tell its demand.
    """

    operator: str
    kernel: str
    area: str
    least_s: float
    duration_ns: int
    dims: Any = ()
    types: Any = ()
    values: Any = ()
    kind: str = "kernel"
    nbytes: int = 0
    record: dict[str, Any] = field(default_factory=dict)
    wrappers: tuple[Outer, ...] = ()
    known: bool = True


def _ns(seconds: float) -> int:
    return max(1, round(seconds * 1e9))


def gemm(
    m: Machine,
    share: float,
    rows: int,
    inner: int,
    columns: int,
    *,
    tf32: bool = False,
    op: str = "mm",
    half: bool = False,
) -> Work:
    """A product at a share of what limits it: 2 x rows x inner x columns FLOP; each matrix moves once.

    Few rows against a large weight, as when decoding, make the bytes the limit.
    """
    size, peak = (4, m.tf32_flop_per_s) if tf32 else (2, m.bf16_flop_per_s)
    flop = 2.0 * rows * inner * columns
    nbytes = size * (rows * inner + inner * columns + rows * columns)
    least = max(flop / peak, nbytes / m.hbm_bytes_per_s)
    kind = F32 if tf32 else F16 if half else BF16
    dims: Any = [[rows, inner], [inner, columns]]
    types, values = [kind, kind], ["", ""]
    outer: Outer = ("aten::matmul", dims, types, values)
    if op == "addmm":
        dims, types, values = [[columns], *dims, [], []], [kind] * 3 + ["Scalar"] * 2, ["", "", "", "1", "1"]
        outer = ("aten::linear", [[rows, inner], [columns, inner], [columns]], [kind] * 3, [""] * 3)
    return Work(
        operator=f"aten::{op}",
        kernel=m.gemm_tf32 if tf32 else m.gemm.replace("bf16", "f16") if half else m.gemm,
        area="compute" if flop / peak >= nbytes / m.hbm_bytes_per_s else "memory",
        least_s=least,
        duration_ns=_ns(least / share),
        dims=dims,
        types=types,
        values=values,
        wrappers=(outer,),
    )


def gemm_fp8(m: Machine, share: float, rows: int, inner: int, columns: int) -> Work:
    """A scaled product of 8-bit operands with a bf16 result."""
    flop = 2.0 * rows * inner * columns
    nbytes = rows * inner + inner * columns + 2 * rows * columns
    least = max(flop / m.fp8_flop_per_s, nbytes / m.hbm_bytes_per_s)
    return Work(
        operator="aten::_scaled_mm",
        kernel="sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize1x1x1_"
        "execute_segment_k_off_kernel__5x_cublas",
        area="compute",
        least_s=least,
        duration_ns=_ns(least / share),
        dims=[[rows, inner], [inner, columns], [], [], [], [], [], []],
        types=[FP8, FP8, F32, F32, "", "", "Scalar", "Scalar"],
        values=["", "", "", "", "", "", "15", "True"],
    )


def gemm_f32(m: Machine, share: float, rows: int, inner: int, columns: int) -> Work:
    """A product in float32 proper, without tensor cores."""
    flop = 2.0 * rows * inner * columns
    dims: Any = [[rows, inner], [inner, columns]]
    names = {8: "ampere_sgemm_128x128_nn", 9: "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_cublas"}
    return Work(
        operator="aten::mm",
        kernel=names[m.major],
        area="compute",
        least_s=flop / m.f32_flop_per_s,
        duration_ns=_ns(flop / m.f32_flop_per_s / share),
        dims=dims,
        types=[F32, F32],
        values=["", ""],
        wrappers=(("aten::matmul", dims, [F32, F32], ["", ""]),),
    )


def gemv(m: Machine, share: float, inner: int, columns: int) -> Work:
    """One row against a weight, as each token of a decoder has it: the weight moves once."""
    nbytes = 2 * (inner + inner * columns + columns)
    least = nbytes / m.hbm_bytes_per_s
    dims: Any = [[1, inner], [inner, columns]]
    linear: Any = [[1, inner], [columns, inner], []]
    return Work(
        operator="aten::mm",
        kernel="void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 1, 32, 4, 1024, "
        "cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<__nv_bfloat16 const>>>(cublasGemvParamsEx)",
        area="memory",
        least_s=least,
        duration_ns=_ns(least / share),
        dims=dims,
        types=[BF16, BF16],
        values=["", ""],
        wrappers=(("aten::linear", linear, [BF16, BF16, ""], ["", "", ""]),),
    )


def all_to_all(share: float, elements: int, ranks: list[int], *, link_bytes_per_s: float) -> Work:
    """Every rank keeps 1 / n of its elements and sends the rest."""
    n = len(ranks)
    least = (n - 1) / n * 2.0 * elements / link_bytes_per_s
    return Work(
        operator="c10d::alltoall_base_",
        kernel="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        area="network",
        least_s=least,
        duration_ns=_ns(least / share),
        dims=[[elements], [elements], [], [], [], [], []],
        types=[BF16, BF16, "", "ScalarList", "ScalarList", "Scalar", "Scalar"],
        values=["", "", "", "[]", "[]", "True", "-1"],
        record={
            "Collective name": "all_to_all",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": n,
            "dtype": "BFloat16",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(ranks),
        },
    )


def bmm(m: Machine, share: float, batch: int, rows: int, inner: int, columns: int) -> Work:
    """A batch of products."""
    flop = 2.0 * batch * rows * inner * columns
    nbytes = 2 * batch * (rows * inner + inner * columns + rows * columns)
    least = max(flop / m.bf16_flop_per_s, nbytes / m.hbm_bytes_per_s)
    dims = [[batch, rows, inner], [batch, inner, columns]]
    return Work(
        operator="aten::bmm",
        kernel=m.gemm,
        area="compute",
        least_s=least,
        duration_ns=_ns(least / share),
        dims=dims,
        types=[BF16, BF16],
        values=["", ""],
        wrappers=(("aten::matmul", dims, [BF16, BF16], ["", ""]),),
    )


def flash(m: Machine, share: float, batch: int, heads: int, length: int, width: int) -> Work:
    """Attention over the full square, forward: 4 x batch x heads x length^2 x width FLOP."""
    flop = 4.0 * batch * heads * length * length * width
    least = flop / m.bf16_flop_per_s
    shape, heads_first = [batch, length, heads, width], [batch, heads, length, width]
    outer: tuple[Outer, ...] = (
        (
            "aten::scaled_dot_product_attention",
            [heads_first] * 3 + [[]] * 5,
            [BF16] * 3 + [""] + ["Scalar"] * 4,
            ["", "", "", "", "0.", "False", "", "False"],
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            [heads_first] * 3 + [[]] * 4,
            [BF16] * 3 + ["Scalar"] * 3 + [""],
            ["", "", "", "0.", "False", "False", ""],
        ),
    )
    return Work(
        operator="aten::_flash_attention_forward",
        kernel="void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, "
        "false, "
        "cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)",
        area="compute",
        least_s=least,
        duration_ns=_ns(least / share),
        dims=[shape, shape, shape, [], [], [], [], [], [], [], [], [], [], [], []],
        types=[BF16] * 3 + ["", ""] + ["Scalar"] * 6 + [""] * 4,
        values=["", "", "", "", "", str(length), str(length), "0.", "False", "False", "0.088388", "", "", "", ""],
        wrappers=outer,
    )


#: Operator -> kernel name, tensors read, tensors written, further arguments.
_POINTWISE: dict[str, tuple[str, int]] = {
    "add": ("CUDAFunctor_add", 2),
    "mul": ("BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >", 2),
    "silu": ("silu_kernel(at::TensorIteratorBase&)::{lambda()#1}", 1),
    "gelu": ("GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#1}", 1),
    "copy_": ("direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}", 1),
}


def pointwise(
    m: Machine,
    share: float,
    op: str,
    elements: int,
    *,
    dtype: str = BF16,
    rate: float | None = None,
    duration_ns: int = 0,
    area: str = "memory",
) -> Work:
    """An elementwise operator: every input read once, the output written once.

    Args:
        m: The device.
        share: Share of the bandwidth.
        op: Its name.
        elements: Elements of each tensor.
        dtype: Their type.
        rate: The bandwidth itself instead of a share [B/s].
        duration_ns: The length itself.
        area: Whose time it is; `latency` for a kernel too small to matter.
    """
    functor, reads = _POINTWISE[op]
    nbytes = (reads + 1) * elements * _BYTES[dtype]
    least = nbytes / m.hbm_bytes_per_s
    seconds = nbytes / rate if rate else least / share
    tensors = 2 if op == "copy_" else reads
    extra = {"add": ("Scalar", "1"), "copy_": ("Scalar", "False"), "gelu": ("Scalar", "none")}.get(op)
    shape = [elements // 1024, 1024] if elements % 1024 == 0 else [elements]
    return Work(
        operator=f"aten::{op}",
        kernel=f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}, "
        f"std::array<char*, {reads + 1}ul> >"
        f"(int, at::native::{functor}, std::array<char*, {reads + 1}ul>)",
        area=area,
        least_s=least,
        duration_ns=duration_ns or _ns(seconds),
        dims=[shape] * tensors + ([[]] if extra else []),
        types=[dtype] * tensors + ([extra[0]] if extra else []),
        values=[""] * tensors + ([extra[1]] if extra else []),
    )


def layer_norm(m: Machine, share: float, rows: int, width: int) -> Work:
    """Layer norm in bf16: input, weight and bias read; output, mean and inverse deviation written."""
    nbytes = 2 * (2 * rows * width + 2 * width) + 2 * 4 * rows
    least = nbytes / m.hbm_bytes_per_s
    return Work(
        operator="aten::native_layer_norm",
        kernel="void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, "
        "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
        area="memory",
        least_s=least,
        duration_ns=_ns(least / share),
        dims=[[rows, width], [], [width], [width], []],
        types=[BF16, "ScalarList", BF16, BF16, "Scalar"],
        values=["", f"[{width}]", "", "", "1e-05"],
        wrappers=(
            (
                "aten::layer_norm",
                [[rows, width], [], [width], [width], [], []],
                [BF16, "ScalarList", BF16, BF16, "Scalar", "Scalar"],
                ["", f"[{width}]", "", "", "1e-05", "True"],
            ),
        ),
    )


def softmax(m: Machine, share: float, rows: int, width: int) -> Work:
    """Softmax of float32: read once, written once."""
    least = 2 * 4 * rows * width / m.hbm_bytes_per_s
    return Work(
        operator="aten::_softmax",
        kernel="void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, "
        "at::native::(anonymous namespace)::SoftMaxForwardEpilogue>(float*, float const*, int)",
        area="memory",
        least_s=least,
        duration_ns=_ns(least / share),
        dims=[[rows, width], [], []],
        types=[F32, "Scalar", "Scalar"],
        values=["", "-1", "False"],
        wrappers=(("aten::softmax", [[rows, width], [], []], [F32, "Scalar", ""], ["", "-1", ""]),),
    )


def device_copy(m: Machine, share: float, nbytes: int) -> Work:
    """A copy within the device: every byte is read and written."""
    least = 2 * nbytes / m.hbm_bytes_per_s
    return Work(
        operator="aten::copy_",
        kernel="Memcpy DtoD (Device -> Device)",
        area="memory",
        least_s=least,
        duration_ns=_ns(least / share),
        dims=[[nbytes // 2], [nbytes // 2], []],
        types=[BF16, BF16, "Scalar"],
        values=["", "", "False"],
        kind="copy",
        nbytes=nbytes,
    )


def host_copy(m: Machine, share: float, nbytes: int, *, pinned: bool) -> Work:
    """A copy from the host: its bytes over one direction of PCIe."""
    least = nbytes / m.pcie_bytes_per_s
    return Work(
        operator="aten::copy_",
        kernel=f"Memcpy HtoD ({'Pinned' if pinned else 'Pageable'} -> Device)",
        area="host",
        least_s=least,
        duration_ns=_ns(least / share),
        dims=[[nbytes // 4], [nbytes // 4], []],
        types=[F32, F32, "Scalar"],
        values=["", "", "True" if pinned else "False"],
        kind="copy",
        nbytes=nbytes,
        wrappers=(
            (
                "aten::to",
                [[nbytes // 4], [], [], [], []],
                [F32, "Device", "Scalar", "Scalar", ""],
                ["", "cuda:0", "6", "False", ""],
            ),
            (
                "aten::_to_copy",
                [[nbytes // 4], [], [], [], [], [], []],
                [F32, "Scalar", "", "", "", "Scalar", ""],
                ["", "6", "", "", "", "False", ""],
            ),
        ),
    )


_COLLECTIVES = {
    # recorded name, operator, kernel, traffic of a device over S, S is input or output
    "all_reduce": ("allreduce", "c10d::allreduce_", "AllReduce_Sum_bf16_RING_LL", 2.0),
    "all_gather": ("_allgather_base", "c10d::_allgather_base_", "AllGather_RING_LL", 1.0),
    "reduce_scatter": ("_reduce_scatter_base", "c10d::_reduce_scatter_base_", "ReduceScatter_Sum_bf16_RING_LL", 1.0),
}


def collective(
    share: float, op: str, elements: int, ranks: list[int], *, link_bytes_per_s: float, duration_ns: int = 0
) -> Work:
    """A collective over bf16: a device must send (n - 1) / n x S, twice for an all-reduce, over its own link.

    S is what one rank holds: before it, or after it for an all-gather (the definition of NCCL's tests).
    """
    recorded, operator, kernel, times = _COLLECTIVES[op]
    n = len(ranks)
    least = times * (n - 1) / n * 2.0 * elements / link_bytes_per_s
    small = elements // n
    into, out = {
        "all_reduce": (elements, elements),
        "all_gather": (small, elements),
        "reduce_scatter": (elements, small),
    }[op]
    dims: Any = {
        "all_reduce": [[[elements]], [], [], [], []],
        "all_gather": [[elements], [small], [], [], []],
        "reduce_scatter": [[small], [elements], [], [], [], []],
    }[op]
    tensors = 1 if op == "all_reduce" else 2
    return Work(
        operator=operator,
        kernel=f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)",
        area="network",
        least_s=least,
        duration_ns=duration_ns or _ns(least / share),
        dims=dims,
        types=["TensorList" if op == "all_reduce" else BF16] * tensors + [""] * (len(dims) - tensors),
        values=[""] * len(dims),
        record={
            "Collective name": recorded,
            "In msg nelems": into,
            "Out msg nelems": out,
            "Group size": n,
            "dtype": "BFloat16",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(ranks),
        },
    )
