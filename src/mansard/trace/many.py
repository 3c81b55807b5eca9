"""Thousands of profiles: read side by side in processes of their own, or on a Ray cluster, with the same result.

What comes back of each file is small (`trace.rank_facts`), a few files are under way at a time, and a process is replaced
after some files: memory stays where it is, however many there are. A file that fails is an answer, not the end.
"""

from __future__ import annotations

import glob
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.core.errors import InputError, MansardError, UsageError
from mansard.trace.rank_facts import RankFacts, read_facts

ENGINES = ("local", "ray")
FILES_PER_PROCESS = 64
AHEAD = 2  # files under way for each process
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedFile:
    """A file that gave nothing.

    Args:
        source: The file.
        error: Why.
    """

    source: str
    error: str


def files_of(words: Iterable[str | Path]) -> list[Path]:
    """Return the files that paths, folders and patterns name, sorted by name within each, each once.

    A folder stands for the files in it whose name does not begin with a dot; a folder that is a recording is itself one.

    Raises:
        InputError: a word names nothing.
    """
    found: dict[Path, None] = {}
    for word in words:
        path = Path(word)
        if path.is_dir() and not (path / "meta.json").is_file():
            inside = sorted(p for p in path.iterdir() if not p.name.startswith("."))
        elif path.exists() or not glob.has_magic(str(word)):
            inside = [path]
        else:
            inside = sorted(Path(p) for p in glob.glob(str(word), recursive=True))
        if not inside:
            raise InputError(f"{word} names no files", hint="give files, a folder, or a pattern in quotes")
        found.update(dict.fromkeys(inside))
    return list(found)


def read_many(
    paths: Sequence[Path],
    *,
    jobs: int | None = None,
    memory_limit: int | None = None,
    engine: str = "local",
    progress: Progress = lambda _done, _all, _name: None,
) -> tuple[list[RankFacts], list[FailedFile]]:
    """Return what each profile contributes, in the order of `paths`, and the files that failed.

    Args:
        paths: The files.
        jobs: Processes at a time; None takes one for each CPU this process may use.
        memory_limit: Bytes that reading one file may hold [B]; None has no limit.
        engine: `local`, or `ray` for a Ray cluster (RAY_ADDRESS, else a local one).
        progress: Called with files done, files in all, and the name of the last one.

    Raises:
        UsageError: no such engine.
        InputError: Ray is not installed.
    """
    if engine not in ENGINES:
        raise UsageError(f"no engine is called {engine!r}", hint=f"known: {', '.join(ENGINES)}")
    count = max(1, jobs or len(os.sched_getaffinity(0)))
    answers = _by_ray(paths, memory_limit) if engine == "ray" else _by_processes(paths, count, memory_limit)
    facts: list[RankFacts] = []
    failed: list[FailedFile] = []
    for number, answer in enumerate(answers, start=1):
        if isinstance(answer, FailedFile):
            failed.append(answer)
        else:
            facts.append(answer)
        progress(number, len(paths), answer.source)
    return facts, failed


def attempt(path: str, memory_limit: int | None = None) -> RankFacts | FailedFile:
    """Read one file; what goes wrong with it is the answer."""
    try:
        return read_facts(path, memory_limit)
    except MansardError as error:
        return FailedFile(source=path, error=error.message)
    except Exception as error:  # a defect shown by one file must not hide what the others say
        return FailedFile(source=path, error=f"{type(error).__name__}: {error}")


def _by_processes(paths: Sequence[Path], jobs: int, memory_limit: int | None) -> Iterator[RankFacts | FailedFile]:
    if jobs == 1 or len(paths) < 2:
        yield from (attempt(str(path), memory_limit) for path in paths)
        return
    left: deque[Path] = deque(paths)
    while left:
        under_way: deque[tuple[Path, Future[RankFacts | FailedFile]]] = deque()
        pool = _pool(jobs)
        try:
            while left or under_way:
                while left and len(under_way) < AHEAD * jobs:
                    path = left.popleft()
                    under_way.append((path, pool.submit(attempt, str(path), memory_limit)))
                answer = under_way[0][1].result()
                under_way.popleft()
                yield answer
        except BrokenProcessPool:
            # A process was killed, by whatever file it held: those under way are read again one by one.
            pool.shutdown(wait=True, cancel_futures=True)
            yield from (_alone(path, memory_limit) for path, _ in under_way)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=FILES_PER_PROCESS
    )


def _alone(path: Path, memory_limit: int | None) -> RankFacts | FailedFile:
    """Read a file in a process that may die of it."""
    with _pool(1) as pool:
        try:
            return pool.submit(attempt, str(path), memory_limit).result()
        except BrokenProcessPool:
            text = "the process that read it was killed (out of memory is the usual reason)"
            return FailedFile(source=str(path), error=text)


def _by_ray(paths: Sequence[Path], memory_limit: int | None) -> Iterator[RankFacts | FailedFile]:
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed", hint="pip install 'mansard[ray]'", code="missing_package") from None
    own = not ray.is_initialized()
    if own:
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, include_dashboard=False)
    try:
        task: Any = ray.remote(max_retries=1, max_calls=FILES_PER_PROCESS)(attempt)
        ahead = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        under_way: deque[tuple[Path, Any]] = deque()
        left: deque[Path] = deque(paths)
        while left or under_way:
            while left and len(under_way) < ahead:
                path = left.popleft()
                under_way.append((path, task.remote(str(path), memory_limit)))
            path, reference = under_way.popleft()
            try:
                yield ray.get(reference)
            except ray.exceptions.RayError as error:
                yield FailedFile(source=str(path), error=f"the worker was lost: {type(error).__name__}")
    finally:
        if own:
            ray.shutdown()
