"""`mansard diagnose` and `mansard.diagnose(...)`: the same inputs, options, refusals and document."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import click
import pytest

import mansard
from mansard.cli.diagnose import command
from mansard.cli.main import main
from mansard.core.errors import MansardError
from mansard.diagnose.asked import CHOICES, Asked
from mansard.report.diagnose_document import answer_document
from mansard.report.diagnose_text import answer_text

STEP_US = 2000
#: Not of the question: where the answer goes and how it is made.
OF_THE_VERB = {"files", "targets", "output", "force", "as_json", "jobs", "engine", "verbose", "help"}
SIDE = 4096


def put(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def profile(path: Path, *, rank: int = 0, world: int = 1, late: int = 0, name: str = "NVIDIA H100 80GB HBM3") -> str:
    """Four steps: a product of 1200 us (later where the rank is late), then an all-reduce up to the same end."""
    events: list[dict[str, Any]] = []
    reduce = {"Collective name": "allreduce", "In msg nelems": 16 * 1024 * 1024, "dtype": "BFloat16", "Group size": 2, "Process Group Ranks": "[0, 1]"}  # fmt: skip
    for n in range(4):
        t = 1000 + n * STEP_US
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 7, "ts": t, "dur": STEP_US, "args": {}})  # fmt: skip
        dims = {"Input Dims": [[SIDE, SIDE], [SIDE, SIDE]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 7, "ts": t, "dur": 20, "args": {"External id": n + 1, **dims}})  # fmt: skip
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 7, "ts": t + 2, "dur": 4, "args": {"correlation": n + 1, "External id": n + 1}})  # fmt: skip
        events.append({"ph": "X", "cat": "kernel", "name": "sm90_xmma_gemm_bf16bf16", "pid": 0, "tid": 7, "ts": t + 10, "dur": 1200 + late, "args": {"device": 0, "stream": 7, "correlation": n + 1, "External id": n + 1}})  # fmt: skip
        events.append({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "pid": 0, "tid": 9, "ts": t + 1210 + late, "dur": 780 - late, "args": {"device": 0, "stream": 9, "correlation": 100 + n, **reduce}})  # fmt: skip
    document = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": name}], "traceEvents": events}
    return put(
        path,
        document | ({"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}} if world > 1 else {}),
    )


@pytest.fixture(scope="module")
def put_all(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    tmp_path = tmp_path_factory.mktemp("files")
    from mansard.core import Area, Ceiling, Ceilings, Kind, Resource

    peak = Ceiling(
        resource=Resource(area=Area.COMPUTE, dtype="bf16", accumulate="f32", engine="matrix"), value=700e12, unit="FLOP/s",
        kind=Kind.MEASURED, scope="device", source="measured",
    )  # fmt: skip
    ceilings = Ceilings(ceilings=(peak,), source="mansard measure", machine={"threads": 2})
    found = {
        "profile": profile(tmp_path / "p.json"),
        "rank0": profile(tmp_path / "r0.json", world=2),
        "rank1": profile(tmp_path / "r1.json", rank=1, world=2, late=300),
        "model": put(tmp_path / "config.json", {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 2,
            "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 4096, "vocab_size": 1000, "torch_dtype": "bfloat16",
            "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        }),
        "facts": put(tmp_path / "facts.json", {"workload": {"tokens": SIDE, "real_tokens": SIDE // 2}}),
    }  # fmt: skip
    found["ceilings"] = put(
        tmp_path / "ceilings.json",
        {
            "schema": "ceilings/1",
            "source": ceilings.source,
            "machine": dict(ceilings.machine),
            "ceilings": [c.to_json() for c in ceilings.ceilings],
        },
    )
    found["document"] = str(tmp_path / "done.json")
    Path(found["document"]).write_text(json.dumps(plain(mansard.diagnose(found["profile"]))))
    return found


def plain(answer: Any) -> Any:
    from mansard.core.document import dumps

    return json.loads(dumps(answer_document(answer)))


def of_verb(args: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", *args])
    return int(ended.value.code or 0), capsys.readouterr().out


def untimed(document: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in document.items() if k not in ("made", "created", "time", "written")}


@pytest.mark.parametrize(
    ("files", "options"),
    [
        (("profile",), {}),
        (("profile", "ceilings"), {"target": "share >= 0.1"}),
        (("profile", "model"), {"phase": "train", "batch": 2, "seq": 128}),
        (("model", "ceilings", "profile"), {"phase": "train", "seq": 128, "dtype": "bf16"}),
        (("rank0", "rank1"), {"node_devices": 8, "hardware": "h100-sxm"}),
        (("profile",), {"flops": "1 TFLOP", "flops_of": "step", "flops_scope": "job", "peak": "900 TFLOP/s", "gpus": 1}),
        (("profile",), {"network_rate": "400 Gbit/s", "node_devices": 1, "marker": "ProfilerStep*", "trim": ("0", "5 ms")}),
        (("document",), {"target": ("share >= 0.1", "step <= 1 s")}),
        (("profile",), {"facts": "facts"}),
    ],
)  # fmt: skip
def test_the_verb_and_the_call_give_one_document(
    put_all: dict[str, str], capsys: pytest.CaptureFixture[str], files: tuple[str, ...], options: dict[str, Any]
) -> None:
    options = {k: put_all[v] if k == "facts" else v for k, v in options.items()}
    words = []
    for name, value in options.items():
        each = value if isinstance(value, tuple) and name == "target" else (value,)
        for one in each:
            words += [f"--{name.replace('_', '-')}", *([str(w) for w in one] if isinstance(one, tuple) else [str(one)])]
    paths = [put_all[f] for f in files]
    _, out = of_verb([*paths, *words, "--json"], capsys)
    answer = mansard.diagnose(*paths, **options)
    assert untimed(json.loads(out)) == untimed(plain(answer))
    if not options:  # the text is made of the same answer, whatever was asked
        _, text = of_verb([*paths, *words], capsys)
        assert text == answer_text(answer, width=80)


@pytest.mark.parametrize(
    ("files", "options", "said"),
    [
        (("ceilings",), {}, "there is no run among the files"),
        (("model",), {}, "mansard estimate MODEL"),
        (("model", "ceilings"), {}, "--on CEILINGS"),
        (("profile", "document"), {}, "two questions"),
        (("document", "ceilings"), {}, "judged already"),
        (("document",), {"peak": "1 TFLOP/s"}, "--peak: a finished diagnosis was judged already"),
        (("document", "document"), {"json": True}, "several are given"),
        (("profile", "model"), {}, "was not said"),
        (("profile", "model", "model"), {}, "second model"),
        (("profile",), {"phase": "train"}, "describe a model's work"),
        (("profile",), {"batch": 8}, "describe a model's work"),
        (("profile",), {"flops_are": "train"}, "say what --flops count"),
        (("profile", "model"), {"flops": 1e12, "phase": "train", "seq": 8}, "both say how much work"),
        (("profile",), {"device": 3}, "no device 3"),
        (("rank0", "rank1"), {"device": 0}, "several are given"),
        (("profile",), {"peak": "989 TFLOPS"}, "ambiguous"),
        (("profile",), {"peak": -1.0}, "expected a positive number"),
        (("profile",), {"target": "speed > 1"}, "speed"),
    ],
)  # fmt: skip
def test_what_one_refuses_the_other_refuses(
    put_all: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    files: tuple[str, ...],
    options: dict[str, Any],
    said: str,
) -> None:
    paths = [put_all[f] for f in files]
    words = [w for k, v in options.items() if k != "json" for w in (f"--{k.replace('_', '-')}", str(v))]
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", *paths, *words, *(["--json"] if "json" in options else [])])
    seen = capsys.readouterr()
    with pytest.raises(MansardError) as refused:
        mansard.diagnose(*paths, **{k: v for k, v in options.items() if k != "json"})
    whole = f"{refused.value.message} {refused.value.hint or ''}"
    assert said in whole
    assert said in " ".join((seen.err + seen.out).split())
    assert ended.value.code == refused.value.exit_code


def test_each_option_has_one_keyword() -> None:
    options = {p.name: p for p in command.params if p.name not in OF_THE_VERB}
    assert set(options) == {f.name for f in fields(Asked)}
    for f in fields(Asked):
        default = options[f.name].default
        assert (None if repr(default) == "Sentinel.UNSET" else default) in (f.default, None) or f.default is MISSING
    for name, allowed in CHOICES.items():
        kind = options[name].type
        assert isinstance(kind, click.Choice)
        assert tuple(kind.choices) == allowed
        with pytest.raises(MansardError, match=name):
            mansard.diagnose("p", **{name: "nonsense"})


def test_records_stand_for_their_files(put_all: dict[str, str]) -> None:
    from mansard.core.ceilings import read_ceilings

    opened = mansard.open_trace(put_all["profile"])
    by_records = mansard.diagnose(read_ceilings(Path(put_all["ceilings"])), opened)
    by_files = mansard.diagnose(put_all["profile"], put_all["ceilings"])
    # 2 x 4096^3 FLOP in 1.2 ms are 114.5 TFLOP/s of the 700 that were measured: 16.4 %.
    row = next(o for o in by_records.diagnosis.operators if "gemm" in o.name)
    assert row.shares_by_kind["measured"] == pytest.approx(2 * SIDE**3 / 1.2e-3 / 700e12)
    assert by_records.diagnosis.verdict == by_files.diagnosis.verdict
    assert mansard.diagnose(by_files.diagnosis, target="share >= 0.1").diagnosis is by_files.diagnosis
    ranks = mansard.diagnose(mansard.open_trace(put_all["rank0"]), put_all["rank1"], node_devices=8)
    assert ranks.job is not None
    assert ranks.job.straggler == "1"
    with pytest.raises(MansardError, match="nothing that a diagnosis is made of"):
        mansard.diagnose(3)
    with pytest.raises(MansardError, match="nothing to diagnose"):
        mansard.diagnose()


def test_a_recording_is_judged_by_ceilings_from_elsewhere(
    put_all: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    from mansard.core import Demand
    from mansard.core.errors import UndecidedError
    from mansard.trace.run import Operator, Part, RunTrace, Steps

    product = Operator(
        name="aten::mm",
        category="gemm",
        part=Part.FORWARD,
        shapes="",
        scope="device",
        demand=Demand(flop={("bf16", "f32"): 3.5e9}),
    )
    start = np.arange(4, dtype=np.int64) * 10_000
    run = RunTrace(
        framework="torch", operators=(product,), op=np.zeros(4, dtype=np.int32), start_ns=start, end_ns=start + 10_000,
        lane=np.zeros(4, dtype=np.int32), wait_start_ns=start[:0], wait_end_ns=start[:0], wait_cause=(),
        steps=Steps(start_ns=start, end_ns=start + 10_000, source="loop", note="one pass"), window_ns=(0, 40_000), threads=2,
    )  # fmt: skip
    monkeypatch.setattr("mansard.diagnose.answer.load_run", lambda _folder: run)
    folder = tmp_path / "rec"
    folder.mkdir()
    meta = {"schema": "recording/1", "argv": ["train.py", "--fast"], "state": "finished", "frameworks": ["torch"], "windows": [],
            "exit": {"kind": "normal", "code": 0}, "findings": []}  # fmt: skip
    (folder / "meta.json").write_text(json.dumps(meta))
    found = mansard.diagnose(folder, put_all["ceilings"]).diagnosis
    # 3.5 GFLOP in 10 us are 350 of 700 TFLOP/s.
    assert found.operators[0].share_of_ceiling == pytest.approx(0.5)
    assert found.program == "train.py --fast"
    code, out = of_verb([str(folder), put_all["ceilings"], "--json"], capsys)
    assert (code, json.loads(out)["program"]) == (0, "train.py --fast")
    with pytest.raises(UndecidedError, match="is not in its recording"):
        mansard.diagnose(folder)
    with pytest.raises(MansardError, match="--peak: this is about a profile"):
        mansard.diagnose(folder, put_all["ceilings"], peak=1e12)
    with pytest.raises(MansardError, match="cannot change it"):
        mansard.diagnose(folder, put_all["ceilings"], put_all["model"])
