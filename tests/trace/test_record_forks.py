"""A program that forks by hand and lets its child end like any program."""

import os
import subprocess
import sys
import textwrap

CHILD = """
import atexit, os, sys, time
import torch

x = torch.ones(64, 64)
for _ in range(50):
    y = x @ x
child = os.fork()
if child == 0:
    atexit.register(print, "the child's own atexit")
    print("the child's buffered output")
    sys.exit(7)
for _ in range(600):  # 60 s
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        break
    time.sleep(0.1)
else:
    os.kill(child, 9)
    sys.exit("the child did not end")
print("child", os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_ends_with_its_own_status_and_output(tmp_path):
    (tmp_path / "forks.py").write_text(textwrap.dedent(CHILD))
    code = (
        "import sys; from pathlib import Path; from mansard.trace.recorders.record import record; "
        "sys.exit(record(['forks.py'], directory=Path('recording')).exit_code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120, env=dict(os.environ)
    )
    assert done.stdout.splitlines() == ["the child's buffered output", "the child's own atexit", "child 7"], done.stderr
    assert done.returncode == 0
