"""A diagnosis written by hand: one GPT training step on a two-core CPU, with every kind of answer in it.

Shapes: batch 4, sequence 256, width 384, 6 layers, 6 heads of 64, feed-forward 1536, vocabulary 8192; 1024 tokens.
"""

from __future__ import annotations

from mansard.core import SUSPECTS, Area, Bound, Ceiling, Grade, Implausible, Kind, Resource, Unknown
from mansard.diagnose.records import Advice, Diagnosis, Note, OperatorRow, PartTime, StepTime, Verdict

STEP_S = 0.782
FIXED_S = 1.3e-6


def _roof(dtype: str, engine: str, value: float, **more: object) -> Ceiling:
    return Ceiling(
        resource=Resource(area=Area.COMPUTE, dtype=dtype, accumulate="f32", engine=engine),
        value=value,
        unit="FLOP/s",
        kind=Kind.MEASURED,
        ci95=(value * 0.99, value * 1.01),
        conditions={"threads": 2, "call": "torch.mm 2048^3", **more},
        source="mansard measure",
    )


def _band(level: str, value: float, mix: str) -> Ceiling:
    return Ceiling(
        resource=Resource(area=Area.MEMORY, level=level, mix=mix, page="huge", store="regular"),
        value=value,
        unit="B/s",
        kind=Kind.MEASURED,
        ci95=(value * 0.98, value * 1.02),
        conditions={"threads": 2},
        source="mansard measure",
    )


CEILINGS = (
    _roof("f32", "matrix", 205e9),
    _roof("bf16", "matrix", 429e9),
    _roof("f32", "vector", 235e9),
    Ceiling(
        resource=Resource(area=Area.COMPUTE, dtype="f32", engine="special"),
        value=1.9e9,
        unit="evaluations/s",
        kind=Kind.MEASURED,
        source="mansard measure",
    ),
    _band("l1", 912e9, "read"),
    _band("l2", 468e9, "read"),
    _band("l3", 187e9, "read"),
    _band("dram", 36.2e9, "copy"),
    Ceiling(
        resource=Resource(area=Area.LATENCY, backend="torch"),
        value=FIXED_S,
        unit="s",
        kind=Kind.MEASURED,
        ci95=(1.2e-6, 1.5e-6),
        source="mansard measure",
    ),
)
F32, DRAM, L3, TORCH = (CEILINGS[i] for i in (0, 7, 6, 8))

