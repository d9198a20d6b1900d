"""The matcher: what it finds, what it says about words, and what looked at what."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from aoq.data.build import build_dataset
from aoq.data.sources.records import Record
from aoq.errors import UserError
from aoq.features.regions import PictureReader, RegionSource
from aoq.retrieval.build import Contents, build_index
from aoq.retrieval.encoder import QueryError
from aoq.retrieval.matcher import Matcher
from tests.conftest import WORDS
from tests.retrieval.conftest import PROPOSED, draw_photo

MODELS = ("vsrn", "vse", "scan", "bfan")


def score_matrix(matcher):
    """Every image of an index against every text, by the model itself."""
    images, texts = (matcher.index.rows(kind)[:] for kind in ("images", "texts"))
    with torch.no_grad():
        return matcher.encoder.model.score_matrix(images, texts).numpy()


def assert_ranks(hits, scores):
    """Hits are the best of `scores`, best first; equal to the last digit or two."""
    np.testing.assert_allclose(
        [hit.score for hit in hits], np.sort(scores)[::-1][: len(hits)], atol=1e-5
    )
    np.testing.assert_allclose(
        [scores[hit.number] for hit in hits], [h.score for h in hits], atol=1e-5
    )
    assert len({hit.number for hit in hits}) == len(hits)


@pytest.mark.parametrize("name", MODELS)
def test_every_entry_finds_what_the_full_matrix_says(matchers, name):
    matcher = matchers[name]
    scores = score_matrix(matcher)
    for image in range(0, len(matcher.index.images), 4):
        assert_ranks(matcher.texts_for(image, top=9).hits, scores[image])
    for text in range(0, len(matcher.index.texts), 9):
        assert_ranks(matcher.images_for(text, top=9).hits, scores[:, text])


@pytest.mark.parametrize("name", MODELS)
def test_a_sentence_finds_what_the_same_text_of_the_index_finds(matchers, name):
    matcher = matchers[name]
    for entry in matcher.index.texts[::7]:
        by_words = matcher.search(entry.text, top=5)
        by_number = matcher.images_for(entry.number, top=5)
        np.testing.assert_allclose(
            [hit.score for hit in by_words.hits], [hit.score for hit in by_number.hits], atol=1e-5
        )
        assert by_words.exact
        assert by_words.unknown_words == ()


@pytest.mark.parametrize("name", MODELS)
def test_a_picture_finds_what_the_same_image_of_the_index_finds(matchers, name):
    matcher = matchers[name]
    for entry in matcher.index.images[::8]:
        encoded = matcher.encoder.encode_picture(entry.picture).vectors
        stored = matcher.index.rows("images")[torch.tensor([entry.number])].vectors
        torch.testing.assert_close(encoded, stored, atol=1e-5, rtol=0)
        expected = [hit.score for hit in matcher.texts_for(entry.number, top=6).hits]
        for query in (entry.picture, entry.picture.read_bytes()):
            found = [hit.score for hit in matcher.texts_for(query, top=6).hits]
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_teacher_proposes_and_the_model_ranks_and_scores(world, matchers):
    """What is found is what the model ranks first of the three that the teacher ranks first."""
    matcher, teacher, full = matchers[PROPOSED], matchers["vse"], matchers["bfan"]
    picture = world.photos / "dev-2.png"
    questions = [
        lambda asked, top: asked.search("two red cup", top=top),
        lambda asked, top: asked.search(picture, top=top),
        lambda asked, top: asked.images_for(7, top=top),
        lambda asked, top: asked.texts_for(7, top=top),
    ]
    for ask in questions:
        answer = ask(matcher, 3)
        assert not answer.exact
        proposed = {hit.number for hit in ask(teacher, 3).hits}
        expected = [hit for hit in ask(full, 100).hits if hit.number in proposed]
        assert [hit.number for hit in answer.hits] == [hit.number for hit in expected]
        np.testing.assert_allclose(
            [hit.score for hit in answer.hits], [hit.score for hit in expected], atol=1e-5
        )
        assert len(ask(matcher, 9).hits) == 9


def test_entries_know_who_belongs_to_whom_and_hits_say_so(matchers, world):
    matcher = matchers["vse"]
    index = matcher.index
    for image in index.images:
        assert all(image.number in index.texts[text].images for text in image.texts)
        assert all(index.texts[text].id.startswith(image.id) for text in image.texts)
        assert image.picture == world.photos / image.id
        assert image.id.startswith(image.split)
    hits = matcher.texts_for(3, top=len(index.texts)).hits
    assert {hit.number for hit in hits if hit.correct} == set(index.images[3].texts)
    hits = matcher.images_for(5, top=len(index.images)).hits
    assert {hit.number for hit in hits if hit.correct} == set(index.texts[5].images)
    assert all(hit.text == index.texts[index.images[hit.number].texts[0]].text for hit in hits)
    assert all(hit.correct is None for hit in matcher.search("red ball").hits)


def test_unknown_words_are_named_once_and_a_query_of_nothing_else_is_refused(matchers):
    matcher = matchers["vse"]
    answer = matcher.search("a Red zebra, a zebra!")
    assert answer.unknown_words == ("a", "zebra", ",", "!")
    with pytest.raises(UserError, match=r"no word of this text \(zebra, crossing\)"):
        matcher.search("zebra crossing !")
    with pytest.raises(UserError, match="knows no word"):
        matcher.score(0, ["red ball", "zebra"])


@pytest.mark.parametrize("text", ["", "  ", "?!", "red \udc80"])
def test_a_query_without_words_is_refused(matchers, text):
    with pytest.raises(UserError, match="has no words"):
        matchers["bfan"].search(text)


@pytest.mark.parametrize("name", MODELS)
def test_scores_of_a_picture_are_those_of_the_search(matchers, name):
    matcher = matchers[name]
    picture = matcher.index.images[2].picture
    hits = matcher.search(picture, top=4).hits
    scores = matcher.score(picture, [hit.text for hit in hits])
    np.testing.assert_allclose(scores, [hit.score for hit in hits], atol=1e-5)
    np.testing.assert_allclose(scores, matcher.score(2, [hit.text for hit in hits]), atol=1e-5)


@pytest.mark.parametrize("number", [-1, 22, 10**9])
def test_a_number_that_no_entry_has_is_refused(matchers, number):
    with pytest.raises(QueryError, match=f"no image {number}; the index holds 22"):
        matchers["vse"].texts_for(number)
    if number != 22:
        with pytest.raises(QueryError, match=f"no text {number}"):
            matchers["vse"].images_for(number)


@pytest.mark.parametrize("number", [True, 1.0, None])
def test_what_is_not_a_number_is_refused(matchers, number):
    matcher = matchers["bfan"]
    for ask in (matcher.images_for, matcher.texts_for, lambda one: matcher.attention(one, 0)):
        with pytest.raises(QueryError, match="is not a number"):
            ask(number)
    with pytest.raises(QueryError, match="is not a number"):
        matcher.search("red ball", top=number)


def test_a_picture_that_is_named_by_a_string_is_refused_with_what_to_give(matchers):
    with pytest.raises(QueryError, match="a picture as a Path"):
        matchers["vse"].texts_for("photo.png")


def test_numbers_of_numpy_and_runs_named_by_strings_will_do(world, matchers):
    matcher = Matcher.load(str(world.runs["vse"]))
    assert matcher.texts_for(np.int64(3)) == matchers["vse"].texts_for(3)
    assert matcher.images_for(np.int32(3), top=np.int64(2)) == matchers["vse"].images_for(3, top=2)


@pytest.mark.parametrize("name", ["vse", "bfan", PROPOSED])
@pytest.mark.parametrize("top", [0, -1])
def test_fewer_than_one_cannot_be_found(matchers, name, top):
    for query in ("red ball", matchers[name].index.images[0].picture):
        with pytest.raises(QueryError, match="ask for 1 or more"):
            matchers[name].search(query, top=top)


def test_a_file_that_is_not_a_picture_is_refused(matchers, tmp_path):
    (tmp_path / "no.jpg").write_bytes(b"nothing")
    for query in (tmp_path / "no.jpg", b"nothing"):
        with pytest.raises(UserError, match="not a picture"):
            matchers["vse"].texts_for(query)


# Attention


def test_words_look_at_regions_and_regions_at_words(matchers):
    matcher = matchers["bfan"]
    seen = matcher.attention(1, "red zebra ball")
    assert seen.words == ("red", "zebra", "ball")
    assert seen.known == (True, False, True)
    assert seen.by_word.shape == (3, 4)
    np.testing.assert_allclose(seen.by_word.sum(axis=1), 1, atol=1e-5)
    assert seen.by_region.shape == (4, 3)
    assert (seen.by_region.sum(axis=1) <= 1 + 1e-5).all()
    assert seen.boxes.tolist() == [
        [0, 0, 0.5, 0.5],
        [0.5, 0, 1, 0.5],
        [0, 0.5, 0.5, 1],
        [0.5, 0.5, 1, 1],
    ]


def test_attention_leaves_the_marks_of_start_and_end_out_and_scales_nothing_up(matchers):
    matcher = matchers["bfan"]
    entry = matcher.index.texts[4]
    seen = matcher.attention(2, entry.number)
    image, text = (
        matcher.index.rows(kind)[torch.tensor([number])]
        for kind, number in (("images", 2), ("texts", entry.number))
    )
    maps = matcher.encoder.model.attention_maps(image, text)
    np.testing.assert_allclose(seen.by_word, maps["t2i"][0, 1:-1], atol=1e-6)
    np.testing.assert_allclose(seen.by_region, maps["i2t"][0, :, 1:-1], atol=1e-6)
    assert len(seen.words) == len(entry.text.split())


def test_attention_of_a_picture_is_that_of_the_same_image(matchers):
    matcher = matchers["bfan"]
    entry = matcher.index.images[6]
    one, other = (matcher.attention(image, "red ball") for image in (entry.number, entry.picture))
    np.testing.assert_allclose(one.by_word, other.by_word, atol=1e-4)
    assert np.array_equal(one.boxes, other.boxes)


def test_attention_comes_with_the_score_and_a_teacher_changes_neither(matchers):
    alone, proposed = (matchers[name].attention(3, "red ball") for name in ("bfan", PROPOSED))
    assert alone.score == pytest.approx(matchers["bfan"].score(3, ["red ball"])[0], abs=1e-5)
    assert proposed.score == pytest.approx(alone.score, abs=1e-6)
    np.testing.assert_allclose(proposed.by_word, alone.by_word, atol=1e-6)


@pytest.mark.parametrize("name", ["bfan", PROPOSED])
def test_a_picture_that_was_read_is_not_read_again(matchers, monkeypatch, name):
    matcher = matchers[name]
    picture = matcher.index.images[6].picture

    def ask(image):
        seen = matcher.attention(image, "red ball")
        return (matcher.texts_for(image), matcher.score(image, ["red ball"]), seen.score)

    expected, read = ask(picture), matcher.read_picture(picture)
    monkeypatch.setattr(PictureReader, "regions", None)
    assert ask(read) == expected


def test_pictures_can_be_prepared_for(world, matchers):
    matcher = Matcher.load(world.runs["vse"])
    picture = world.photos / "test-0.png"
    reader = matcher.prepare_pictures(threads=3)
    assert matcher.texts_for(picture) == matchers["vse"].texts_for(picture)
    assert matcher.encoder.reader is reader


def test_a_picture_that_another_network_read_is_refused(matchers):
    read = matchers["vse"].read_picture(matchers["vse"].index.images[0].picture)
    with pytest.raises(UserError, match="let this run read it"):
        matchers["vse"].texts_for(replace(read, source=RegionSource(grid=3)))


def test_texts_of_the_index_are_answered_whatever_their_words(world, tmp_path):
    record = Record(
        "a.png", draw_photo(tmp_path / "a.png", seed=1), "test", ("zebra crossing",), ("a#0",)
    )
    build_dataset([record], tmp_path / "data", name="zebras", source=RegionSource(grid=2))
    contents = Contents(data=tmp_path / "data")
    build_index(world.runs["bfan"], contents, out=tmp_path / "index")
    matcher = Matcher.load(world.runs["bfan"], index=tmp_path / "index")
    seen = matcher.attention(0, 0)
    assert (seen.words, seen.known) == (("zebra", "crossing"), (False, False))
    assert seen.score == pytest.approx(matcher.images_for(0).hits[0].score, abs=1e-5)
    assert matcher.score(0, [0]) == [pytest.approx(seen.score, abs=1e-5)]
    with pytest.raises(QueryError, match="knows no word"):
        matcher.attention(0, "zebra crossing")


def test_a_model_that_looks_one_way_shows_one_way(matchers):
    seen = matchers["scan"].attention(0, "red ball")
    assert seen.by_word is not None
    assert seen.by_region is None


@pytest.mark.parametrize("name", ["vsrn", "vse"])
def test_a_model_without_attention_says_why(matchers, name):
    matcher = matchers[name]
    assert not matcher.has_attention
    assert matcher.attention_reason.startswith(f"{name.upper()} has no attention")
    with pytest.raises(UserError, match="one vector of the whole"):
        matcher.attention(0, 0)


# Many at once


@pytest.mark.parametrize("name", ["vse", "bfan", PROPOSED])
def test_threads_that_ask_at_once_get_what_each_would_get_alone(matchers, name):
    known = matchers[name]
    fresh = Matcher.load(known.run, index=known.index.folder)  # they meet in loading, too

    def ask(matcher, number):
        sentence = f"{WORDS[number % len(WORDS)]} ball"
        picture = matcher.index.images[number % 5].picture
        answers = (
            matcher.search(sentence, top=4),
            matcher.texts_for(picture, top=4),
            matcher.images_for(number, top=4),
        )
        return [[(hit.number, round(hit.score, 4)) for hit in answer.hits] for answer in answers]

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda number: ask(fresh, number), range(24)))
    assert together == [ask(known, number) for number in range(24)]


@pytest.mark.parametrize("query", [42, None, b"red ball"])
def test_a_search_takes_sentences_and_files_only(matchers, query):
    with pytest.raises(QueryError, match="is not a query; expected a sentence"):
        matchers["vse"].search(query)


@pytest.mark.parametrize("texts", ["red ball", 42])
def test_one_text_is_not_a_list_of_texts(matchers, texts):
    with pytest.raises(QueryError, match="is not a list of texts"):
        matchers["vse"].score(0, texts)
