from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mansard.core.errors import InputError, UsageError
from mansard.core.unknown import Unknown
from mansard.history.advance import add_to_baseline
from mansard.history.archive import archive_of, is_archive, read_archive
from mansard.history.connection import shown, translated
from mansard.history.connection import store_url as url_of
from mansard.history.store import Store, open_store

WRITER = Path(__file__).with_name("store_writer.py")


STEADY = (100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8)


def document(*samples_ms: float, name: str = "step", environment: dict[str, object] | None = None) -> bytes:
    """A result with the samples of one benchmark."""
    body = {
        "schema": "samples/1", "environment": environment or {},
        "benchmarks": [{"name": name, "metric": "step_time_s", "runs": [[x / 1e3 for x in samples_ms]]}],
    }  # fmt: skip
    return json.dumps(body).encode()


def scaled(factor: float) -> bytes:
    return document(*(factor * x for x in STEADY))


@pytest.fixture
def store(store_url: str) -> Store:
    return open_store(store_url)


def test_a_result_comes_back_as_it_was(store: Store) -> None:
    raw = scaled(1.0)
    stored = store.add(raw, source="run.json", labels={"zone": {"zone": "a"}})
    assert store.raw(stored.sha256) == raw
    # The median of STEADY is 100 ms.
    assert stored.figures["step_time_s"] == pytest.approx(0.100)
    assert isinstance(stored.figures["ttft_s"], Unknown)
    assert [(r.source, r.labels) for r in store.records()] == [("run.json", {"zone": {"zone": "a"}})]


def test_one_record_holds_all_figures_together(store: Store) -> None:
    told = {
        "mfu_ratio": 0.42, "ttft_s": 0.180, "tpot_s": 0.012, "step_time_s": 0.250, "bytes_per_s": 3.1e12, "flop_per_s": 4e14, "tokens_per_s": 80.0,
    }  # fmt: skip
    body = {
        "schema": "samples/1",
        "benchmarks": [{"name": "serve", "metric": m, "runs": [[v] * 5]} for m, v in told.items()],
    }
    figures = store.add(json.dumps(body).encode(), source="all.json").figures
    assert {m: figures[m] for m in told} == pytest.approx(told)
    assert store.records()[0].figures["tpot_s"] == pytest.approx(0.012)


def test_the_same_document_is_one_row_and_other_labels_are_another(store: Store) -> None:
    numbers = [store.add(scaled(1.0), source=n).number for n in ("a.json", "b.json")]
    other = store.add(scaled(1.0), source="a.json", labels={"zone": {"zone": "b"}})
    assert numbers[0] == numbers[1] != other.number
    assert len(store.records()) == 2
    assert [len(record.measurements) for _, record in store.timed_records()] == [1, 1]


def test_figures_of_all_kinds_stand_in_one_record(store: Store) -> None:
    figures = {"mfu_ratio": 0.4, "ttft_s": 0.2, "tpot_s": 0.01, "step_time_s": 0.5, "bytes_per_s": 3e12}
    body = {
        "schema": "samples/1",
        "benchmarks": [{"name": "serve", "metric": m, "runs": [[v] * 5]} for m, v in figures.items()],
    }
    stored = store.add(json.dumps(body).encode(), source="all.json")
    assert {m: stored.figures[m] for m in figures} == figures


def test_the_first_result_starts_a_baseline_and_an_equal_one_joins(store: Store) -> None:
    assert add_to_baseline(store, "main", scaled(1.0), source="a.json").action == "started"
    assert add_to_baseline(store, "main", scaled(1.0), source="a.json").action == "unchanged"
    assert add_to_baseline(store, "main", scaled(1.001), source="b.json").action == "joined"
    assert [e.state for e in store.baseline("main").entries] == ["accepted", "accepted"]


def test_a_better_result_waits_for_a_second_one(store: Store) -> None:
    add_to_baseline(store, "main", scaled(1.0), source="a.json")
    assert add_to_baseline(store, "main", scaled(0.8), source="b.json").action == "pending"
    assert [r.source for r in store.baseline("main").records()] == ["a.json"]
    assert add_to_baseline(store, "main", scaled(0.801), source="c.json").action == "advanced"
    states = {e.stored.source: e.state for e in store.baseline("main").entries}
    assert states == {"a.json": "retired", "b.json": "accepted", "c.json": "accepted"}
    # What was normal before is a regression now.
    assert add_to_baseline(store, "main", scaled(1.002), source="d.json").exit_code == 1


