"""What people see of candidate lists: the anchor they meant, as a table and as a page."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from aoq.errors import UserError
from aoq.mining.inspection import (
    Anchor,
    anchor_list,
    find_image,
    find_text,
    sample_anchors,
    terminal_view,
    write_inspection,
)
from tests.conftest import uneven_dataset
from tests.mining.cases import sound_lists

CAPTIONS = ("A red ball", "a blue ball", "Two small trees", "two small trees left", "the red cup")


def dataset_of(image_ids=("dogs/10.jpg", "dogs/11.jpg", "cats/20.jpg", "3")):
    """Four images, the captions above and some that are of no account."""
    dataset = uneven_dataset(images=4)
    others = (f"word{number}" for number in range(len(CAPTIONS), dataset.n_texts))
    return replace(dataset, image_ids=image_ids, captions=(*CAPTIONS, *others))


# Finding


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        ("dogs/11.jpg", 1),  # its id
        ("11.jpg", 1),  # its file's name
        ("11", 1),  # without the ending
        ("3", 3),  # an id, though 3 is a position as well
        ("2", 2),  # a position
        ("CATS", 2),  # a part of its id
    ],
)
def test_an_image_is_found_by_id_file_name_position_or_part_of_its_id(wanted, number):
    assert find_image(dataset_of(), wanted) == Anchor("image", number)


def test_an_image_is_found_by_the_name_of_its_picture():
    dataset = dataset_of(image_ids=("a", "b", "c", "d"))
    pictures = tuple(Path("pictures") / f"{name}.png" for name in ("w", "x", "y", "z"))
    assert find_image(replace(dataset, pictures=pictures), "y.png") == Anchor("image", 2)


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        ("caption-2", 2),  # its id
        ("1", 1),  # its position
        ("two small  TREES", 2),  # all of it, though another begins with it
        ("blue", 1),  # a part of it
    ],
)
def test_a_text_is_found_by_id_position_caption_or_part_of_a_caption(wanted, number):
    assert find_text(dataset_of(), wanted) == Anchor("text", number)


def test_where_nothing_is_found_the_nearest_are_named():
    dataset = dataset_of(image_ids=("dogs/10.jpg", "dogs/11.jpg", "cats/2000.jpg", "birds/1.jpg"))
    with pytest.raises(UserError, match=r"no image like '2001', but cats/2000.jpg"):
        find_image(dataset, "2001")
    with pytest.raises(UserError, match=r"no image like 'horse'; .* position \(0 to 3\)"):
        find_image(dataset, "horse")
    sentence = r"no text like 'a cup of tea', but caption-4 \(the red cup\), caption-0"
    with pytest.raises(UserError, match=sentence):
        find_text(dataset, "a cup of tea")
    with pytest.raises(UserError, match="no text like '999'; name one by"):
        find_text(dataset, "999")


def test_where_many_are_found_some_are_named():
    with pytest.raises(UserError, match=r"'dogs', first dogs/10.jpg, dogs/11.jpg;"):
        find_image(dataset_of(), "dogs")
    sentence = r"has 2 texts like 'red', first caption-0 \(A red ball\), caption-4 \(the red cup\);"
    with pytest.raises(UserError, match=sentence):
        find_text(dataset_of(), "red")


def test_a_sample_is_the_same_for_the_same_seed_and_never_larger_than_the_set():
    dataset = uneven_dataset(images=30)
    sample = sample_anchors(dataset, count=5, seed=3)
    assert sample == sample_anchors(dataset, count=5, seed=3)
    assert sample != sample_anchors(dataset, count=5, seed=4)
    assert [anchor.kind for anchor in sample] == ["image"] * 5 + ["text"] * 5
    assert len(set(sample)) == 10
    assert len(sample_anchors(dataset, count=1000)) == 30 + dataset.n_texts


# Showing


def on_terminal(lists, dataset, anchors, **options):
    console = Console(file=io.StringIO(), width=160)
    console.print(terminal_view(lists, dataset, anchors, **options))
    return console.file.getvalue()


def test_the_list_of_an_image_is_its_wrong_captions_hardest_first():
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    shown = anchor_list(lists, dataset, Anchor("image", 2), depth=2)
    assert [item.number for item in shown.candidates] == lists.i2t[2, :2].tolist()
    assert [item.score for item in shown.candidates] == lists.i2t_scores[2, :2].tolist()
    assert [item.text for item in shown.candidates] == [
        dataset.captions[text] for text in lists.i2t[2, :2]
    ]
    assert [item.number for item in shown.positives] == dataset.positives.texts_of(2).tolist()


def test_the_list_of_a_text_is_its_wrong_images_each_with_a_caption_of_its_own():
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    shown = anchor_list(lists, dataset, Anchor("text", 3), depth=3)
    assert [item.name for item in shown.candidates] == [
        dataset.image_ids[image] for image in lists.t2i[3]
    ]
    for item in shown.candidates:
        assert item.text == dataset.captions[dataset.positives.texts_of(item.number)[0]]
    assert [item.number for item in shown.positives] == dataset.positives.images_of(3).tolist()


def test_the_terminal_shows_the_provenance_the_anchor_and_its_ranks():
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    teacher = "0123456789abcdef" * 4
    provenance = replace(lists.provenance, teacher=f"{teacher}+{teacher}", proposals=teacher)
    lists = replace(lists, provenance=provenance)
    said = on_terminal(lists, dataset, [Anchor("image", 1), Anchor("text", 3)], depth=2)
    assert re.search(r"teacher +0123456789ab\+0123456789ab\s", said)
    assert re.search(r"proposals +0123456789ab\s", said)
    assert re.search(r"rules +one, two", said)
    assert f"3 texts for each of 6 images and 3 images for each of {dataset.n_texts} texts" in said
    assert "image 1: image-1" in said
    for text in dataset.positives.texts_of(1):
        assert f"belongs to it: {dataset.captions[text]}" in said
    for rank in (1, 2):
        text = lists.i2t[1, rank - 1]
        score = f"{lists.i2t_scores[1, rank - 1]:.3f}"
        row = f"{rank} +{score} +{dataset.caption_ids[text]} +{dataset.captions[text]}"
        assert re.search(row, said)
    assert "text 3: caption-3" in said


def test_the_terminal_takes_captions_as_they_are_and_lists_without_scores():
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    dataset = replace(dataset, captions=tuple(f"[red]{n}[/blue]" for n in range(dataset.n_texts)))
    lists = replace(lists, i2t_scores=np.full_like(lists.i2t_scores, np.nan))
    said = on_terminal(lists, dataset, [Anchor("image", 0)])
    assert f"[red]{lists.i2t[0, 0]}[/blue]" in said
    assert "nan" not in said


def page_of(tmp_path, lists, dataset, anchors, **options):
    write_inspection(tmp_path / "page.html", lists, dataset, anchors, **options)
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_holds_its_pictures_and_needs_nothing_else(tmp_path):
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    pictures = [tmp_path / f"{name}.png" for name in dataset.image_ids]
    for picture in pictures:
        Image.new("RGB", (300, 200), "red").save(picture)
    dataset = replace(dataset, pictures=tuple(pictures))
    page = page_of(tmp_path, lists, dataset, [Anchor("image", 1), Anchor("text", 0)], depth=2)
    sources = re.findall(r'src="([^"]*)"', page)
    assert len(sources) == 1 + 1 + 2  # the image; the text's own and its two wrong ones
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert not re.search(r"https?://|<link|<script|@import|url\(", page)
    assert "no picture" not in page
    for number in (*dataset.positives.texts_of(1), *lists.i2t[1, :2]):
        assert dataset.captions[number] in page
    assert f"{lists.i2t_scores[1, 0]:.3f}" in page


def test_pictures_that_are_unknown_missing_or_damaged_leave_a_placeholder(tmp_path):
    dataset = uneven_dataset()
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    pictures = (None, tmp_path / "missing.png", damaged, None, None, None)
    dataset = replace(dataset, pictures=pictures)
    anchors = [Anchor("image", number) for number in range(3)]
    page = page_of(tmp_path, sound_lists(dataset), dataset, anchors)
    assert page.count("no picture") == 3
    assert "<img" not in page


def test_captions_and_names_are_text_on_the_page_and_never_markup(tmp_path):
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    dataset = replace(
        dataset,
        name="<b>",
        captions=("<script>alert(1)</script>",) * dataset.n_texts,
        image_ids=tuple(f'"><script>{n}' for n in range(len(dataset))),
    )
    page = page_of(tmp_path, lists, dataset, sample_anchors(dataset))
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page
    assert "<b>" not in page


def test_lists_without_scores_are_shown_by_rank_alone(tmp_path):
    dataset = uneven_dataset()
    lists = sound_lists(dataset)
    lists = replace(lists, i2t_scores=np.full_like(lists.i2t_scores, np.nan))
    page = page_of(tmp_path, lists, dataset, [Anchor("image", 0)])
    assert '<span class="ranks">1</span>' in page
    assert "nan" not in page
