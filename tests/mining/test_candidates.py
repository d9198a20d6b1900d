"""Stored candidate lists: there and back, and every kind of damage."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from aoq.errors import UserError
from aoq.mining import candidates
from aoq.mining.candidates import CandidateLists, Provenance, first_positive
from aoq.types import Positives
from tests.conftest import uneven_dataset
from tests.mining.cases import provenance, sound_lists

ARRAYS = ("i2t", "i2t_scores", "t2i", "t2i_scores")


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "lists.safetensors"
    sound_lists(uneven_dataset()).save(path)
    return path


def test_lists_survive_the_way_to_disk_and_back(stored):
    dataset = uneven_dataset()
    lists, again = sound_lists(dataset), CandidateLists.load(stored)
    assert again.provenance == lists.provenance
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(again, name), getattr(lists, name))
    assert again.require_fit(dataset, source="lists") is again


def test_lists_without_scores_survive_too(stored):
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    nothing = {name: np.full_like(getattr(lists, name), np.nan) for name in ARRAYS[1::2]}
    replace(lists, **nothing).save(stored)
    again = CandidateLists.load(stored).require_fit(dataset, source="lists")
    assert np.isnan(again.i2t_scores).all()


def test_equal_scores_are_in_falling_order():
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    replace(lists, i2t_scores=np.zeros_like(lists.i2t_scores)).require_fit(dataset, source="lists")


def test_the_file_says_its_depths(tmp_path):
    lists = sound_lists(uneven_dataset())
    shallow = replace(lists, t2i=lists.t2i[:, :2], t2i_scores=lists.t2i_scores[:, :2])
    shallow.save(tmp_path / "lists.safetensors")
    with safe_open(tmp_path / "lists.safetensors", framework="np") as file:
        stated = json.loads(file.metadata()["aoq"])
    assert (stated["depth_texts"], stated["depth_images"]) == ("3", "2")


# Damaged files


def rewrite(path, *, without=(), **stated):
    """The same file with other statements about itself, or without some part."""
    with safe_open(path, framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in ARRAYS if name not in without}
        statement = {**json.loads(file.metadata()["aoq"]), **stated}
    statement = {name: value for name, value in statement.items() if name not in without}
    save_file(arrays, path, metadata={"aoq": json.dumps(statement)})


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


FILES = {
    "truncated": (
        lambda path: path.write_bytes(path.read_bytes()[:-10]),
        "was cut short at .* bytes .*; copy it again or write it with `aoq mine`",
    ),
    "cut inside the header": (
        lambda path: path.write_bytes(path.read_bytes()[:20]),
        "was cut short at 20 bytes",
    ),
    "empty": (lambda path: path.write_bytes(b""), "was cut short at 0 bytes"),
    "no safetensors file": (
        lambda path: path.write_text("image, caption\n" * 40),
        "is not a safetensors file",
    ),
    "missing arrays": (
        lambda path: rewrite(path, without=("t2i", "t2i_scores")),
        "holds no candidate lists: it lacks t2i, t2i_scores; name a file that `aoq mine` wrote",
    ),
    "the weights of a model": (
        lambda path: save_file({"weight": np.zeros(3)}, path),
        "it lacks i2t, i2t_scores, t2i, t2i_scores, provenance, depth_texts, depth_images, sha256",
    ),
    "missing provenance": (
        lambda path: rewrite(path, without=("provenance",)),
        "it lacks provenance",
    ),
    "missing hash": (lambda path: rewrite(path, without=("sha256",)), "it lacks sha256"),
    "provenance that is no JSON": (
        lambda path: rewrite(path, provenance="teacher"),
        "does not say where its lists come from: its provenance is 'teacher'",
    ),
    "provenance that is no object": (
        lambda path: rewrite(path, provenance="[1, 2]"),
        r"its provenance is '\[1, 2\]'",
    ),
    "provenance without its data": (
        lambda path: rewrite(path, provenance='{"teacher": "t", "rules": []}'),
        "missing .* argument: 'data'",
    ),
    "provenance with more than we know": (
        lambda path: rewrite(path, provenance=provenance(filters="none")),
        "unexpected keyword argument 'filters'",
    ),
    "provenance with a number": (
        lambda path: rewrite(path, provenance=provenance(teacher=3)),
        "not all of it is text",
    ),
    "provenance with a word for the rules": (
        lambda path: rewrite(path, provenance=provenance(rules="none")),
        "rules are not a list",
    ),
    "a flipped byte": (
        lambda path: flip(path, -5),
        "is damaged: its content does not have the SHA-256 that it states; copy it again",
    ),
    "a flipped letter of the teacher": (
        lambda path: flip(path, path.read_bytes().rindex(b"teacher")),
        "does not have the SHA-256",
    ),
    "another depth than stated": (
        lambda path: rewrite(path, depth_images="4"),
        "states depth_images 4 and holds 3 a list; write it anew with `aoq mine`",
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_is_refused_with_the_reason(stored, kind):
    damage, sentence = FILES[kind]
    damage(stored)
    with pytest.raises(UserError, match=sentence):
        CandidateLists.load(stored)


def test_the_same_lists_make_the_same_file(tmp_path):
    lists = sound_lists(uneven_dataset())
    for name in ("one", "two"):
        lists.save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_missing_file_names_the_command_that_writes_it(tmp_path):
    with pytest.raises(UserError, match=r"does not exist; .*`aoq mine`"):
        CandidateLists.load(tmp_path / "lists.safetensors")


FORMS = {
    "ids of another dtype": (
        lambda lists: replace(lists, i2t=lists.i2t.astype(np.int64)),
        r"\(i2t\): ids are int64 \(6, 3\); expected int32",
    ),
    "scores of another dtype": (
        lambda lists: replace(lists, t2i_scores=lists.t2i_scores.astype(np.float64)),
        r"\(t2i\): scores are float64 .*; expected float32",
    ),
    "ids in one long row": (
        lambda lists: replace(lists, i2t=lists.i2t.reshape(1, 6, 3)),
        r"ids are int32 \(1, 6, 3\); expected int32, one row per anchor",
    ),
    "empty lists": (
        lambda lists: replace(lists, i2t=lists.i2t[:, :0]),
        r"ids are int32 \(6, 0\); .*at least one candidate",
    ),
    "fewer scores than ids": (
        lambda lists: replace(lists, i2t_scores=lists.i2t_scores[:, :2]),
        r"scores are float32 \(6, 2\); expected float32 \(6, 3\), one for each id",
    ),
}


@pytest.mark.parametrize("kind", FORMS)
def test_arrays_that_no_lists_have_are_refused_in_a_file_and_in_memory(stored, kind, monkeypatch):
    damage, sentence = FORMS[kind]
    damaged = damage(sound_lists(uneven_dataset()))
    with pytest.raises(UserError, match=sentence):
        damaged.require_fit(uneven_dataset(), source="lists")
    with pytest.raises(UserError, match=sentence):
        damaged.save(stored)
    with monkeypatch.context() as patch:
        patch.setattr(CandidateLists, "check_form", lambda *_, **__: None)
        damaged.save(stored)
    with pytest.raises(UserError, match=sentence):
        CandidateLists.load(stored)


# Lists that do not fit


def put(lists, name, row, rank, value):
    """The lists with one value of one array exchanged."""
    array = getattr(lists, name).copy()
    array[row, rank] = value
    return replace(lists, **{name: array})


VALUES = {
    "another data set": (
        lambda lists: replace(lists, provenance=Provenance(teacher="t", data="other")),
        r"mined on another data set than uneven \(train\); name the one it was mined on",
    ),
    "a row too few": (
        lambda lists: replace(lists, i2t=lists.i2t[:-1], i2t_scores=lists.i2t_scores[:-1]),
        r"\(i2t\): lists are int32 \(5, 3\); expected int32 with one row for each of 6 anchors",
    ),
    "an id too large": (
        lambda lists: put(lists, "t2i", 8, 1, 6),
        r"\(t2i\): row 8, rank 1 holds id 6; expected 0 to 5: .* mine with `aoq mine`",
    ),
    "an id below zero": (
        lambda lists: put(lists, "i2t", 4, 2, -1),
        r"\(i2t\): row 4, rank 2 holds id -1; expected 0 to",
    ),
    "a candidate twice": (
        lambda lists: put(lists, "i2t", 4, 2, lists.i2t[4, 0]),
        r"\(i2t\): row 4 holds 0 twice; expected every candidate once",
    ),
    "a positive inside": (
        lambda lists: put(lists, "i2t", 4, 1, uneven_dataset().positives.texts_of(4)[0]),
        r"\(i2t\): row 4, rank 1 holds \d+, which belongs to the anchor",
    ),
    "a rising score": (
        lambda lists: put(lists, "t2i_scores", 5, 1, lists.t2i_scores[5, 0] + 1),
        r"\(t2i\): row 5, rank 1 has a higher score than the rank before it",
    ),
    "an infinite score": (
        lambda lists: put(lists, "i2t_scores", 3, 2, -np.inf),
        r"\(i2t\): row 3, rank 2 has the score -inf; expected a finite number",
    ),
    "a score that is none": (
        lambda lists: put(lists, "i2t_scores", 3, 1, np.nan),
        r"row 3, rank 1 has the score nan; expected a finite number",
    ),
    "a score among none": (
        lambda lists: put(
            replace(lists, t2i_scores=np.full_like(lists.t2i_scores, np.nan)), "t2i_scores", 7, 0, 1
        ),
        r"row 7, rank 0 has the score 1.0; expected NaN as everywhere else",
    ),
}


@pytest.mark.parametrize("rows_at_once", [2, 1024])
@pytest.mark.parametrize("kind", VALUES)
def test_lists_that_do_not_fit_are_refused_with_the_place(monkeypatch, kind, rows_at_once):
    monkeypatch.setattr(candidates, "_ROWS_AT_ONCE", rows_at_once)
    dataset = uneven_dataset()
    damage, sentence = VALUES[kind]
    with pytest.raises(UserError, match=sentence):
        damage(sound_lists(dataset)).require_fit(dataset, source="lists")


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 9))
def test_the_first_positive_is_the_one_a_plain_loop_finds(seed, rows_at_once, depth):
    random = np.random.default_rng(seed)
    relation = random.random((7, 9)) < 0.15
    positives = Positives.from_pairs(np.argwhere(relation), n_images=7, n_texts=9)
    lists = np.stack([random.permutation(9)[:depth] for _ in range(7)]).astype(np.int32)
    places = [
        (row, rank) for rank in range(depth) for row in range(7) if relation[row, lists[row, rank]]
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "_ROWS_AT_ONCE", rows_at_once)
        assert first_positive(lists, positives) == (places[0] if places else None)