MM = "2mnk FLOP; (mk + kn + mn) x 4 B"
ELEMENTWISE = "0 matrix FLOP; every operand read once, the result written once"
# name, category, part, shapes, calls, time [ms], FLOP, bytes, limiting ceiling, level, formula
# aten::addmm qkv: 2 x 1024 x 384 x 1152 x 6 layers = 5.436 GFLOP
TABLE = (
    ("aten::mm [ff1 backward]", "matmul", "backward", "[1024,1536] x [1536,384]", 12, 105.2, 14.496e9, 118e6, F32, "dram", MM),
    ("aten::mm [ff2 backward]", "matmul", "backward", "[1024,384] x [384,1536]", 12, 101.7, 14.496e9, 118e6, F32, "dram", MM),
    ("aten::mm [head backward]", "matmul", "backward", "[1024,8192] x [8192,384]", 2, 84.1, 12.885e9, 95.4e6, F32, "dram", MM),
    ("aten::mm [qkv backward]", "matmul", "backward", "[1024,1152] x [1152,384]", 12, 76.9, 10.872e9, 97e6, F32, "dram", MM),
    ("aten::addmm [ff1]", "matmul", "forward", "[1024,384] x [384,1536]", 6, 46.4, 7.248e9, 61.4e6, F32, "dram", MM),
    ("aten::addmm [ff2]", "matmul", "forward", "[1024,1536] x [1536,384]", 6, 47.3, 7.248e9, 61.4e6, F32, "dram", MM),
    ("aten::mm [head]", "matmul", "forward", "[1024,384] x [384,8192]", 1, 41.8, 6.442e9, 47.7e6, F32, "dram", MM),
    ("aten::addmm [qkv]", "matmul", "forward", "[1024,384] x [384,1152]", 6, 36.0, 5.436e9, 48.5e6, F32, "l3", MM),
    ("aten::mm [proj backward]", "matmul", "backward", "[1024,384] x [384,384]", 12, 29.3, 3.624e9, 44e6, F32, "l3", MM),
    ("aten::addmm [proj]", "matmul", "forward", "[1024,384] x [384,384]", 6, 13.1, 1.812e9, 22e6, F32, "l3", MM),
    ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention", "backward", "[4,6,256,64]", 6, 24.6,
     2.426e9, 66e6, F32, "l3", "backward = 2 x forward; causal, (s+1)/2 keys per query"),
    ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention", "forward", "[4,6,256,64]", 6, 11.9, 1.213e9,
     37.7e6, F32, "l3", "2 x 2 b h s (s+1)/2 d FLOP; causal"),
    ("Optimizer.step#AdamW.step", "elementwise", "optimizer", "[16.9 M]", 1, 21.4, 0.0, 473e6, DRAM, "dram", ELEMENTWISE),
    ("aten::gelu_backward", "elementwise", "backward", "[4,256,1536]", 6, 14.7, 0.0, 113e6, DRAM, "dram", ELEMENTWISE),
    ("aten::gelu", "elementwise", "forward", "[4,256,1536]", 6, 12.9, 0.0, 75.5e6, DRAM, "dram", ELEMENTWISE),
    ("aten::_log_softmax", "softmax", "forward", "[1024,8192]", 1, 6.4, 0.0, 67.1e6, DRAM, "dram", ELEMENTWISE),
    ("aten::_log_softmax_backward_data", "softmax", "backward", "[1024,8192]", 1, 5.2, 0.0, 100.7e6, DRAM, "dram", ELEMENTWISE),
    ("aten::native_layer_norm_backward", "norm", "backward", "[4,256,384]", 13, 5.1, 0.0, 61.3e6, L3, "l3", ELEMENTWISE),
    ("aten::native_layer_norm", "norm", "forward", "[4,256,384]", 13, 3.9, 0.0, 40.9e6, L3, "l3", ELEMENTWISE),
    ("aten::add", "elementwise", "forward", "[4,256,384]", 25, 3.3, 0.0, 118e6, L3, "l3", ELEMENTWISE),
    ("aten::embedding_dense_backward", "gather", "backward", "[4,256] -> [8192,384]", 2, 9.6, 0.0, 28.4e6, DRAM, "dram", ELEMENTWISE),
    ("aten::zero_", "copy", "optimizer", "[]", 150, 0.31, 0.0, 600.0, TORCH, "l1", ELEMENTWISE),
    ("aten::_foreach_norm", "reduction", "optimizer", "[16.9 M]", 1, 0.62, 0.0, 67.6e6, DRAM, "dram", ELEMENTWISE),
    ("my_ext::rotary_embed", "unknown", "forward", "[4,256,6,64]", 12, 6.3, None, None, None, None, ""),
    ("aten::copy_", "copy", "input", "[4,256]", 4, 0.9, 0.0, 16384.0, TORCH, "l1", ELEMENTWISE),
    ("aten::select", "view", "other", "[4,256]", 60, 0.42, 0.0, 0.0, TORCH, None, "a view moves nothing"),
)  # fmt: skip
NOT_KNOWN = Unknown("no cost is known for my_ext::rotary_embed", ("register its FLOP and bytes",))


def _row(item: tuple) -> OperatorRow:  # type: ignore[type-arg]
    name, category, part, shapes, calls, milliseconds, flop, size, ceiling, level, formula = item
    seconds = milliseconds * 1e-3
    if ceiling is None:
        return OperatorRow(
            name=name, category=category, part=part, shapes=shapes, source="model.py:88", calls=calls, time_s=seconds,
            flop=NOT_KNOWN, bytes=NOT_KNOWN, flop_per_byte=None, bound=Bound.UNDETERMINED, limiting_ceiling="",
            level=None, ceiling_value=None, ceiling_unit="", share_of_ceiling=NOT_KNOWN, headroom_s=NOT_KNOWN,
            grade=Grade.ASSUMED, reason=NOT_KNOWN.reason, formula=formula,
        )  # fmt: skip
    unit = ceiling.resource.area
    amount = {Area.COMPUTE: flop, Area.MEMORY: size}.get(unit, 0.0)
    least_s = (amount / ceiling.value if unit is not Area.LATENCY else 0.0) + calls * FIXED_S
    share = least_s / seconds
    bound = Bound(unit.value) if 0.3 <= share <= 1.03 else Bound.UNDETERMINED
    return OperatorRow(
        name=name, category=category, part=part, shapes=shapes, source="model.py:41", calls=calls, time_s=seconds,
        flop=flop, bytes=size, flop_per_byte=flop / size if size else None, bound=bound,
        limiting_ceiling=ceiling.resource.label, level=level, ceiling_value=ceiling.value, ceiling_unit=ceiling.unit,
        share_of_ceiling=share if share <= 1.03 else Implausible(share, SUSPECTS),
        headroom_s=max(0.0, seconds - least_s), grade=Grade.MODELLED,
        reason=f"{share:.2f} of the {ceiling.resource.label} ceiling", formula=formula,
        full_square_flop=flop * 2 * 256 / 257 if category == "attention" else None,
    )  # fmt: skip


