"""Lists in the published program's format: there and back; what is refused is in test_imported."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.errors import UserError
from aoq.published.lists import UNKNOWN_TEACHER, read_published_lists, write_published_lists
from tests.conftest import uneven_dataset
from tests.mining.cases import sound_lists


def test_written_lists_are_read_again_without_scores_and_teacher(tmp_path):
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    paths = tmp_path / "out" / "i2t_made.npy", tmp_path / "out" / "t2i_made.npy"
    write_published_lists(lists, *paths)
    assert sorted((tmp_path / "out").iterdir()) == sorted(paths)
    again = read_published_lists(*paths, dataset)
    np.testing.assert_array_equal(again.i2t, lists.i2t)
    np.testing.assert_array_equal(again.t2i, lists.t2i)
    assert np.isnan(again.i2t_scores).all()
    assert np.isnan(again.t2i_scores).all()
    assert again.provenance.teacher == UNKNOWN_TEACHER
    again.require_fit(dataset, source="lists")


def test_the_files_hold_int32_ids_and_nothing_else(tmp_path):
    lists = sound_lists(uneven_dataset())
    paths = tmp_path / "i2t.npy", tmp_path / "t2i.npy"
    write_published_lists(lists, *paths)
    for path, expected in zip(paths, (lists.i2t, lists.t2i), strict=True):
        array = np.load(path, allow_pickle=False)
        assert array.dtype == np.int32
        np.testing.assert_array_equal(array, expected)


def test_a_failure_leaves_both_old_files_as_they_were(tmp_path, monkeypatch):
    paths = tmp_path / "i2t.npy", tmp_path / "t2i.npy"
    for path in paths:
        path.write_text("old")
    real, calls = np.save, []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError("disk full")
        real(*arguments)

    monkeypatch.setattr(np, "save", failing)
    with pytest.raises(OSError, match="disk full"):
        write_published_lists(sound_lists(uneven_dataset()), *paths)
    assert [path.read_text() for path in paths] == ["old", "old"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_a_candidate_twice_in_a_published_list_is_refused(tmp_path):
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    lists.t2i[5, 1] = lists.t2i[5, 0]
    paths = tmp_path / "i2t.npy", tmp_path / "t2i.npy"
    write_published_lists(lists, *paths)
    with pytest.raises(UserError, match=r"t2i.npy: row 5 holds \d+ twice"):
        read_published_lists(*paths, dataset)
