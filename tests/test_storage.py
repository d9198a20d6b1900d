"""Files and folders that are whole or absent."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from aoq.errors import UserError
from aoq.manifest import NAME
from aoq.runs.directory import RunDirectory
from aoq.storage import (
    append_json_line,
    atomic_file,
    atomic_folder,
    read_json_lines,
    remove_leftovers,
    replacing_folder,
    write_text,
)


def half_written(folder, name):
    """What a killed process leaves of a folder."""
    left = folder / f".{name}.abcd1234.part"
    left.mkdir()
    return left


def test_only_leftovers_of_the_same_name_are_removed(tmp_path):
    other, bracket = half_written(tmp_path, "coco.v2"), half_written(tmp_path, "mine1")
    own = half_written(tmp_path, "coco")
    with atomic_folder(tmp_path / "coco", what="run"):
        assert not own.exists()
    with atomic_folder(tmp_path / "mine[1]", what="run"):
        pass
    assert other.exists()
    assert bracket.exists()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["coco", "mine[1]"]


def test_a_folder_that_is_replaced_stays_until_the_new_one_is_there(tmp_path):
    target = tmp_path / "data"
    for text in ("old", "new"):
        with replacing_folder(target, what="data set", check=lambda: None) as temporary:
            (temporary / "file").write_text(text)
            assert text == "old" or (target / "file").read_text() == "old"
        assert (target / "file").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_folder_stays_where_its_successor_fails_or_is_refused(tmp_path, monkeypatch):
    target = tmp_path / "data"
    with atomic_folder(target, what="data set") as temporary:
        (temporary / "file").write_text("old")

    def refuse():
        raise UserError("somebody else's")

    with pytest.raises(UserError), replacing_folder(target, what="data set", check=refuse):
        pass
    with (
        pytest.raises(ValueError, match="half"),
        replacing_folder(target, what="data set", check=lambda: None),
    ):
        raise ValueError("half")

    real = Path.replace

    def fail(source, destination):
        if destination == target and source.name.endswith(".part"):
            raise OSError("no more room")
        return real(source, destination)

    with (
        pytest.raises(OSError, match="no more room"),
        replacing_folder(target, what="data set", check=lambda: None),
    ):
        monkeypatch.setattr(Path, "replace", fail)
    assert (target / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_kill_while_a_folder_takes_its_place_loses_neither(tmp_path):
    target, before = tmp_path / "data", tmp_path / ".data.before"
    with atomic_folder(before, what="data set") as temporary:
        (temporary / "file").write_text("old")  # moved away by a process that was killed then
    with (
        pytest.raises(ValueError, match="half"),
        replacing_folder(target, what="data set", check=lambda: None),
    ):
        raise ValueError("half")
    assert (target / "file").read_text() == "old"
    target.rename(before)
    target.mkdir()  # or killed after it
    (target / "file").write_text("new")
    with (
        pytest.raises(ValueError, match="half"),
        replacing_folder(target, what="data set", check=lambda: None),
    ):
        raise ValueError("half")
    assert (target / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_folders_that_are_filled_at_a_time_do_not_take_each_other_for_leftovers(tmp_path):
    place = tmp_path / "place"
    with replacing_folder(place, what="data set", check=lambda: None) as one:
        (one / "file").write_text("one")
        with replacing_folder(place, what="data set", check=lambda: None) as two:
            (two / "file").write_text("two")
        assert (one / "file").read_text() == "one"
    assert {file.name for file in place.iterdir()} == {"file", NAME}
    assert (place / "file").read_text() == "one"
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_who_may_read_a_file_is_the_users_choice(tmp_path, umask):
    previous = os.umask(umask)
    try:
        write_text(tmp_path / "file", "mine")
        with atomic_file(tmp_path / "tensors") as temporary:
            save_file({"zero": np.zeros(1)}, temporary)
        with atomic_folder(tmp_path / "folder", what="run"):
            pass
    finally:
        os.umask(previous)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    of_file = 0o666 & ~umask
    assert modes == {"file": of_file, "tensors": of_file, "folder": 0o777 & ~umask}


def test_lines_may_hold_any_character(tmp_path):
    values = [{"text": "a\u2028b\u0085c"}, {"text": "second"}]
    for value in values:
        append_json_line(tmp_path / "log.jsonl", value)
    assert read_json_lines(tmp_path / "log.jsonl") == values


def test_a_run_that_is_not_there_is_answered_with_one_that_looks_like_it(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match=r"no folder .*/min; did you mean .*/mine\?$"):
        RunDirectory(tmp_path / "min").last_round()
    with pytest.raises(UserError, match=r"no folder .*/other; name a run\.$"):
        RunDirectory(tmp_path / "other").last_round()
    with pytest.raises(UserError, match="holds no trained model"):
        RunDirectory(tmp_path / "mine").last_round()
