"""The program must not notice that it is recorded: everything it can see is compared with a plain run."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from mansard.core.errors import InputError, UsageError
from mansard.trace.recorders.record import Recording, read_meta, record

LOOK = """
import sys, os, json
seen = {
    "argv": sys.argv, "orig": sys.orig_argv[1:], "path0": sys.path[0], "name": __name__, "file": __file__,
    "spec": getattr(__spec__, "name", None), "package": __package__, "loader": type(__loader__).__name__,
    "globals": sorted(globals()), "main_is_ours": sys.modules["__main__"].__dict__ is globals(),
    "numpy": "numpy" in sys.modules, "cwd": os.getcwd(), "stdin": sys.stdin.read(), "env": dict(os.environ),
    "trace": sys.gettrace() is None, "doc": __doc__, "flags": str(sys.flags),
}
print(json.dumps(seen))
"""


def guest(tmp_path: Path, *program: str, module: bool = False, stdin: str = "", cwd: Path | None = None):
    """Run in a fresh parent, whose own streams are pipes; return the finished parent and the recording's directory."""
    out = tmp_path / f"rec{len(list(tmp_path.iterdir()))}"
    code = (
        "import sys; from pathlib import Path; from mansard.trace.recorders.record import record; "
        f"r = record({list(program)!r}, module={module}, directory=Path({str(out)!r})); sys.exit(r.exit_code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=stdin, capture_output=True, text=True, cwd=cwd or tmp_path, timeout=120
    )
    return done, out


def plain(tmp_path: Path, *program: str, stdin: str = "", cwd: Path | None = None):
    return subprocess.run(
        [sys.executable, *program], input=stdin, capture_output=True, text=True, cwd=cwd or tmp_path, timeout=120
    )


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def test_script_sees_what_python_shows_it(tmp_path):
    write(tmp_path / "sub" / "look.py", LOOK)
    ours, _ = guest(tmp_path, "sub/look.py", "a b", "--x=1", stdin="in\nput")
    theirs = plain(tmp_path, "sub/look.py", "a b", "--x=1", stdin="in\nput")
    assert json.loads(ours.stdout) == json.loads(theirs.stdout)
    assert (ours.stderr, ours.returncode) == (theirs.stderr, theirs.returncode)


def test_module_sees_what_python_m_shows_it(tmp_path):
    write(tmp_path / "pkg" / "__init__.py", "")
    write(tmp_path / "pkg" / "helper.py", "VALUE = 7")
    write(tmp_path / "pkg" / "look.py", "from .helper import VALUE\n" + LOOK)
    ours, _ = guest(tmp_path, "pkg.look", "x", module=True)
    theirs = plain(tmp_path, "-m", "pkg.look", "x")
    assert json.loads(ours.stdout) == json.loads(theirs.stdout)
    assert ours.returncode == theirs.returncode == 0


def test_directory_with_main_runs(tmp_path):
    write(tmp_path / "app" / "__main__.py", "import sys, part; print(part.A, sys.argv, __name__)")
    write(tmp_path / "app" / "part.py", "A = 5")
    ours, _ = guest(tmp_path, "app", "y")
    assert ours.stdout == plain(tmp_path, "app", "y").stdout == "5 ['app', 'y'] __main__\n"