def test_one_lucky_run_does_not_ratchet_the_baseline(store: Store) -> None:
    add_to_baseline(store, "main", scaled(1.0), source="a.json")
    add_to_baseline(store, "main", scaled(0.8), source="lucky.json")
    assert add_to_baseline(store, "main", scaled(1.001), source="b.json").action == "joined"
    assert {e.stored.source: e.state for e in store.baseline("main").entries}["lucky.json"] == "pending"


def test_runs_of_one_process_each_join_until_they_show_how_processes_differ(store: Store) -> None:
    def run(factor: float) -> bytes:
        row = {"name": "BM", "run_name": "BM", "run_type": "iteration", "time_unit": "ms"}
        rows = [{**row, "real_time": factor * x} for x in STEADY]
        return json.dumps({"context": {"host_name": "h", "num_cpus": 2}, "benchmarks": rows}).encode()

    # 10 % are assumed between processes, so none of these can be called. Only more runs can show it, and one within 10 % joins.
    runs = [(1.0, "a"), (1.15, "far"), (1.01, "b")]
    done = [add_to_baseline(store, "main", run(factor), source=name) for factor, name in runs]
    assert [(d.action, d.exit_code) for d in done] == [("started", 0), ("refused", 3), ("joined", 0)]
    assert "more runs will" in done[2].text


def test_a_slow_decline_is_reported_because_a_baseline_freezes(store: Store) -> None:
    actions = [add_to_baseline(store, "main", scaled(1.003**i), source=f"{i}.json") for i in (*range(9), 40)]
    assert [a.action for a in actions[:9]] == ["started", *["joined"] * 7, "kept"]
    assert len(store.baseline("main").entries) == 8
    # The eight runs lie around 1.003^3.5 = 1.011, the last one at 1.003^40 = 1.127: 11.5 % more.
    assert (actions[-1].action, actions[-1].exit_code) == ("refused", 1)


def test_a_worse_result_is_refused_and_can_be_accepted_with_a_reason(store: Store) -> None:
    add_to_baseline(store, "main", scaled(1.0), source="a.json")
    refused = add_to_baseline(store, "main", scaled(1.3), source="b.json")
    assert (refused.action, refused.exit_code) == ("refused", 1)
    assert len(store.baseline("main").entries) == 1
    add_to_baseline(store, "main", scaled(1.3), source="b.json", accept="checks bounds now")
    found = store.baseline("main")
    assert [(e.state, e.reason) for e in found.entries] == [("retired", "first"), ("accepted", "checks bounds now")]


def test_another_machine_is_refused(store: Store) -> None:
    add_to_baseline(store, "main", document(*STEADY, environment={"gpus": 8}), source="a.json")
    refused = add_to_baseline(store, "main", document(*STEADY, environment={"gpus": 4}), source="b.json")
    assert (refused.action, refused.exit_code) == ("refused", 3)


def test_an_empty_result_is_no_baseline(store: Store) -> None:
    with pytest.raises(InputError, match="nothing was measured"):
        add_to_baseline(store, "main", document(), source="a.json")
    assert store.baselines() == []


def test_list_and_remove(store: Store) -> None:
    for name in ("b", "a"):
        add_to_baseline(store, name, scaled(1.0), source="a.json")
    assert [(s.name, dict(s.states)) for s in store.baselines()] == [
        ("a", {"accepted": 1, "pending": 0, "retired": 0}), ("b", {"accepted": 1, "pending": 0, "retired": 0}),
    ]  # fmt: skip
    assert store.remove("a") == 1
    assert [s.name for s in store.baselines()] == ["b"]
    assert len(store.records()) == 1
    with pytest.raises(InputError, match="no baseline 'a'"):
        store.baseline("a")


