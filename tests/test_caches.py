"""The cache: what it holds, and that only what aoq wrote there is removed."""

import json
import os

import numpy as np
import pytest

from aoq.caches import list_cache, remove_entry, select_entries
from aoq.errors import UserError
from aoq.features.store import keep_array
from aoq.storage import atomic_folder, hash_parts, write_text
from tests.commands import aoq, assert_refused


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with two networks' features, a record and an index."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("AOQ_CACHE", str(folder))
    for network, count in (("small", 2), ("large", 5)):
        for number in range(count):
            name = hash_parts(f"{network}{number}".encode())
            keep_array(folder / "features" / network / name[:2] / f"{name}.npy", np.zeros(100))
    write_text(folder / "written" / f"{hash_parts(b'file')[:32]}.json", "{}")
    with atomic_folder(folder / "indexes" / "photos", what="index") as index:
        write_text(index / "index.json", "{}")
    return folder


def test_entries_are_listed_with_their_sizes_largest_first(cache):
    entries = list_cache()
    assert [entry.name for entry in entries[:2]] == ["features/large", "features/small"]
    assert {entry.name for entry in entries} >= {"written", "indexes/photos"}
    large = entries[0]
    assert large.files == 5
    assert large.size == sum(path.stat().st_size for path in large.path.rglob("*.npy"))


def test_an_entry_is_removed_and_the_others_stay(cache):
    (small,) = select_entries(["features/small"])
    assert remove_entry(small) == small.size
    assert not (cache / "features/small").exists()
    assert (cache / "features/large").is_dir()
    assert (cache / "indexes/photos/index.json").is_file()


def test_a_kind_names_all_its_entries(cache):
    assert {entry.name for entry in select_entries(["features"])} == {
        "features/small",
        "features/large",
    }


def test_files_of_others_are_never_removed(cache):
    note = cache / "features/small/notes.txt"
    note.write_text("mine")
    link = cache / "features/small/ab" / f"{'0' * 64}.npy"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(note)
    (small,) = select_entries(["features/small"])
    remove_entry(small)
    assert note.read_text() == "mine"
    assert link.is_symlink()
    assert not [path for path in note.parent.rglob("*.npy") if not path.is_symlink()]


def test_an_index_with_a_file_of_others_stays_whole(cache):
    (cache / "indexes/photos/notes.txt").write_text("mine")
    (index,) = select_entries(["indexes"])
    with pytest.raises(UserError, match=r"notes\.txt"):
        remove_entry(index)
    assert (cache / "indexes/photos/index.json").is_file()


def test_only_what_was_idle_long_enough_is_chosen(cache):
    month = 30 * 86_400
    for path in (cache / "features/small").rglob("*"):
        os.utime(path, (path.stat().st_atime - month, path.stat().st_mtime - month))
    os.utime(cache / "features/small", (0, 0))
    assert [entry.name for entry in select_entries([], idle_days=20)] == ["features/small"]


def test_an_unknown_entry_is_named(cache):
    with pytest.raises(UserError, match="no entry features/medium"):
        select_entries(["features/medium"])


def test_the_command_lists_and_clears(cache):
    listed = json.loads(aoq("cache", "--json").stdout)
    assert listed["folder"] == str(cache)
    assert {entry["name"] for entry in listed["entries"]} >= {"features/small", "indexes/photos"}
    assert aoq("cache", "clear", "--all").returncode == 0
    assert list_cache() == []


def test_clearing_everything_has_to_be_said(cache):
    assert_refused(aoq("cache", "clear"), "--all")
    assert list_cache()


def test_the_doctor_names_versions_extras_and_the_cache(cache):
    facts = json.loads(aoq("doctor", "--json").stdout)
    assert "torch" in facts["packages"]
    assert "extra search" in facts
    assert str(cache) in facts["cache"]
