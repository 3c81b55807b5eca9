"""Outputs are written whole or not at all, and what was there before survives whatever goes wrong."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from mansard.core import outputs
from mansard.core.errors import InputError, UsageError
from mansard.core.outputs import may_write, replace_folder, write_whole


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def fail_with(code: int):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_failing_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path, monkeypatch, call, code):
    target = tmp_path / "run.json"
    target.write_text("old")
    monkeypatch.setattr(outputs.os, call, fail_with(code))
    with pytest.raises(InputError, match=os.strerror(code)) as failed:
        write_whole(target, "new")
    assert failed.value.exit_code == 4
    assert failed.value.hint
    monkeypatch.undo()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["run.json"]


def test_an_interrupt_in_the_middle_leaves_nothing_half_written(tmp_path, monkeypatch):
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(outputs.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "run.json", "new")
    assert names(tmp_path) == []


def test_a_link_keeps_pointing_and_a_file_keeps_its_rights(tmp_path):
    (tmp_path / "kept").mkdir()
    real, link = tmp_path / "kept" / "run.json", tmp_path / "latest.json"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    write_whole(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "fresh.json", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "fresh.json").stat().st_mode) == 0o640  # 0o666 without 0o027


def test_what_another_process_wrote_meanwhile_is_left_alone_and_nothing_is_lost(tmp_path, monkeypatch):
    target = tmp_path / "run.json"
    may_write(target, force=False)
    target.write_text("theirs")
    for links in (True, False):  # without hard links the name is looked at before it is taken
        if not links:
            monkeypatch.setattr(outputs.os, "link", fail_with(errno.EPERM))
        with pytest.raises(InputError, match="another process") as failed:
            write_whole(target, "ours", force=False)
        assert target.read_text() == "theirs"
        assert Path(failed.value.hint.removeprefix("this result is in ")).read_text() == "ours"


def test_a_reader_sees_one_whole_content_or_the_other(tmp_path):
    target, texts = tmp_path / "run.json", {"a" * 100_000, "b" * 50_000}
    target.write_text("a" * 100_000)
    writers = [threading.Thread(target=lambda t=t: [write_whole(target, t) for _ in range(10)]) for t in texts]
    for writer in writers:
        writer.start()
    while any(w.is_alive() for w in writers):
        assert target.read_text() in texts
    for writer in writers:
        writer.join()
    assert names(tmp_path) == ["run.json"]


def test_a_device_or_a_pipe_is_written_as_it_is(tmp_path):
    may_write(Path(os.devnull), force=False)
    write_whole(Path(os.devnull), "x", force=False)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, "text", force=False)
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    if os.path.exists("/dev/full"):
        with pytest.raises(InputError, match="No space left"):
            write_whole(Path("/dev/full"), "x")


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path):
    old = tmp_path / "old.json"
    old.write_text("old")
    may_write(None, force=False)
    may_write(old, force=True)
    may_write(tmp_path / "new.json", force=False)
    for path, force, words in (
        (tmp_path, True, "is a directory"),
        (tmp_path / "no" / "x.json", True, "there is no directory"),
        (old, False, "exists"),
    ):
        with pytest.raises(UsageError, match=words) as refused:
            may_write(path, force=force, option="--report")
        assert refused.value.hint
    with pytest.raises(UsageError, match="is an input itself"):
        may_write(old, force=True, sources=[tmp_path / "none", old])


def test_a_folder_is_replaced_only_by_a_whole_copy(tmp_path, monkeypatch):
    new, old = tmp_path / "new", tmp_path / "old"
    for folder, text in ((new, "new"), (old, "old")):
        folder.mkdir()
        (folder / "meta.json").write_text(text)
    whole = Path.rename

    def no_second(path: Path, target: Path) -> Path:
        return fail_with(errno.EIO)() if path.suffix == ".part" else whole(path, target)

    for broken, name, instead in ((outputs.shutil, "copytree", fail_with(errno.ENOSPC)), (Path, "rename", no_second)):
        with monkeypatch.context() as patch:
            patch.setattr(broken, name, instead)
            with pytest.raises(InputError, match="cannot write"):
                replace_folder(new, old)
        assert (old / "meta.json").read_text() == "old"
        assert names(tmp_path) == ["new", "old"]
    replace_folder(new, old)
    assert (old / "meta.json").read_text() == "new"
    assert (new / "meta.json").read_text() == "new"
    assert names(tmp_path) == ["new", "old"]


def test_pieces_are_written_as_they_come_and_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.bin"

    def pieces(last: bytes | None):
        yield b"ab"
        assert names(tmp_path) != ["x.bin"], "the pieces go to another file"
        if last is None:
            raise ValueError("the source broke")
        yield last

    write_whole(path, pieces(b"c"))
    assert path.read_bytes() == b"abc"
    with pytest.raises(ValueError, match="the source broke"):
        write_whole(path, pieces(None))
    assert path.read_bytes() == b"abc"
    assert names(tmp_path) == ["x.bin"]