def test_an_archive_carries_a_baseline_to_another_store(store: Store, tmp_path: Path) -> None:
    add_to_baseline(store, "main", scaled(1.0), source="a.json", labels={"zone": {"zone": "a"}})
    add_to_baseline(store, "main", scaled(0.8), source="b.json", labels={"zone": {"zone": "a"}})
    raw = json.dumps(archive_of(store, "main")).encode()
    assert is_archive(raw)
    other = open_store(str(tmp_path / "other.db"))
    assert read_archive(other, raw, source="x") == ["main"]
    assert read_archive(other, raw, source="x") == ["main"]  # again: nothing changes
    before, after = store.baseline("main"), other.baseline("main")
    assert [(e.state, e.added, e.record.measurements) for e in before.entries] == [
        (e.state, e.added, e.record.measurements) for e in after.entries
    ]
    # And back: what is exported again is the same, and the results keep the time at which they were added.
    again = json.dumps(archive_of(other, "main")).encode()
    assert json.loads(again)["entries"] == json.loads(raw)["entries"]
    assert [r.added for r in other.records()] == [e["added"] for e in reversed(json.loads(raw)["entries"])]
    store.remove("main")
    read_archive(store, again, source="x")
    assert store.baseline("main").records() == before.records()
    add_to_baseline(other, "main", scaled(1.001), source="c.json", labels={"zone": {"zone": "a"}})
    with pytest.raises(InputError, match="exists with other results"):
        read_archive(other, raw, source="x")


def test_an_archive_reads_a_document_as_it_was_read_at_first(tmp_path: Path) -> None:
    rows = b"1048576 262144 float sum -1 32.18 32.58 57.02 0 31.49 33.30 58.28 0\n"  # the end of a log: only its form tells it
    first, second = open_store(str(tmp_path / "a.db")), open_store(str(tmp_path / "b.db"))
    first.put("main", rows, source="tail.log", state="accepted", reason="", form="nccl-tests")
    read_archive(second, json.dumps(archive_of(first, "main")).encode(), source="x")
    assert len(second.baseline("main").records()[0].measurements) == 6


ENTRY = {
    "source": "a", "sha256": "0", "state": "accepted", "reason": "", "added": "", "labels": {}, "document_base64": "e30="
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"entries": []}, "lacks the key 'name'"), ({"name": "x", "entries": 3}, "wrong type"), ({"name": ["x"], "entries": []}, "name is"),
        ({"name": "x", "entries": [{k: v for k, v in ENTRY.items() if k != "source"}]}, "lacks the key 'source'"),
        ({"name": "x", "entries": [{**ENTRY, "state": "best"}]}, "state of an entry is 'best'"),
        ({"name": "x", "entries": [{**ENTRY, "labels": "zone"}]}, "wrong type"),
        ({"name": "x", "entries": [{**ENTRY, "added": 7}]}, "added of an entry is 7"),
        ({"name": "x", "entries": [{**ENTRY, "document_base64": "?"}]}, "cannot be"), ({"name": "x", "entries": [ENTRY]}, "was changed"),
    ],
)  # fmt: skip
def test_a_damaged_archive_says_where(content: dict[str, object], said: str, tmp_path: Path) -> None:
    raw = json.dumps({"schema": "baseline_archive/1", **content}).encode()
    with open_store(str(tmp_path / "h.db")) as store, pytest.raises(InputError, match=said):
        read_archive(store, raw, source="x")