def sample() -> Diagnosis:
    """Return the diagnosis; every figure is made up but fits the others."""
    operators = tuple(sorted((_row(item) for item in TABLE), key=lambda o: -o.time_s))
    shares = {"compute": 0.7883, "memory": 0.0871, "network": 0.0, "host": 0.0613, "latency": 0.0094}
    shares["unattributed"] = 1.0 - sum(shares.values())
    matrix_flop = sum(item[6] or 0.0 for item in TABLE)
    return Diagnosis(
        program="python examples/gpt_torch.py --steps 20 --width 384",
        framework="torch",
        verdict=Verdict(
            bound=Bound.COMPUTE,
            limiting_ceiling=F32.resource.label,
            level=None,
            link=None,
            share_of_ceiling=0.698,
            headroom_s=0.186,
            time_share=0.7883,
            grade=Grade.MODELLED,
            sentence="Compute-bound: 79 % of the step is matrix work in f32, which runs at 70 % of the f32 matrix "
            "ceiling (205 GFLOP/s); at most 186 ms of each 782 ms step can be won there.",
            evidence=(
                "12 matrix operators hold 79 % of the step and reach 61 to 77 % of the f32 matrix ceiling",
                "their intensity (82 to 135 FLOP/byte) is far right of the ridge at 5.7 FLOP/byte",
            ),
            counter_evidence=("the two cores were shared with another process for 3 of 17 steps",),
            will_not_help=("faster memory: only 9 % of the step waits for it", "a larger batch: intensity is past the ridge"),
        ),
        step=StepTime(
            median_s=STEP_S,
            count=17,
            ci95_s=(0.775, 0.791),
            profiled_median_s=0.809,
            profiler_overhead_ratio=0.0345,
            source="optimizer",
            note="one optimizer.step() to the next",
        ),
        time_shares=shares,
        parts=(
            PartTime(kind="forward", time_s=0.2304, bound=Bound.COMPUTE),
            PartTime(kind="backward", time_s=0.4564, bound=Bound.COMPUTE),
            PartTime(kind="optimizer", time_s=0.0223, bound=Bound.MEMORY),
            PartTime(kind="input", time_s=0.0479, bound=Bound.HOST),
            PartTime(kind="other", time_s=0.0250, bound=Bound.UNDETERMINED),
        ),
        operators=operators,
        flop_per_step=matrix_flop,
        full_square_flop_per_step=matrix_flop + 3.639e9 * (2 * 256 / 257 - 1),
        bytes_per_step=sum(item[7] or 0.0 for item in TABLE),
        mfu_ratio=matrix_flop / STEP_S / 205e9,
        advice=(
            Advice(rule="lower_precision", gain_s=0.312, text="Run the matrix work in bf16 (torch.autocast): this CPU multiplies "
                   "bf16 at 429 GFLOP/s, f32 at 205.", evidence="79 % of the step is f32 matrix work"),
            Advice(rule="data_loader", gain_s=0.048, text="Prefetch the next batch in a worker (num_workers=1).",
                   evidence="48 ms of every step wait for the next batch"),
            Advice(rule="fuse_elementwise", gain_s=0.021, text="Fuse GELU with its matmul (torch.compile).",
                   evidence="gelu moves 189 MB through DRAM per step"),
            Advice(rule="many_small", gain_s=0.0002, text="Use foreach zero_grad(set_to_none=True).", evidence="150 calls of 2 us"),
        ),
        ceilings=CEILINGS,
        receipt={
            "peak": "f32 matrix 205 GFLOP/s, measured, dense, node",
            "scope": "node, 2 cores",
            "convention": "MAC = 2 FLOP; causal attention counted causal; bytes are compulsory traffic",
            "assumed": ["operands of consecutive operators do not stay in cache", "no overlap between operators"],
            "environment": {
                "cpu": "AMD EPYC 9654 (2 cores of a virtual machine)",
                "memory_bytes": 8.3e9,
                "python": "3.11.2",
                "torch": "2.13.0+cpu",
                "threads": 2,
            },
            "overlap": "none",
        },
        findings=(
            Note(code="unclassified_operator", text="1 operator (0.8 % of the step) has no known cost: my_ext::rotary_embed."),
            Note(code="implausible_share", text="aten::_foreach_norm is faster than its DRAM ceiling allows; it is not used for the verdict."),
            Note(code="foreign_load", text="Another process used a core during 3 of 17 steps; they are in the spread."),
        ),
        attributed_ratio=0.992,
    )  # fmt: skip
