"""Exported lines say what the lists say, for both directions, and are always valid JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from aoq.mining.export import export_lists
from tests.conftest import uneven_dataset
from tests.mining.cases import sound_lists


def exported(path, lists, dataset, **options):
    """The lines, read by a parser that takes nothing but JSON."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    count = export_lists(lists, dataset, path, **options)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == count
    return [json.loads(line, parse_constant=refuse) for line in lines]


def with_pictures(dataset):
    """Every image but the last knows its file."""
    known = [Path("pictures") / f"{name}.jpg" for name in dataset.image_ids[:-1]]
    return replace(dataset, pictures=(*known, None))


def test_every_image_and_caption_of_it_is_a_line_with_the_wrong_captions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = with_pictures(uneven_dataset())
    lists = sound_lists(dataset)
    lines = exported(tmp_path / "i2t.jsonl", lists, dataset, direction="i2t")
    assert len(lines) == len(dataset.positives.pairs)
    for line, (image, text) in zip(lines, dataset.positives.pairs, strict=True):
        negatives = lists.i2t[image]
        picture = dataset.pictures[image]
        assert line["anchor"] == (str(tmp_path / picture) if picture else "image-5")
        assert line["anchor_id"] == dataset.image_ids[image]
        assert line["positive"] == dataset.captions[text]
        assert line["positive_id"] == dataset.caption_ids[text]
        for rank, negative in enumerate(negatives, start=1):
            assert line[f"negative_{rank}"] == dataset.captions[negative]
        assert line["negative_ids"] == [dataset.caption_ids[negative] for negative in negatives]
        np.testing.assert_array_equal(np.float32(line["negative_scores"]), lists.i2t_scores[image])


def test_every_caption_and_image_of_it_is_a_line_with_the_wrong_pictures(tmp_path):
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    lines = exported(tmp_path / "t2i.jsonl", lists.cut(2), dataset, direction="t2i")
    assert len(lines) == len(dataset.positives.pairs)
    for line, (text, image) in zip(lines, dataset.positives.swapped.pairs, strict=True):
        ids = [dataset.image_ids[negative] for negative in lists.t2i[text, :2]]
        assert (
            line
            == {
                "anchor": dataset.captions[text],
                "positive": dataset.image_ids[image],  # no file is known
                "negative_1": ids[0],
                "negative_2": ids[1],
                "anchor_id": dataset.caption_ids[text],
                "positive_id": dataset.image_ids[image],
                "negative_ids": ids,
                "negative_scores": lists.t2i_scores[text, :2].tolist(),
            }
        )


def test_the_tuple_comes_first_and_in_order(tmp_path):
    dataset = uneven_dataset()
    line = exported(tmp_path / "x.jsonl", sound_lists(dataset), dataset, direction="i2t")[0]
    assert list(line)[:5] == ["anchor", "positive", "negative_1", "negative_2", "negative_3"]


def test_scores_are_left_out_where_there_are_none(tmp_path):
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    lists = replace(lists, i2t_scores=np.full_like(lists.i2t_scores, np.nan))
    lines = exported(tmp_path / "i2t.jsonl", lists, dataset, direction="i2t")
    assert not any("negative_scores" in line for line in lines)
    assert "negative_scores" in exported(tmp_path / "x", lists, dataset, direction="t2i")[0]


def test_captions_of_any_characters_stay_one_line_each(tmp_path):
    odd = 'a "dog"\u2028über\x85 the \\ hill\n犬'
    dataset = uneven_dataset()
    dataset = replace(dataset, captions=(odd, *dataset.captions[1:]))
    lines = exported(tmp_path / "t2i.jsonl", sound_lists(dataset), dataset, direction="t2i")
    assert lines[0]["anchor"] == odd