@pytest.mark.parametrize(
    ("error", "free", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 0, True), (OSError(errno.EACCES, "Permission denied"), 0, False),
        (sqlite3.OperationalError("database or disk is full"), 1 << 30, True),
        # All that SQLite says where the file that readers and writers share cannot be made.
        (sqlite3.OperationalError("disk I/O error"), 0, True), (sqlite3.OperationalError("disk I/O error"), 1 << 30, False),
    ],
)  # fmt: skip
def test_a_full_disk_is_told_from_other_errors(
    error: Exception, free: int, full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(InputError) as caught, translated(f"sqlite:///{tmp_path / 'h.db'}"):
        raise error
    assert caught.value.hint.startswith("free space" if full else "check --store")


def test_sixteen_writers_at_once_on_an_empty_store(store_url: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    command = [sys.executable, str(WRITER), store_url]
    writers = [subprocess.Popen([*command, str(w), "3", str(notes)], stderr=subprocess.PIPE) for w in range(16)]
    errors = [w.communicate(timeout=240)[1].decode()[-500:] for w in writers]
    assert [w.returncode for w in writers] == [0] * 16, errors
    acknowledged = notes.read_text().split()
    assert len(set(acknowledged)) == 48
    assert _whole(store_url) == set(acknowledged)


def test_killed_writers_lose_nothing_that_was_acknowledged(store_url: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    open_store(store_url).close()
    chance = random.Random(0)
    for round_ in range(3):
        writer = subprocess.Popen([sys.executable, str(WRITER), store_url, str(round_), "1000000", str(notes)])
        before = notes.stat().st_size if notes.exists() else 0
        wanted = chance.randrange(1, 6)  # killed somewhere after so many acknowledgements, whatever the machine's speed
        deadline = time.monotonic() + 120
        while (notes.stat().st_size if notes.exists() else 0) < before + 65 * wanted and time.monotonic() < deadline:
            time.sleep(0.001 * chance.random())
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    acknowledged = set(notes.read_text().split())
    assert len(acknowledged) >= 3
    assert acknowledged <= _whole(store_url)


def _whole(url: str) -> set[str]:
    """Return the digests of all results, each document read back, checked, and compared with its rows."""
    with open_store(url) as store:
        rows = store.records()
        for r in rows:
            assert json.loads(store.raw(r.sha256))["schema"] == "samples/1"
            assert not isinstance(r.figures["step_time_s"], Unknown)
        return {r.sha256 for r in rows}


def test_the_newest_revision_is_the_schema_of_the_tables(store_url: str) -> None:
    import sqlalchemy
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from mansard.history.tables import HEAD, METADATA

    open_store(store_url).close()
    engine = sqlalchemy.create_engine(url_of(store_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert context.get_current_revision() == HEAD
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


def _opened(url: str) -> None:
    open_store(url).close()


def test_a_store_of_an_older_program_is_brought_up_to_date_once_by_four_at_once(store_url: str) -> None:
    import sqlalchemy

    from mansard.history.tables import HEAD

    with open_store(store_url) as store:
        store.add(scaled(1.0), source="a.json")
    engine = sqlalchemy.create_engine(url_of(store_url))
    columns = "record_id, benchmark, metric, is_primary, value, content"
    with engine.begin() as connection:  # as the first revision left it where a document was added again
        connection.exec_driver_sql(f"INSERT INTO measurement ({columns}) SELECT {columns} FROM measurement")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    engine.dispose()
    forked = multiprocessing.get_context("fork")
    openers = [forked.Process(target=_opened, args=(store_url,)) for _ in range(4)]
    for process in openers:
        process.start()
    for process in openers:
        process.join(timeout=120)
    assert [process.exitcode for process in openers] == [0] * 4
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all() == [HEAD]
        assert connection.exec_driver_sql("SELECT count(*) FROM measurement").scalar() == 1
    engine.dispose()


def test_a_store_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    open_store(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(InputError, match="another schema"):
        open_store(str(path))


def test_a_document_that_was_changed_is_found(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "h.db"))
    stored = store.add(scaled(1.0), source="a.json")
    (path,) = (p for p in (tmp_path / "h-documents").rglob("*.json"))
    path.write_bytes(path.read_bytes().replace(b"0.1", b"0.2"))
    with pytest.raises(InputError, match="was changed"):
        store.raw(stored.sha256)


def test_a_full_disk_says_so_and_leaves_the_store_whole(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "h.db"))
    kept = store.add(scaled(1.0), source="a.json").sha256
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        connection.rollback()
        # The limit belongs to this connection, which the pool hands out again.
    many = {"schema": "samples/1", "benchmarks": [{"name": f"b{i}", "runs": [[1.0 + i] * 500]} for i in range(60)]}
    with pytest.raises(InputError, match="full") as caught:
        store.add(json.dumps(many).encode(), source="b.json")
    assert "nothing was stored" in caught.value.hint
    store.close()
    assert [r.sha256 for r in open_store(str(tmp_path / "h.db")).records()] == [kept]


def test_a_store_is_never_made_of_or_beside_another_file(tmp_path: Path) -> None:
    for path, content in (
        (tmp_path / "run.json", b'{"schema": "run/1"}'),
        (tmp_path / "short", b"x"),
        (Path("/"), None),
    ):
        if content is not None:
            path.write_bytes(content)
        before = sorted(tmp_path.iterdir())
        with pytest.raises(InputError, match=r"is no store|is a folder"):
            open_store(str(path))
        assert sorted(tmp_path.iterdir()) == before
        assert content is None or path.read_bytes() == content


def test_urls() -> None:
    assert url_of(None, {"MANSARD_STORE": "/x/y.db"}) == "sqlite:////x/y.db"
    assert url_of("sqlite:////x/y.db") == "sqlite:////x/y.db"
    assert url_of(None, {}).endswith("mansard/history.db")
    assert "secret" not in shown("postgresql+psycopg://me:secret@host/db")
    with pytest.raises(UsageError, match="mysql"):
        url_of("mysql://host/db")


def test_a_server_that_is_not_there_is_an_error_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"the store .* failed"):
        open_store("postgresql://nobody:secret@127.0.0.1:1/none")


def test_a_reader_makes_no_store(store_url: str) -> None:
    for _ in range(2):  # the first one left nothing behind
        with pytest.raises(InputError, match="there is no store") as caught:
            open_store(store_url, make=False)
        assert caught.value.code == "no_store"
    open_store(store_url).close()
    with open_store(store_url, make=False) as store:
        assert store.baselines() == []


def test_a_database_of_another_program_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE song (id INTEGER)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    for make in (True, False):
        with pytest.raises(InputError, match=r"holds tables of another program \(song\)"):
            open_store(str(path), make=make)
    assert path.read_bytes() == before


def samples(name: str = "b", **more: object) -> bytes:
    content = {"schema": "samples/1", "benchmarks": [{"name": name, "runs": [[1.0, 1.1, 0.9, 1.0, 1.0]]}], **more}
    return json.dumps(content).encode()


def test_both_databases_take_and_refuse_the_same_text(store_url: str) -> None:
    with open_store(store_url) as store:
        for name in ("", " ", "a\nb", "a\0b", "n" * 201):
            with pytest.raises(UsageError, match="no name of a baseline"):
                add_to_baseline(store, name, samples(), source="a.json")
        for name in ("b\0c", "b\ud800"):  # NUL, and half of a character
            with pytest.raises(InputError, match=r"a\.json is damaged: .* is no text"):
                store.add(samples(name), source="a.json")
        with pytest.raises(InputError, match="the store keeps text"):
            store.put("main", samples(), source="a.json", state="accepted", reason="\udcff")
        assert store.records() == []
        # The name of a file may be no text, and what is no time does not tell when.
        stored = store.add(samples("naïve 名前", created="long " * 20), source="b\udcff.json")
        assert (stored.source, stored.created) == ("b\\udcff.json", "")
        add_to_baseline(store, "naïve 名前", samples(), source="a.json")
        assert [s.name for s in store.baselines()] == ["naïve 名前"]


def test_a_baseline_never_starts_with_what_cannot_be(tmp_path: Path) -> None:
    zeros = {"name": "b", "runs": [[0.0] * 5]}
    with open_store(str(tmp_path / "s.db")) as store:
        with pytest.raises(InputError, match=r"a sample of b/time_s is 0\.0"):
            add_to_baseline(store, "main", samples(benchmarks=[zeros]), source="a.json")
        assert store.baselines() == []
        both = samples(benchmarks=[zeros, {"name": "c", "runs": [[1.0] * 5]}])
        found = add_to_baseline(store, "main", both, source="a.json")
        assert found.action == "started"
        assert "1 of its 2 figures cannot be believed" in found.text
        again = add_to_baseline(store, "main", both, source="a.json", labels={"zone": {"zone": "a"}})
        assert (again.action, "its labels are others" in again.text) == ("unchanged", True)


def test_a_store_that_one_may_not_write_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.db"
    monkeypatch.setattr(os, "access", lambda *_: False)  # whoever runs the tests may write anywhere
    with pytest.raises(InputError) as caught, translated(f"sqlite:///{path}"):
        raise sqlite3.OperationalError("attempt to write a readonly database")
    assert f"get rights to {tmp_path}" in caught.value.hint
