"""The CSV files of one rocprofv3 recording together, its counters, launch shapes, and the texts of markers."""

from __future__ import annotations

import json

import pytest

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.report.trace_document import copies_document
from mansard.trace.device_facts import launch_rows
from mansard.trace.launch_shape import LaunchShape, WavefrontLimits, workgroups_per_unit
from mansard.trace.launches import join_launches
from mansard.trace.open import open_trace, recognise
from mansard.trace.timeline import Kind

_KERNELS = (
    '"Guid","Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp",'
    '"End_Timestamp","Lds_Block_Size","Scratch_Size","Vgpr_Count","Accum_Vgpr_Count","Sgpr_Count","Workgroup_Size_X","Workgroup_Size_Y",'
    '"Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
    '"g1","KERNEL_DISPATCH","Agent 5",1,0,7,1,3,"norm(int)",11,1000,1300,8456,0,16,0,32,256,1,1,233472,1,1\n'
    '"g1","KERNEL_DISPATCH","Agent 4",1,0,7,2,1,"edge",12,1400,1450,0,0,20,4,64,32,1,1,4096,1,1\n'
)
_AGENTS = (
    '"Node_Id","Agent_Type","Max_Waves_Per_Simd","Lds_Size_In_Kb","Wave_Front_Size","Cu_Count","Simd_Per_Cu","Name","Product_Name"\n'
    '0,"CPU",0,0,0,48,0,"EPYC","EPYC"\n4,"GPU",8,64,64,228,4,"gfx942","AMD Instinct MI300A"\n5,"GPU",8,64,64,228,4,"gfx942","AMD Instinct MI300A"\n'
)
_CALLS = '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
_COPIES = (
    '"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
    '"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE","Agent 0","Agent 5",13,500,600\n'
    '"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST","Agent 5","Agent 0",14,1500,1800\n'
)


@pytest.fixture
def recording(tmp_path):
    (tmp_path / "7_kernel_trace.csv").write_text(_KERNELS.replace('"g1",', "").replace('"Guid",', ""))
    (tmp_path / "7_agent_info.csv").write_text(_AGENTS)
    (tmp_path / "7_memory_copy_trace.csv").write_text(_COPIES)
    (tmp_path / "7_hip_api_trace.csv").write_text(
        _CALLS
        + '"HIP_RUNTIME_API","hipLaunchKernel",7,7,11,900,950\n"HIP_RUNTIME_API","hipLaunchKernel",7,7,12,960,990\n'
    )
    (tmp_path / "7_marker_api_trace.csv").write_text(_CALLS + '"MARKER_CORE_API","step 1",7,7,9,800,995\n')
    return tmp_path


def test_the_files_of_a_recording_are_read_together(recording):
    for path in (recording, recording / "7_kernel_trace.csv", recording / "7_hip_api_trace.csv"):
        t = open_trace(path)
        assert [len(t.of(k)) for k in (Kind.KERNEL, Kind.COPY, Kind.RUNTIME, Kind.ANNOTATION)] == [2, 2, 2, 1]
        # the GPUs are agents 4 and 5; a copy belongs to the GPU it comes from or goes to, never to the host's agent 0
        assert [t.devices[d].number for d in t.of(Kind.KERNEL).device] == [1, 0]
        assert [t.devices[d].number for d in t.of(Kind.COPY).device] == [1, 1]
        assert {str(d.name) for d in t.devices} == {"AMD Instinct MI300A"}
        assert int(join_launches(t).launched.sum()) == 2
        assert t.names[t.of(Kind.ANNOTATION).name[0]] == "step 1"
        assert "read_together" in {f.code for f in t.findings}


def test_copies_without_a_size_have_no_bytes(recording):
    rows = copies_document(open_trace(recording))
    assert all(isinstance(r["bytes"], Unknown) and r["without_size"] == 1 for r in rows)


def test_how_full_a_compute_unit_is(recording):
    rows = {r.name: r for r in launch_rows(open_trace(recording, launch_shapes=True))}
    norm, edge = rows["norm(int)"], rows["edge"]
    # 233472 / 256 = 912 workgroups; LDS 8456 -> 17 x 512 = 8704, of 65536: 7; waves 8 x 4 / 4 = 8; 7 it is
    assert (norm.shape.blocks, norm.per_unit) == (912, 7)
    assert norm.filled_ratio == pytest.approx(912 / (7 * 228))
    # one wave of 32 work-items of 64 lanes; 20 + 4 = 24 registers leave 512 / 24 = 21 waves, more than 8: 8 x 4 = 32
    assert (edge.shape.blocks, edge.shape.registers, edge.per_unit) == (128, 24, 32)


