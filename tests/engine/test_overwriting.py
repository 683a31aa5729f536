"""A file that is not minfer's own is never lost to a saved session, unless that is asked for."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import minfer
from minfer.errors import ForeignFileError, SessionFileError
from tiny_load import tiny_path

Save = Callable[..., None]


@pytest.fixture(params=["session", "conversation"])
def save(request: pytest.FixtureRequest, tiny_dir: Path) -> Iterator[Save]:
    """`save` of a session or a conversation with something in it."""
    with minfer.load(tiny_path(tiny_dir), backend="reference") as model:
        session, chat = model.session(), model.conversation("hello")
        session.extend([1, 2, 3])
        yield session.save if request.param == "session" else chat.save
        session.close()
        chat.close()


def is_saved(path: Path) -> bool:
    return path.read_bytes().startswith(b"MINFERKV")


def test_a_new_file_and_one_of_its_own_kind(save: Save, tmp_path: Path) -> None:
    path = tmp_path / "a.session"
    save(path)
    first = path.stat().st_ino
    save(path)
    assert is_saved(path)
    assert path.stat().st_ino != first


@pytest.mark.parametrize("content", [b"my notes", b"M", b"MINFERKW" + bytes(100)])
def test_any_other_file_stays_unless_it_is_to_be_overwritten(save: Save, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ForeignFileError, match=r"notes\.txt: a file that is not a saved session"):
        save(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]
    save(path, overwrite=True)
    assert is_saved(path)


def test_an_empty_file_is_nothing_to_lose(save: Save, tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    save(path)
    assert is_saved(path)


@pytest.mark.skipif(os.name != "posix", reason="makes pipes and links")
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_file_is_never_replaced(save: Save, tmp_path: Path, overwrite: bool) -> None:
    pipe, directory, link = tmp_path / "pipe", tmp_path / "directory", tmp_path / "null"
    null = Path("/dev/null")
    os.mkfifo(pipe)
    directory.mkdir()
    link.symlink_to("/dev/null")
    for path, kind in ((pipe, "a pipe"), (directory, "a directory"), (link, "a device"), (null, "a device")):
        with pytest.raises(SessionFileError, match=kind):
            save(path, overwrite=overwrite)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISCHR(null.stat().st_mode)
    assert link.is_symlink()


@pytest.mark.skipif(os.name != "posix", reason="makes links, and looks at permissions")
def test_links_and_permissions_stay(save: Save, tmp_path: Path) -> None:
    path, link, broken = tmp_path / "a.session", tmp_path / "link", tmp_path / "broken"
    save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    link.symlink_to(path)
    save(link)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    broken.symlink_to(tmp_path / "b.session")
    save(broken)
    assert is_saved(tmp_path / "b.session")
