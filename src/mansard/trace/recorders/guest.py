"""The child's side of a recording: run the program exactly as `python` would, with a controller beside it.

Only the standard library is imported here: what the program sets before it imports numpy or a framework must still count.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
import types
from pathlib import Path
from typing import Any, NoReturn

from mansard.trace.recorders import imports
from mansard.trace.recorders.controller import Controller

_HERE = os.path.dirname(os.path.abspath(__file__))
_RUNPY = runpy.__dict__  # `python -m` itself starts in runpy._run_module_as_main, which has no public name


def run(arguments: list[str]) -> None:
    """Run the program and finish the recording, whichever way the program ends.

    Args:
        arguments: The recording directory, a JSON object of options (`module`, `argv`), as `record` passes them.
    """
    directory, options = Path(arguments[0]), json.loads(arguments[1])
    program: list[str] = options["program"]
    module: bool = options["module"]
    sys.orig_argv[:] = [sys.orig_argv[0], *options["interpreter_options"], *(["-m"] if module else []), *program]
    controller = Controller(directory, argv=program, module=module)
    controller.install()
    imports.watch(controller.framework_imported)
    try:
        _run_module(program) if module else _run_script(program)
    except SystemExit as exit_:
        controller.finish(_exit_status(exit_.code))
        raise
    except BaseException as error:
        _finish_after_traceback(controller, error)
        raise
    controller.finish({"kind": "ended", "code": 0})


def _exit_status(code: object) -> dict[str, Any]:
    if code is None:
        return {"kind": "exit", "code": 0}
    return {"kind": "exit", "code": code & 0xFF if isinstance(code, int) else 1}


def _finish_after_traceback(controller: Controller, error: BaseException) -> None:
    """Let the interpreter report the error as it would without us, and write the recording after that."""
    hook = sys.excepthook

    def shown(kind: type[BaseException], value: BaseException, trace: types.TracebackType | None) -> None:
        trace = _without_us(trace)
        value.__traceback__ = trace
        try:
            hook(kind, value, trace)
        finally:
            if sys.stderr is not None:
                sys.stderr.flush()
            what = "interrupted" if isinstance(error, KeyboardInterrupt) else "exception"
            controller.finish({"kind": what, "code": 130 if what == "interrupted" else 1, "error": kind.__name__})

    sys.excepthook = shown


def _without_us(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return the traceback without its leading frames that are ours; None where the program had not begun."""
    while trace is not None:
        if os.path.dirname(os.path.abspath(trace.tb_frame.f_code.co_filename)) != _HERE:
            break
        trace = trace.tb_next
    return trace


def _run_module(program: list[str]) -> None:
    sys.argv[:] = ["-m", *program[1:]]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    _clear_main()
    sys.argv[0] = program[0]
    _as_python_m(program[0])


def _as_python_m(name: str) -> None:
    # runpy._run_module_as_main takes the name from its argument and puts the file's path into sys.argv[0].
    _RUNPY["_run_module_as_main"](name)


def _run_script(program: list[str]) -> None:
    path = program[0]
    sys.argv[:] = list(program)
    if os.path.isdir(path) or _is_archive(path):
        sys.path.insert(0, path)
        _clear_main()
        _RUNPY["_run_module_as_main"]("__main__", False)
        return
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    try:
        with io.open_code(os.path.abspath(path)) as file:
            source = file.read()
    except OSError as error:
        _cannot_open(path, error)
    name = os.path.abspath(path)
    namespace = _clear_main()
    from importlib.machinery import SourceFileLoader

    namespace.update(__file__=name, __cached__=None, __loader__=SourceFileLoader("__main__", name))
    exec(compile(source, name, "exec", dont_inherit=True), namespace)


def _cannot_open(path: str, error: OSError) -> NoReturn:
    """Say what `python` says when it cannot open the script, and end as it does."""
    text = f"{sys.orig_argv[0]}: can't open file {os.path.abspath(path)!r}: [Errno {error.errno}] {error.strerror}\n"
    sys.stderr.write(text)
    raise SystemExit(2)


def _is_archive(path: str) -> bool:
    import zipfile

    return os.path.isfile(path) and zipfile.is_zipfile(path)


def _clear_main() -> dict[str, Any]:
    """Empty the namespace of `__main__`, which the program takes over, and return it."""
    namespace = sys.modules["__main__"].__dict__
    namespace.clear()
    namespace.update(
        __name__="__main__",
        __doc__=None,
        __package__=None,
        __loader__=None,
        __spec__=None,
        __annotations__={},
        __builtins__=sys.modules["builtins"],
    )
    return namespace