def test_registers_and_barriers_limit_workgroups():
    unit = WavefrontLimits(gfx="gfx90a", waves=8, simds=4, shared_bytes=65536)
    of = lambda **k: workgroups_per_unit(LaunchShape(**{"blocks": 1, "shared_bytes": 0, **k}), unit)  # noqa: E731
    assert of(threads=256, registers=256) == 2  # 512 / 256 = 2 waves a SIMD, 8 in all, 4 each
    assert of(threads=128, registers=0) == 16  # 32 waves / 2 = 16, as many as there are barriers
    assert isinstance(of(threads=1024, registers=130), Unknown)  # 3 x 4 = 12 < 16 waves
    other = WavefrontLimits(gfx="gfx1100", waves=16, simds=2, shared_bytes=65536)
    assert isinstance(
        workgroups_per_unit(LaunchShape(blocks=1, threads=64, registers=8, shared_bytes=0), other), Unknown
    )


def test_a_kernel_with_several_counters_counts_once(tmp_path):
    head = '"Correlation_Id","Dispatch_Id","Agent_Id","Process_Id","Kernel_Name","Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"\n'
    rows = [f'{d},{d},4,9,"k","{c}",1.0,{100 * d},{100 * d + 30}\n' for d in (1, 2) for c in "ABC"]
    path = tmp_path / "9_counter_collection.csv"
    path.write_text(head + "".join(rows))
    t = open_trace(path)
    assert t.of(Kind.KERNEL).duration_ns.tolist() == [30, 30]  # not 6 x 30
    assert "counter_collection" in {f.code for f in t.findings}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"Name","Calls","TotalDurationNs","AverageNs"\n"k",1,2,2\n', "summary by name"),
        (_AGENTS, "describes the devices"),
        (
            '"Correlation_Id","Dispatch_Id","Kernel_Name","Counter_Name","Counter_Value"\n1,1,"k","A",1\n',
            "without their times",
        ),
    ],
)
def test_files_without_events_are_named(tmp_path, text, words):
    path = tmp_path / "other.csv"
    path.write_text(text)
    assert recognise(path) == "rocprofv3_csv"
    with pytest.raises(InputError, match=words):
        open_trace(path)


def test_several_recordings_in_a_folder_are_not_merged(tmp_path):
    for pid in (1, 2):
        (tmp_path / f"{pid}_kernel_trace.csv").write_text(_KERNELS)
    with pytest.raises(InputError, match="2 recordings"):
        open_trace(tmp_path)
    assert len(open_trace(tmp_path / "2_kernel_trace.csv").of(Kind.KERNEL)) == 2


def test_json_has_shapes_and_the_texts_of_markers(tmp_path):
    agent = {"type": 2, "id": {"handle": 70}, "product_name": "AMD Instinct MI300X", "name": "gfx942", "cu_count": 304, "simd_per_cu": 4,
             "max_waves_per_simd": 8, "lds_size_in_kb": 64, "wave_front_size": 64,
             "mem_banks": [{"heap_type": 1, "size_in_bytes": 192 << 30}, {"heap_type": 0, "size_in_bytes": 5}]}  # fmt: skip
    info = {"agent_id": {"handle": 70}, "kernel_id": 1, "group_segment_size": 0, "workgroup_size": {"x": 512, "y": 1, "z": 1},
            "grid_size": {"x": 1025, "y": 2, "z": 1}}  # fmt: skip
    tool = {
        "agents": [agent],
        "kernel_symbols": [{"kernel_id": 1, "formatted_kernel_name": "k", "arch_vgpr_count": 64, "accum_vgpr_count": 0}],
        "strings": {"marker_api": [{"key": 3, "value": "forward"}]},
        "buffer_records": {
            "kernel_dispatch": [{"start_timestamp": 10, "end_timestamp": 20, "dispatch_info": info}],
            "marker_api": [{"start_timestamp": 5, "end_timestamp": 30, "thread_id": 1, "correlation_id": {"internal": 3}}],
        },
    }  # fmt: skip
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [tool]}))
    t = open_trace(path, launch_shapes=True)
    (row,) = launch_rows(t)
    # ceil(1025 / 512) x 2 = 6 workgroups of 8 waves; 512 / 64 = 8 waves a SIMD, 32 in all: 4
    assert (row.shape.blocks, row.shape.threads, row.per_unit) == (6, 512, 4)
    assert t.names[t.of(Kind.ANNOTATION).name[0]] == "forward"
    assert t.devices[0].memory_bytes == 192 << 30
