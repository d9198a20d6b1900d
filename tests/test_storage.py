"""Files and folders that are whole or absent."""

import pytest

from aoq.errors import UserError
from aoq.storage import (
    append_json_line,
    atomic_folder,
    read_json_lines,
    remove_leftovers,
    replacing_folder,
)


def half_written(folder, name):
    """What a killed process leaves of a folder."""
    left = folder / f".{name}.abcd1234.part"
    left.mkdir()
    return left


def test_only_leftovers_of_the_same_name_are_removed(tmp_path):
    other, bracket = half_written(tmp_path, "coco.v2"), half_written(tmp_path, "mine1")
    own = half_written(tmp_path, "coco")
    with atomic_folder(tmp_path / "coco"):
        assert not own.exists()
    with atomic_folder(tmp_path / "mine[1]"):
        pass
    assert other.exists()
    assert bracket.exists()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["coco", "mine[1]"]


def test_a_folder_that_is_replaced_stays_until_the_new_one_is_there(tmp_path):
    target = tmp_path / "data"
    for text in ("old", "new"):
        with replacing_folder(target, check=lambda: None) as temporary:
            (temporary / "file").write_text(text)
            assert text == "old" or (target / "file").read_text() == "old"
        assert (target / "file").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_folder_stays_where_its_successor_fails_or_is_refused(tmp_path, monkeypatch):
    target = tmp_path / "data"
    target.mkdir()
    (target / "file").write_text("old")

    def refuse():
        raise UserError("somebody else's")

    with pytest.raises(UserError), replacing_folder(target, check=refuse):
        pass
    with pytest.raises(ValueError, match="half"), replacing_folder(target, check=lambda: None):
        raise ValueError("half")

    def fail(*args):
        raise OSError("no more room")

    with (
        pytest.raises(OSError, match="no more room"),
        replacing_folder(target, check=lambda: None) as temporary,
    ):
        monkeypatch.setattr(type(temporary), "chmod", fail)
    assert (target / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_lines_may_hold_any_character(tmp_path):
    values = [{"text": "a\u2028b\u0085c"}, {"text": "second"}]
    for value in values:
        append_json_line(tmp_path / "log.jsonl", value)
    assert read_json_lines(tmp_path / "log.jsonl") == values
