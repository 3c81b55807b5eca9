"""Thousands of profiles: read side by side in processes of their own, or on a Ray cluster, with the same result.

What comes back of each file is small (`trace.rank_facts`), a few files are under way at a time, and a process is replaced
after some files: memory stays where it is, however many there are. A file that fails is an answer, not the end.
"""

from __future__ import annotations

import contextlib
import glob
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mansard.core.errors import InputError, MansardError, UsageError, install
from mansard.trace.open import recognise
from mansard.trace.rank_facts import RankFacts, read_facts

ENGINES = ("local", "ray")
FILES_PER_PROCESS = 64
AHEAD = 2  # files under way for each process
Progress = Callable[[int, int, str], None]
Order = tuple[Any, ...]  # the name of a file, and what else the work with it needs
Task = Callable[..., Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedFile:
    """A file that gave nothing.

    Args:
        source: The file.
        error: Why.
        code: Code of the error, where it has one.
        hint: What to do about it, where that is known.
    """

    source: str
    error: str
    code: str = ""
    hint: str = ""


def files_of(words: Iterable[str | Path]) -> list[Path]:
    """Return the files that paths, folders and patterns name, sorted by name within each, each once.

    A folder stands for the files in it whose name does not begin with a dot; a folder that is a profile is itself one.

    Raises:
        InputError: a word names nothing.
    """
    found: dict[Path, None] = {}
    for word in words:
        path = Path(word)
        if path.is_dir() and not _is_profile(path):
            inside = sorted(p for p in path.iterdir() if not p.name.startswith("."))
        elif path.exists() or not glob.has_magic(str(word)):
            inside = [path]
        else:
            inside = sorted(Path(p) for p in glob.glob(str(word), recursive=True))
        if not inside:
            raise InputError(f"{word} names no files", hint="give files, a folder, or a pattern in quotes")
        found.update(dict.fromkeys(inside))
    return list(found)


def _is_profile(folder: Path) -> bool:
    try:
        recognise(folder)
    except InputError:
        return False
    return True


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
    work = partial(read_facts, memory_limit=memory_limit)
    return map_files(work, paths, jobs=jobs, engine=engine, progress=progress)


def map_files(
    work: Callable[..., T],
    paths: Sequence[Path],
    *,
    arguments: Sequence[Any] | None = None,
    jobs: int | None = None,
    engine: str = "local",
    progress: Progress = lambda _done, _all, _name: None,
) -> tuple[list[T], list[FailedFile]]:
    """Do the same with each file, some at a time, and return what came of each in their order, and the files that failed.

    Args:
        work: Called with the name of a file, and its argument where there are any; can be pickled, as its answer can.
        paths: The files.
        arguments: A second argument for each file.
        jobs: Processes at a time; None takes one for each CPU this process may use, 1 none but this one.
        engine: `local`, or `ray` for a Ray cluster (RAY_ADDRESS, else a local one).
        progress: Called with files done, files in all, and the name of the last one.

    Raises:
        UsageError: no such engine.
        InputError: Ray is not installed.
    """
    if engine not in ENGINES:
        raise UsageError(f"no engine is called {engine!r}", hint=f"known: {', '.join(ENGINES)}")
    count = max(1, jobs or len(os.sched_getaffinity(0)))
    orders = [
        (str(path),) if arguments is None else (str(path), arguments[i]) for i, path in enumerate(paths)
    ]  # the first word of an order is always the file
    task = partial(attempt, work)
    answers = _by_ray(task, orders) if engine == "ray" else _by_processes(task, orders, count)
    found: list[T] = []
    failed: list[FailedFile] = []
    for number, (order, answer) in enumerate(zip(orders, answers, strict=True), start=1):
        if isinstance(answer, FailedFile):
            failed.append(answer)
        else:
            found.append(answer)
        progress(number, len(paths), order[0])
    return found, failed


def attempt(work: Callable[..., T], path: str, *argument: Any) -> T | FailedFile:
    """Do what is wanted with one file; what goes wrong with it is the answer."""
    try:
        return work(path, *argument)
    except MansardError as error:
        return FailedFile(source=path, error=error.message, code=error.code, hint=error.hint)
    except Exception as error:  # a defect shown by one file must not hide what the others say
        return FailedFile(source=path, error=f"{type(error).__name__}: {error}")


def _by_processes(task: Task, orders: Sequence[Order], jobs: int) -> Iterator[Any]:
    if jobs == 1 or len(orders) < 2:
        yield from (task(*order) for order in orders)
        return
    left: deque[Order] = deque(orders)
    while left:
        under_way: deque[tuple[Order, Future[Any]]] = deque()
        pool = _pool(min(jobs, len(left)))
        try:
            while left or under_way:
                while left and len(under_way) < AHEAD * jobs:
                    order = left.popleft()
                    under_way.append((order, pool.submit(task, *order)))
                answer = under_way[0][1].result()
                under_way.popleft()
                yield answer
        except BrokenProcessPool:
            # A process was killed, by whatever file it held: those under way are read again one by one.
            pool.shutdown(wait=True, cancel_futures=True)
            yield from (_alone(task, order) for order, _ in under_way)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=FILES_PER_PROCESS
    )


def _alone(task: Task, order: Order) -> Any:
    """Read a file in a process that may die of it."""
    with _pool(1) as pool:
        try:
            return pool.submit(task, *order).result()
        except BrokenProcessPool:
            text = "the process that read it was killed (out of memory is the usual reason)"
            return FailedFile(source=order[0], error=text)


@contextlib.contextmanager
def cluster(engine: str) -> Iterator[None]:
    """Hold one connection to the cluster over several rounds; nothing to do for other engines.

    Args:
        engine: `local` or `ray`.

    Raises:
        InputError: Ray is not installed.
    """
    if engine != "ray":
        yield
        return
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed", hint=install("ray"), code="missing_package") from None
    own = not ray.is_initialized()
    if own:
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, include_dashboard=False)
    try:
        yield
    finally:
        if own:
            ray.shutdown()


def _by_ray(task: Task, orders: Sequence[Order]) -> Iterator[Any]:
    with cluster("ray"):
        import ray

        work = ray.put(task)  # shared words travel once, not with every file
        remote: Any = ray.remote(max_retries=1, max_calls=FILES_PER_PROCESS)(_called)
        ahead = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        under_way: deque[tuple[Order, Any]] = deque()
        left: deque[Order] = deque(orders)
        while left or under_way:
            while left and len(under_way) < ahead:
                order = left.popleft()
                under_way.append((order, remote.remote(work, *order)))
            order, reference = under_way.popleft()
            try:
                yield ray.get(reference)
            except ray.exceptions.RayError as error:
                yield FailedFile(source=order[0], error=f"the worker was lost: {type(error).__name__}")


def _called(task: Task, *order: Any) -> Any:
    return task(*order)
