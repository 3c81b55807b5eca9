"""JAX's own profiler as a recording session: XPlane without Python frames, and the programs that ran as HLO text."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mansard.trace.recorders.session import Controller, Session

TRACE_FILE = "trace.xplane.pb"
INDEX_FILE = "programs.json"
_COMPILING = "/jax/core/compile/"  # tracing, lowering and compilation of a program
_COMPILED = "/jax/core/compile/backend_compile_duration"


def make_session() -> Session:
    """Return a session for the imported jax."""
    return JaxSession()


class JaxSession:
    """`jax.profiler` with host events down to single thunks, Python frames off.

    Backends are never initialised from here: until the program's first compilation nothing but two hooks is in place.
    """

    framework = "jax"
    all_threads = True  # the profiler records whatever thread launches something

    def __init__(self) -> None:
        self._controller: Controller | None = None
        self._directory: Path | None = None
        self._ours = False
        self._listening = False
        self._compiled = False
        self._profiling = False
        self._held: dict[int, Any] = {}

    def install(self, controller: Controller) -> None:
        """Listen for compilations, and notice when the program starts the profiler itself."""
        import jax

        self._controller = controller
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        self._listening = True
        for name in ("start_trace", "start_server"):
            self._wrap(jax.profiler, name)

    def _wrap(self, module: Any, name: str) -> None:
        original = getattr(module, name, None)
        if original is None:
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._ours and self._controller is not None:
                self._controller.yield_profiler()
            return original(*args, **kwargs)

        call.__name__, call.__doc__ = name, original.__doc__
        # `jax.profiler.trace` calls the function by its name in the module that defines it.
        home = sys.modules.get(getattr(original, "__module__", ""))
        for place in (module, home):
            if place is not None and getattr(place, name, None) is original:
                setattr(place, name, call)

    def _heard(self, event: str, seconds: float, **_: Any) -> None:
        """A program was compiled: backends exist, and there is something to record."""
        if self._profiling and self._controller is not None and event.startswith(_COMPILING):
            self._controller.set_aside(seconds)
        if event != _COMPILED or not self._listening:
            return
        if self._profiling:
            self._hold()
        if not self._compiled and self._controller is not None and not self._ours:
            self._compiled = True
            self._controller.ready()

    def _hold(self) -> None:
        """Keep the programs that exist now until the window ends, so that one the program drops can still be read."""
        for client in self._clients():
            with contextlib.suppress(Exception):
                for executable in client.live_executables():
                    self._held.setdefault(id(executable), executable)

    @staticmethod
    def _clients() -> list[Any]:
        """Clients of the backends that the program has initialised; none is initialised here."""
        bridge = sys.modules.get("jax._src.xla_bridge")
        backends = getattr(bridge, "_backends", {}) if bridge is not None else {}
        return list(backends.values())

    @contextlib.contextmanager
    def _own(self) -> Iterator[None]:
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    def start(self, directory: Path) -> None:
        """Start the profiler; what is compiled already is kept track of from here on."""
        self._directory = directory
        self._begin(directory)
        self._profiling = True
        self._hold()

    def _begin(self, directory: Path) -> None:
        import jax

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        options.host_tracer_level = 2
        # The programs are written as text below; the protos would carry every constant array along.
        options.enable_hlo_proto = False
        with self._own():
            jax.profiler.start_trace(str(directory / "profile"), profiler_options=options)

    def stop(self) -> list[str]:
        """Stop the profiler, write its file and the text of every program that may have run."""
        import jax

        if self._directory is None or not self._profiling:
            return []
        directory, self._directory = self._directory, None
        self._hold()
        self._profiling = False
        names = [TRACE_FILE]
        with self._own():
            data = _stop_and_take()
            if data is None:
                jax.profiler.stop_trace()
        if data is not None:
            (directory / TRACE_FILE).write_bytes(data)
        else:
            found = sorted((directory / "profile").rglob("*.xplane.pb"), key=lambda p: p.stat().st_mtime)
            if found:
                found[-1].replace(directory / TRACE_FILE)
            else:
                names = []
        _remove_tree(directory / "profile")
        names += self._write_programs(directory)
        self._held.clear()
        return names

    def _write_programs(self, directory: Path) -> list[str]:
        """Write each distinct program once; a number tells programs of one name apart."""
        texts: dict[str, dict[str, Any]] = {}
        modules: dict[str, list[tuple[Any, str]]] = {}
        for executable in self._held.values():
            with contextlib.suppress(Exception):
                for module in executable.hlo_modules():
                    text = module.to_string()
                    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
                    modules.setdefault(module.name, []).append((module, digest))
                    texts.setdefault(digest, {"name": module.name, "text": text, "program_ids": []})
        for same_name in modules.values():
            if len({digest for _, digest in same_name}) > 1:
                for module, digest in same_name:
                    with contextlib.suppress(Exception):
                        texts[digest]["program_ids"].append(_module_id(module.as_serialized_hlo_module_proto()))
        index = []
        for digest, entry in texts.items():
            name = f"program-{digest}.hlo.txt"
            (directory / name).write_text(entry.pop("text"), encoding="utf-8")
            index.append({"file": name, **entry})
        (directory / INDEX_FILE).write_text(json.dumps(index), encoding="utf-8")
        return [INDEX_FILE, *(e["file"] for e in index)]

    def synchronize(self) -> None:
        """Wait for everything that was dispatched: live arrays, and effects such as callbacks."""
        import jax

        if not self._clients():
            return
        with contextlib.suppress(Exception):
            jax.effects_barrier()
        # Only the state of the arrays matters here; an error in one of them is the program's to see.
        for array in jax.live_arrays():
            with contextlib.suppress(Exception):
                array.block_until_ready()

    def release(self) -> None:
        """Nothing more will be recorded: stop listening."""
        self._listening = False
        self._held.clear()

    def abandon(self) -> None:
        """In a forked child: the inherited profiler session is not ours there."""
        self._listening = self._profiling = False
        self._directory = None
        self._held.clear()

    def metadata(self) -> dict[str, Any]:
        """Return versions, devices, threads and settings that change what runs."""
        import jax

        facts: dict[str, Any] = {
            "version": jax.__version__,
            "jaxlib_version": getattr(sys.modules.get("jaxlib"), "__version__", ""),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "threads": len(os.sched_getaffinity(0)),
            "devices": [],
            "platform": "",
            "num_devices": 0,
        }
        with contextlib.suppress(Exception):
            facts["enable_x64"] = bool(jax.config.jax_enable_x64)
            facts["default_matmul_precision"] = str(jax.config.jax_default_matmul_precision)
            facts["cpu_async_dispatch"] = bool(jax.config.jax_cpu_enable_async_dispatch)
        if self._clients():
            devices = jax.local_devices()
            facts["platform"] = devices[0].platform
            facts["devices"] = [_kind(d) for d in devices]
            facts["num_devices"] = len(devices)
            facts["process_count"] = jax.process_count()
        return facts

    def calibrate(self) -> dict[str, float]:
        """Time the smallest compiled call, and a loop of small operations, with the profiler off and on.

        Returns:
            `op_floor_s`: the smallest call with the profiler off, back to back, waited for at the end [s];
            `op_overhead_s`: what the profiler adds to an operation inside a program [s];
            `launch_overhead_s`: what it adds to a whole call [s].
        """
        if not self._clients():
            return {"op_floor_s": 0.0, "op_overhead_s": 0.0}
        self._listening = False
        call, loop, value = _probes()
        _calls_s(call, value, 200)
        _calls_s(loop, value, 3)
        off = min(_calls_s(call, value, 200) for _ in range(10))
        loop_off = min(_calls_s(loop, value, 10) for _ in range(5))
        on, _ = self._profiled(lambda: min(_calls_s(call, value, 200) for _ in range(5)))
        loop_on, data = self._profiled(lambda: min(_calls_s(loop, value, 10) for _ in range(3)))
        operations = _operations_in(data) / 30
        added = max(0.0, on - off)
        inside = max(0.0, loop_on - loop_off) / operations if operations else added
        return {"op_floor_s": off, "op_overhead_s": min(inside, added), "launch_overhead_s": added}

    def _profiled(self, work: Callable[[], float]) -> tuple[float, bytes]:
        """Run `work` under the profiler; return its result and the profile."""
        import shutil
        import tempfile

        scratch = Path(tempfile.mkdtemp(prefix="mansard-floor-"))
        data = None
        try:
            self._begin(scratch)
            result = work()
        finally:
            with self._own(), contextlib.suppress(Exception):
                data = _stop_and_take()
                if data is None:
                    import jax

                    jax.profiler.stop_trace()
            shutil.rmtree(scratch, ignore_errors=True)
        return result, data or b""


def _operations_in(data: bytes) -> int:
    """Operations in a profile; 0 where it cannot be read."""
    from mansard.core import InputError
    from mansard.trace.readers.xplane import parse_xspace

    try:
        plane = parse_xspace(data).plane("/host:CPU")
    except InputError:
        return 0
    return sum(int((plane.texts(line, "hlo_op")[0] >= 0).sum()) for line in plane.lines) if plane is not None else 0


def _stop_and_take() -> bytes | None:
    """Stop the session that `start_trace` began and return its profile; None where jax is built differently.

    `stop_trace` also converts the profile to other formats, which takes several times as long as the program had to wait for.
    """
    state = getattr(sys.modules.get("jax._src.profiler"), "_profile_state", None)
    session = getattr(state, "profile_session", None)
    if (
        state is None
        or session is None
        or not hasattr(session, "stop")
        or not hasattr(state, "reset")
        or not hasattr(state, "lock")
    ):
        return None
    with state.lock:
        data = session.stop()
        state.reset()
    return bytes(data)


def _probes() -> tuple[Any, Any, Any]:
    """The smallest call, a call that runs a loop of small operations, and an argument for both."""
    import jax
    import jax.numpy as jnp

    def add_one(x: Any) -> Any:
        return x + 1

    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, 100, lambda _, y: jnp.sin(y), x)

    return jax.jit(add_one), jax.jit(loop), jnp.zeros((), dtype=jnp.float32)


def _calls_s(call: Any, value: Any, count: int) -> float:
    """Seconds per call of a chain of `count` calls."""
    start = time.perf_counter()
    for _ in range(count):
        value = call(value)
    value.block_until_ready()
    return (time.perf_counter() - start) / count


def _kind(device: Any) -> str:
    return str(getattr(device, "device_kind", "") or device.platform)


def _module_id(proto: bytes) -> int:
    """Field 5 of HloModuleProto, which the profiler calls `program_id`; 0 is not written. Source: xla/service/hlo.proto."""
    at = 0
    while at < len(proto):
        tag, at = _number(proto, at)
        if tag & 7 == 0:
            value, at = _number(proto, at)
            if tag >> 3 == 5:
                return value
        elif tag & 7 == 2:
            size, at = _number(proto, at)
            at += size
        else:
            at += 8 if tag & 7 == 1 else 4
    return 0


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _remove_tree(path: Path) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)
