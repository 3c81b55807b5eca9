"""Write a synthetic Kineto trace of a given size, in the layout PyTorch writes, and print its exact totals.

Per kernel: three nested operators with shapes, one runtime call, two flow events, one Python frame, one kernel. Everything
follows from the index of the kernel, so the totals are known without reading the file back.

    python benchmarks/trace_kineto_speed/generate.py OUT.json --megabytes 1000 [--compact] [--absolute]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

NAMES = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, "
    "at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, "
    "unsigned int, float, 4> >(at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4>)",
    "triton_poi_fused_add_mul_silu_7",
)
OPS = ("aten::linear", "aten::matmul", "aten::mm")
STEP_NS, LAST_GAP_NS = 9_000, 1_337
PER_ITERATION = 2_000


def kernel_times(index: int, base_ns: int) -> tuple[int, int]:
    """Return start and duration [ns] of one kernel; no two overlap."""
    return base_ns + index * STEP_NS + 4_001, 3_000 + (index * 977) % 4_000


def us(ns: int) -> str:
    """Return nanoseconds as Kineto writes them: microseconds with three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def blocks(index: int, base_ns: int) -> Iterator[str]:
    """Yield the events around one kernel."""
    at = base_ns + index * STEP_NS
    start, length = kernel_times(index, base_ns)
    correlation, external = index + 10, 3 * index + 1
    where = '"pid": 4242, "tid": 4242'
    yield (
        f'  {{\n    "ph": "X", "cat": "python_function", "name": "model/layer.py({index % 800}): forward", {where},\n'
        f'    "ts": {us(at)}, "dur": {us(3_900)},\n    "args": {{\n      "Python parent id": {index}, "Python id": {index + 1}, "Ev Idx": {index}\n    }}\n  }}'
    )
    for depth, name in enumerate(OPS):
        yield (
            f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{name}", {where},\n    "ts": {us(at + 10 + depth)}, "dur": {us(3_000 - 2 * depth)},\n'
            f'    "args": {{\n      "External id": {external + depth},"Record function id": 0, "Concrete Inputs": ["", ""], '
            f'"Input type": ["c10::BFloat16", "c10::BFloat16"], "Input Strides": [[1024, 1], [1, 1024]], '
            f'"Input Dims": [[{8 * (index % 50 + 1)}, 1024], [1024, 2816]], "Ev Idx": {external + depth}\n    }}\n  }}'
        )
    yield (
        f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", {where},\n    "ts": {us(at + 100)}, "dur": {us(2_500)},\n'
        f'    "args": {{\n      "External id": {external + 2}, "cbid": 211, "correlation": {correlation}\n    }}\n  }}'
    )
    yield f'  {{\n    "ph": "s", "id": {correlation}, {where}, "ts": {us(at + 100)},\n    "cat": "ac2g", "name": "ac2g"\n  }}'
    yield (
        f'  {{\n    "ph": "X", "cat": "kernel", "name": "{NAMES[index % len(NAMES)]}", "pid": 0, "tid": 7,\n    "ts": {us(start)}, "dur": {us(length)},\n'
        f'    "args": {{\n      "External id": {external + 2}, "queued": 0, "device": 0, "context": 1,\n      "stream": 7, "correlation": {correlation},\n'
        f'      "registers per thread": 32, "shared memory": 0, "blocks per SM": 8.727273, "warps per SM": 69.818184,\n'
        f'      "grid": [1152, 1, 1],\n      "block": [256, 1, 1],\n      "est. achieved occupancy %": 100\n    }}\n  }}'
    )
    yield (
        f'  {{\n    "ph": "f", "id": {correlation}, "pid": 0, "tid": 7, "ts": {us(start)},\n    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }}'
    )


def write(path: Path, *, megabytes: float, compact: bool, absolute: bool) -> dict[str, int]:
    """Write the file and return its totals."""
    base_ns = 1_700_000_000_000_000_000 if absolute else 5_130_755_193_960_656
    kernels = events = written = total = 0
    with path.open("w") as out:
        out.write(
            '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}\n  ],\n'
            '  "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},\n  "traceEvents": [\n'
        )
        while written < megabytes * 1e6:
            batch = []
            for index in range(kernels, kernels + PER_ITERATION):
                texts = list(blocks(index, base_ns))
                total += kernel_times(index, base_ns)[1]
                batch += [json.dumps(json.loads(t), separators=(",", ":")) for t in texts] if compact else texts
            events += len(batch)
            text = (",\n" if kernels else "") + ",\n".join(batch)
            kernels += PER_ITERATION
            written += len(text)
            out.write(text)
        out.write('\n  ],\n  "traceName": "synthetic.json",\n  "displayTimeUnit": "ms",\n')
        out.write(f'  "baseTimeNanoseconds": {0 if absolute else 1_700_000_000_000_000_000}\n}}\n')
    return {"events": events, "kernels": kernels, "kernel_sum_ns": total, "bytes": path.stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--compact", action="store_true", help="no white space, as json.dumps writes")
    parser.add_argument("--absolute", action="store_true", help="times since 1970 instead of since a base")
    args = parser.parse_args()
    print(json.dumps(write(args.out, megabytes=args.megabytes, compact=args.compact, absolute=args.absolute)))


if __name__ == "__main__":
    main()
