"""The archive of ranks: many trainings add to one file, which alone gives back every figure."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

import numpy as np
import pytest

from aoq.errors import UserError
from aoq.evaluation.protocols import JudgedFold
from aoq.evaluation.rank_archive import RankArchive
from aoq.evaluation.ranks import PairRanks
from aoq.manifest import NAME, create_manifest
from aoq.types import Positives

POSITIVES = Positives.from_pairs([(0, 0), (1, 1), (1, 2), (3, 2)], n_images=5, n_texts=4)


def ranked(seed=0, *, highest=9):
    ranks = np.random.default_rng(seed).integers(highest, size=(2, 4))
    return JudgedFold(POSITIVES, PairRanks(images=ranks[0], texts=ranks[1]))


def test_an_archive_gives_back_ranks_and_positives_without_the_data_set(tmp_path):
    archive = RankArchive.beside(tmp_path / "results.jsonl")
    assert archive.path == tmp_path / "results.ranks.npz"
    folds = {"a": ranked(1), "b": ranked(2, highest=70_000)}
    for name, fold in folds.items():
        archive.keep("test-1", name, fold)
    for name, fold in folds.items():
        found = archive.read("test-1", name)
        assert found.metrics == fold.metrics
        np.testing.assert_array_equal(found.positives.pairs, POSITIVES.pairs)
        assert (found.positives.n_images, found.positives.n_texts) == (5, 4)
        np.testing.assert_array_equal(found.pair_ranks.texts, fold.pair_ranks.texts)
    assert archive.names("test-1") == ["a", "b"]
    assert archive.names("dev-1") == []
    assert archive.read("dev-1", "a") is archive.read("test-1", "c") is None


def test_an_archive_holds_ranks_alone_whatever_the_version_of_numpy(tmp_path, monkeypatch):
    """Before numpy 2.1, each keyword was the name of an array."""
    real, written = np.savez_compressed, []

    def before(file, **arrays):
        written.extend(arrays)
        real(file, **arrays)

    monkeypatch.setattr(np, "savez_compressed", before)
    RankArchive(tmp_path / "x.npz").keep("test-1", "a", ranked(1))
    assert written == ["test-1/a", "test-1/pairs"]


def test_ranks_are_replaced_and_equal_ones_leave_the_file_as_it_is(tmp_path):
    archive = RankArchive(tmp_path / "x.npz")
    archive.keep("test-1", "a", ranked(1))
    before = archive.path.stat()
    archive.keep("test-1", "a", ranked(1))
    assert archive.path.stat().st_mtime_ns == before.st_mtime_ns
    assert archive.path.stat().st_ino == before.st_ino
    archive.keep("test-1", "a", ranked(2))
    assert archive.read("test-1", "a").metrics == ranked(2).metrics


def test_equal_contents_make_equal_files_in_any_order(tmp_path):
    one, two = RankArchive(tmp_path / "1.npz"), RankArchive(tmp_path / "2.npz")
    for archive, seeds in ((one, (1, 2, 3)), (two, (3, 1, 2))):
        for seed in seeds:
            archive.keep("test-1", f"{seed}", ranked(seed))
    assert one.path.read_bytes() == two.path.read_bytes()


def add(path, numbers):
    for number in numbers:
        RankArchive(path).keep("test-1", f"{number}", ranked(number))


def test_processes_that_add_at_once_lose_nothing(tmp_path):
    path, context = tmp_path / "x.npz", multiprocessing.get_context("fork")
    parts = [range(start, 24, 3) for start in range(3)]
    adding = [context.Process(target=add, args=(path, part)) for part in parts]
    for process in adding:
        process.start()
    for process in adding:
        process.join()
    archive = RankArchive(path)
    assert len(archive.names("test-1")) == 24
    assert all(archive.read("test-1", f"{n}").metrics == ranked(n).metrics for n in range(24))


def test_a_damaged_archive_is_never_read_or_replaced(tmp_path):
    archive = RankArchive(tmp_path / "x.npz")
    archive.keep("test-1", "a", ranked(1))
    content = archive.path.read_bytes()
    for damaged in (content[:-30], content[:99] + bytes([content[99] ^ 255]) + content[100:]):
        archive.path.write_bytes(damaged)
        for act in (
            lambda: archive.read("test-1", "a"),
            lambda: archive.keep("test-1", "b", ranked(2)),
        ):
            with pytest.raises(UserError, match="damaged or was changed"):
                act()
        assert archive.path.read_bytes() == damaged


def test_the_manifest_of_the_folder_has_the_hash_of_the_archive(tmp_path):
    create_manifest(tmp_path, "results")
    archive = RankArchive(tmp_path / "x.npz")
    archive.keep("test-1", "a", ranked(1))
    other = RankArchive(tmp_path / "other.npz")
    other.keep("test-1", "a", ranked(2))
    assert archive.path.name in (tmp_path / NAME).read_text()
    archive.path.write_bytes(other.path.read_bytes())  # a sound file, and not the one written
    with pytest.raises(UserError, match="damaged or was changed"):
        archive.read("test-1", "a")


def test_an_archive_that_a_killed_training_was_about_to_write_is_empty(tmp_path):
    archive = RankArchive(tmp_path / "x.npz")
    archive.path.touch()
    assert archive.read("test-1", "a") is None
    archive.keep("test-1", "a", replace(ranked(1), data="of the split"))
    assert archive.read("test-1", "a").data == "test-1"
