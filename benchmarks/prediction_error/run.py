"""How far off our predictions are for public runs: each source of runs predicted from the other sources.

    python benchmarks/prediction_error/run.py [--shared DIR] [--keep FOLDER]

The rows and what is known of each are in `tests/predict/public_runs.py`; it is `mansard validate --runs` on them.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder of the recorded runs")
    parser.add_argument("--keep", type=Path, help="keep runs.csv and validation.json here")
    options = parser.parse_args()
    spec = importlib.util.spec_from_file_location("public_runs", ROOT / "tests/predict/public_runs.py")
    public = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(public)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        runs = public.write_runs(options.shared, folder)
        command = ["validate", "--runs", str(runs), "-o", str(folder / "validation.json"), "--force"]
        return subprocess.run([sys.executable, "-m", "mansard", *command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
