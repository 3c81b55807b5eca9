"""Run every example of this folder under `mansard run` and write a report and a document for each."""

from __future__ import annotations

import argparse
import html
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

MAIN_EXAMPLE = "gpt_train_jax"
STYLE = "body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:3rem auto;padding:0 1rem}dt{margin-top:1.2rem}"


def overview(folder: Path) -> None:
    """Write index.html, the verdict of each program with a link to its page, and report.html, the page of the main one."""
    items = []
    for path in sorted(folder.glob("*_*.json")):
        verdict = json.loads(path.read_text(encoding="utf-8")).get("verdict", {}).get("sentence", "no verdict")
        items.append(f'<dt><a href="{path.stem}.html">{path.stem}</a></dt><dd>{html.escape(verdict)}</dd>')
    page = f'<!doctype html><meta charset="utf-8"><title>Mansard: examples</title><style>{STYLE}</style>'
    (folder / "index.html").write_text(f"{page}<h1>Examples</h1><dl>{''.join(items)}</dl>", encoding="utf-8")
    main_page = folder / f"{MAIN_EXAMPLE}.html"
    if main_page.is_file():
        shutil.copyfile(main_page, folder / "report.html")
    print(f"\nverdicts of all programs: {folder / 'index.html'}; the page of {MAIN_EXAMPLE}: {folder / 'report.html'}")


def _from_here(program: Path) -> str:
    """Return the program's path as someone in this folder would type it."""
    try:
        return str(program.relative_to(Path.cwd()))
    except ValueError:
        return str(program)


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
        command += ["-o", f"{folder / program.stem}.json", _from_here(program)]
        code = subprocess.run(command, check=False).returncode
        if code not in (0, 3):
            failed.append(f"{program.name} (exit {code})")
    overview(folder)
    if failed:
        print("failed: " + ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
