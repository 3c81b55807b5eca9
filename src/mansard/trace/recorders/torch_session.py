"""PyTorch's own profiler as a recording session: Kineto with shapes, all threads, no Python stacks."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mansard.trace.recorders.process import leave_without_destructors
from mansard.trace.recorders.session import Controller, Session
from mansard.trace.recorders.torch_lists import LISTS_FILE, tensor_lists
from mansard.trace.recorders.torch_recompute import mark_recompute, unmark_recompute

TRACE_FILE = "kineto.json"
_LOG_LEVEL = "KINETO_LOG_LEVEL"


def make_session() -> Session:
    """Return a session for the imported torch."""
    return TorchSession()


class TorchSession:
    """Kineto through `torch.autograd.profiler.profile`, the object that `torch.profiler` uses as well."""

    framework = "torch"

    def __init__(self) -> None:
        self._profile: Any = None
        self._target: Path | None = None
        self._ours = False
        self._cuda = False
        self._handles: list[Any] = []
        self._optimizers: dict[int, int] = {}
        self._used = False
        self._marked: list[tuple[Any, str, Any]] | None = None
        self._distributed: dict[str, Any] = {}

    def install(self, controller: Controller) -> None:
        """Mark optimizer steps, notice when the program starts the profiler itself, and report ready."""
        import torch
        from torch.autograd import profiler
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def stepped(optimizer: object, *_: object) -> None:
            number = self._optimizers.setdefault(id(optimizer), len(self._optimizers))
            controller.mark(f"optimizer#{number}")

        self._handles.append(register_optimizer_step_post_hook(stepped))
        self._marked = mark_recompute()
        for name in ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy"):
            original = getattr(profiler, name, None)
            if original is not None:
                setattr(profiler, name, self._giving_way(original, controller))

        def devices_up() -> None:
            self._cuda = True  # torch calls this while it initialises, before it says that it has
            controller.ready()

        if torch.backends.cuda.is_built():
            # To ask for CUDA is to initialise it, which the program may not want yet; once it does, profiling starts anew.
            torch.cuda._lazy_call(devices_up)
        if not self._cuda:
            controller.ready()

    def _giving_way(self, original: Any, controller: Controller) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._ours:
                controller.yield_profiler()
            return original(*args, **kwargs)

        return call

    @contextlib.contextmanager
    def _own(self) -> Iterator[None]:
        """Profiler calls of ours: the program did not make them, and Kineto need not announce them on stderr."""
        self._ours = True
        silent = _LOG_LEVEL not in os.environ
        if silent:
            os.environ[_LOG_LEVEL] = "99"  # read when the profiler is prepared (torch 2.13)
        try:
            yield
        finally:
            self._ours = False
            if silent:
                os.environ.pop(_LOG_LEVEL, None)

    def start(self, directory: Path) -> None:
        """Start Kineto."""
        self._used = True
        with self._own():
            self._profile = self._new_profile()
            self._profile.__enter__()
        self._target = directory
        self._distributed = _distributed() or self._distributed  # programs leave their group before they end

    def _new_profile(self) -> Any:
        from torch.autograd import profiler

        options: dict[str, Any] = {"use_cpu": True, "record_shapes": True, "use_kineto": True}
        if self._cuda:
            options["use_device"] = "cuda"
        config = _config()
        if config is not None:
            options["experimental_config"] = config
        return profiler.profile(**options)

    def stop(self) -> list[str]:
        """Stop Kineto and write its JSON."""
        if self._profile is None or self._target is None:
            return []
        profile, self._profile = self._profile, None
        self._distributed = _distributed() or self._distributed
        with self._own():
            profile.__exit__(None, None, None)
            profile.export_chrome_trace(str(self._target / TRACE_FILE))
            lists = _lists(profile)
        if not lists:
            return [TRACE_FILE]
        (self._target / LISTS_FILE).write_text(json.dumps(lists), encoding="utf-8")
        return [TRACE_FILE, LISTS_FILE]

    def synchronize(self) -> None:
        """Wait for the devices that the program has used."""
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def release(self) -> None:
        """Take the optimizer hook away: nothing more will be recorded."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._marked is not None:
            unmark_recompute(self._marked)

    def abandon(self) -> None:
        """In a forked child: the inherited profiler must not go on collecting there."""
        if self._profile is not None:
            import torch

            torch._C._autograd._enable_record_function(False)
            self._profile = None
        if self._used:
            leave_without_destructors()

    def metadata(self) -> dict[str, Any]:
        """Return version, threads, devices and build facts."""
        import torch

        facts: dict[str, Any] = {
            "version": torch.__version__,
            "threads": torch.get_num_threads(),
            "interop_threads": torch.get_num_interop_threads(),
            "devices": [],
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "mkldnn": bool(torch.backends.mkldnn.is_available()),
            "num_optimizers": len(self._optimizers),
            "recompute_marked": self._marked is not None,
        }
        if self._distributed:
            facts["distributed"] = self._distributed
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            facts["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
            facts["cuda"] = torch.version.cuda or torch.version.hip
        return facts

    def calibrate(self) -> dict[str, float]:
        """Time the smallest operation with the profiler off, then on.

        Returns:
            `op_floor_s` and `op_overhead_s` [s per operation, wall clock], and `op_recorded_floor_s`: the duration
            the profiler itself records for that operation [s].
        """
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            return {"op_floor_s": 0.0, "op_overhead_s": 0.0}
        with torch.no_grad():
            one = torch.ones(1, device="cpu")
            off = min(_adds_s(torch, one) for _ in range(12))
            with self._own():
                profile = self._new_profile()
                profile.__enter__()
                on = min(_adds_s(torch, one) for _ in range(8))
                profile.__exit__(None, None, None)
        facts = {"op_floor_s": off, "op_overhead_s": max(0.0, on - off)}
        recorded = _recorded_s(profile)
        if recorded is not None:
            facts["op_recorded_floor_s"] = recorded
        return facts


_ADDS = 1000


def _adds_s(torch: Any, one: Any) -> float:
    add = torch.add
    start = time.perf_counter()
    for _ in range(_ADDS):
        add(one, one)
    return (time.perf_counter() - start) / _ADDS


def _recorded_s(profile: Any) -> float | None:
    """Median duration of the recorded additions [s]; None where this build does not tell."""
    try:
        spans = sorted(e.duration_ns() for e in profile.kineto_results.events() if e.name() == "aten::add")
    except (AttributeError, TypeError):
        return None
    return float(spans[len(spans) // 2]) / 1e9 if spans else None


def _distributed() -> dict[str, Any]:
    """Return the process groups that the program is in now; empty where it is in none."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return {}
    found = {"world_size": dist.get_world_size(), "rank": dist.get_rank(), "backend": str(dist.get_backend())}
    groups = getattr(getattr(dist.distributed_c10d, "_world", None), "pg_map", {})
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        found["group_sizes"] = sorted({int(group.size()) for group in groups})
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if local.isdigit():
        found["local_world_size"] = int(local)
    return found


def _config() -> Any:
    """Record all threads, as far as this build of torch can."""
    try:
        from torch._C._profiler import _ExperimentalConfig
    except ImportError:
        return None
    make: Any = _ExperimentalConfig
    with contextlib.suppress(TypeError):
        return make(profile_all_threads=True)
    return None


def _lists(profile: Any) -> dict[int, Any]:
    """Return the lists of tensors of recorded calls, which the JSON leaves incomplete; empty where this build has no tree."""
    try:
        return tensor_lists(profile.kineto_results.experimental_event_tree())
    except (AttributeError, RuntimeError, TypeError):
        return {}
