"""Run every example of this folder under `mansard run` and write a report and a document for each."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder for reports and documents")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for program in sorted(Path(__file__).parent.glob("*_*.py")):
        framework = "torch" if program.stem.endswith("_torch") else "jax" if program.stem.endswith("_jax") else None
        if framework is None:
            continue
        if importlib.util.find_spec(framework) is None:
            print(f"{program.name}: left out, {framework} is not installed")
            continue
        print(f"\n=== {program.name}", flush=True)
        command = [sys.executable, "-m", "mansard", "run", "--force", "--report", f"{folder / program.stem}.html"]
        code = subprocess.run([*command, "-o", f"{folder / program.stem}.json", str(program)], check=False).returncode
        if code not in (0, 3):
            failed.append(f"{program.name} (exit {code})")
    if failed:
        print("failed: " + ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