@pytest.mark.parametrize(
    ("body", "code", "finding"),
    [
        ("import sys; sys.exit(3)", 3, "program_failed"),
        ("import sys; sys.exit('a message')", 1, "program_failed"),
        ("import sys; sys.exit()", 0, "no_framework"),
        ("import os; print('x', flush=True); os._exit(5)", 5, "program_failed"),
        ("def f():\n    1 / 0\nf()", 1, "program_crashed"),
        ("def f(:", 1, "program_crashed"),
        ("raise KeyboardInterrupt", 130, "program_interrupted"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143, "program_killed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "program_killed"),
        (
            "import sys\nsys.excepthook = lambda *a: print('hooked', a[0].__name__)\nraise ValueError",
            1,
            "program_crashed",
        ),
        ("import atexit; atexit.register(print, 'bye'); print('hi')", 0, "no_framework"),
    ],
)
def test_every_way_to_end_is_the_programs_own(tmp_path, body, code, finding):
    write(tmp_path / "end.py", body)
    ours, out = guest(tmp_path, "end.py")
    theirs = plain(tmp_path, "end.py")
    theirs_code = 128 - theirs.returncode if theirs.returncode < 0 else theirs.returncode
    assert ours.returncode == theirs_code == code
    assert (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr)
    assert finding in recorded_codes(out, ours.returncode)


def recorded_codes(out: Path, code: int) -> list[str]:
    from mansard.trace.recorders.record import _summary

    return [f.code for f in _summary(out, ("x",), code).findings]


def test_missing_script_and_module(tmp_path):
    ours, _ = guest(tmp_path, "nowhere.py")
    theirs = plain(tmp_path, "nowhere.py")
    assert (ours.returncode, ours.stderr) == (theirs.returncode, theirs.stderr)
    ours, _ = guest(tmp_path, "no_such_module", module=True)
    theirs = plain(tmp_path, "-m", "no_such_module")
    assert (ours.returncode, ours.stderr) == (theirs.returncode, theirs.stderr)


def test_large_output_passes_untouched(tmp_path):
    write(tmp_path / "loud.py", "for i in range(50000): print('line', i)")
    ours, _ = guest(tmp_path, "loud.py")
    assert ours.stdout.splitlines()[-1] == "line 49999"
    assert len(ours.stdout.splitlines()) == 50000


def test_children_of_the_program_do_not_record(tmp_path):
    write(
        tmp_path / "spawner.py",
        """
        import multiprocessing, os, subprocess, sys
        def work(n):
            assert "mansard" not in " ".join(os.environ)
            return n * n, type(sys.modules["__main__"]).__name__
        if __name__ == "__main__":
            for how in ("fork", "spawn"):
                with multiprocessing.get_context(how).Pool(2) as pool:
                    print([n for n, _ in pool.map(work, range(4))])
            print(subprocess.run([sys.executable, "-c", "print('grandchild')"], capture_output=True, text=True).stdout)
        """,
    )
    ours, out = guest(tmp_path, "spawner.py")
    assert ours.stdout == "[0, 1, 4, 9]\n[0, 1, 4, 9]\ngrandchild\n\n", ours.stderr
    assert ours.returncode == 0
    assert sorted(p.name for p in out.iterdir()) == ["meta.json"]
    assert read_meta(out)["state"] == "finished"


def test_interrupt_from_the_terminal_reaches_the_program(tmp_path):
    write(
        tmp_path / "waits.py",
        """
        import time
        try:
            print("ready", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("cleaning up", flush=True)
            raise
        """,
    )
    out = tmp_path / "rec"
    code = (
        "import sys; from pathlib import Path; from mansard.trace.recorders.record import record; "
        f"r = record(['waits.py'], directory=Path({str(out)!r})); print('parent', r.exit_code); sys.exit(r.exit_code)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    os.killpg(parent.pid, signal.SIGINT)  # as the terminal does: to the whole group
    rest, errors = parent.communicate(timeout=30)
    assert rest == "cleaning up\nparent 130\n"
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert parent.returncode == 130
    assert read_meta(out)["exit"]["kind"] == "interrupted"


def test_termination_of_the_parent_is_handed_on(tmp_path):
    write(tmp_path / "waits.py", "import time; print('ready', flush=True); time.sleep(60)")
    out = tmp_path / "rec"
    code = (
        "from pathlib import Path; from mansard.trace.recorders.record import record; "
        f"print(record(['waits.py'], directory=Path({str(out)!r})).exit_code)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    time.sleep(0.05)
    parent.terminate()
    assert parent.communicate(timeout=30)[0] == "143\n"
    assert read_meta(out)["exit"] == {"kind": "signal", "code": 143}


def test_wrong_use_is_refused(tmp_path):
    with pytest.raises(UsageError, match="No program"):
        record([], directory=tmp_path / "a")
    write(tmp_path / "b" / "something", "")
    with pytest.raises(UsageError, match="not empty"):
        record(["x.py"], directory=tmp_path / "b")
    with pytest.raises(InputError, match="Cannot start the interpreter"):
        record(["x.py"], directory=tmp_path / "c", python=str(tmp_path / "nopython"))
    with pytest.raises(InputError, match="holds no recording"):
        read_meta(tmp_path / "c")
    write(tmp_path / "d" / "meta.json", '{"schema": "recording/1", "argv": []}')
    with pytest.raises(InputError, match="lacks exit, findings, frameworks, state, windows"):
        read_meta(tmp_path / "d")
    write(tmp_path / "d" / "meta.json", "[1]")
    with pytest.raises(InputError, match="has schema 'list'"):
        read_meta(tmp_path / "d")


def test_recording_of_a_program_without_a_framework_says_so(tmp_path):
    write(tmp_path / "nothing.py", "x = 1")
    done: Recording = record([str(tmp_path / "nothing.py")], directory=tmp_path / "rec")
    assert not done.usable
    assert done.frameworks == ()
    assert [f.code for f in done.findings] == ["no_framework"]


def test_termination_is_recorded_after_the_program_has_forked(tmp_path):
    write(
        tmp_path / "forks.py",
        """
        import os, signal
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)  # the default action: it ends here
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
        """,
    )
    ours, out = guest(tmp_path, "forks.py")
    assert ours.returncode == 143
    assert read_meta(out)["exit"] == {"kind": "signal", "code": 143}
