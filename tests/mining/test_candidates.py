"""Stored candidate lists: there and back, and every kind of damage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists, Provenance
from tests.conftest import uneven_dataset


def sound_lists(dataset, depth=3) -> CandidateLists:
    def lists(relation):
        return np.stack(
            [
                np.setdiff1d(np.arange(relation.n_texts), relation.texts_of(anchor))[:depth]
                for anchor in range(relation.n_images)
            ]
        ).astype(np.int32)

    i2t, t2i = lists(dataset.positives), lists(dataset.positives.swapped)
    return CandidateLists(
        i2t,
        np.zeros(i2t.shape, np.float32),
        t2i,
        np.zeros(t2i.shape, np.float32),
        Provenance(teacher="t", data=dataset.fingerprint, filters=("none",)),
    )


def test_lists_survive_the_way_to_disk_and_back(tmp_path):
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    lists.save(tmp_path / "lists.safetensors")
    again = CandidateLists.load(tmp_path / "lists.safetensors")
    assert again.provenance == lists.provenance
    for name in ("i2t", "i2t_scores", "t2i", "t2i_scores"):
        np.testing.assert_array_equal(getattr(again, name), getattr(lists, name))
    assert again.require_fit(dataset, source="lists") is again


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "lists.safetensors"
    sound_lists(uneven_dataset()).save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="holds no candidate lists"):
        CandidateLists.load(path)


def test_a_file_without_provenance_is_refused(tmp_path):
    path = tmp_path / "lists.safetensors"
    lists = sound_lists(uneven_dataset())
    names = ("i2t", "i2t_scores", "t2i", "t2i_scores")
    save_file({name: getattr(lists, name) for name in names}, path)
    with pytest.raises(UserError, match="holds no candidate lists"):
        CandidateLists.load(path)


def test_a_missing_file_names_the_command_that_writes_it(tmp_path):
    with pytest.raises(UserError, match="aoq mine"):
        CandidateLists.load(tmp_path / "lists.safetensors")


def damaged(lists: CandidateLists, dataset, kind: str) -> CandidateLists:
    i2t = lists.i2t.copy()
    if kind == "another data set":
        return replace(lists, provenance=Provenance(teacher="t", data="other"))
    if kind == "expected 0 to":
        i2t[2, 1] = dataset.n_texts
    elif kind == "belongs to the anchor":
        i2t[1, 0] = dataset.positives.texts_of(1)[0]
    elif kind == "one row for each":
        i2t = i2t[:-1]
    elif kind == "int64":
        return replace(lists, i2t=i2t.astype(np.int64))
    return replace(lists, i2t=i2t)


@pytest.mark.parametrize(
    "kind",
    ["another data set", "expected 0 to", "belongs to the anchor", "one row for each", "int64"],
)
def test_lists_that_do_not_fit_are_refused_with_the_reason(kind):
    dataset = uneven_dataset()
    with pytest.raises(UserError, match=kind):
        damaged(sound_lists(dataset), dataset, kind).require_fit(dataset, source="lists")
