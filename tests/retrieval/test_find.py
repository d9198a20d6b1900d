"""Queries of several parts: composed, merged with captions, filtered, and judged by dev."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aoq.errors import QueryError
from aoq.retrieval.composition import standardised, unit_vectors
from aoq.retrieval.fusion import Fusion
from aoq.retrieval.matcher import Matcher
from aoq.retrieval.queries import Query
from aoq.scoring.logits import Logits
from aoq.types import Encoding
from tests.retrieval.conftest import PROPOSED
from tests.retrieval.test_matcher import score_matrix

VECTORS, PAIRS = ("vsrn", "vse"), ("scan", "bfan")


def vector_of(matcher, text):
    vector = matcher.encoder.encode_texts([text]).vectors[0].double().numpy()
    return vector / np.linalg.norm(vector)


def numbers(answer):
    return [hit.number for hit in answer.hits]


def everything(matcher, **asked):
    return matcher.find(Query(**{"top": 100, "words": "off"} | asked))


def scores_by_number(answer, count):
    assert sorted(numbers(answer)) == list(range(count))
    return np.array([hit.score for hit in sorted(answer.hits, key=lambda hit: hit.number)])


# Several parts


@pytest.mark.parametrize("name", VECTORS)
def test_unit_vectors_of_sentences_and_photos_are_added_by_their_weights(matchers, name):
    """q = unit(w_1 u_1 + w_2 u_2 + w_3 u_3 - 0.5 u_4), and a score is q . x."""
    matcher = matchers[name]
    images = matcher.index.rows("images")[:].vectors.double().numpy()
    photo = images[4] / np.linalg.norm(images[4])
    total = 1.0 * vector_of(matcher, "red ball") + 2.0 * vector_of(matcher, "two cup")
    total += 0.7 * photo - 0.5 * vector_of(matcher, "green")
    expected = images @ (total / np.linalg.norm(total))
    answer = everything(
        matcher,
        texts=("red ball", "two cup"),
        images=(matcher.index.images[4].picture,),
        without=("green",),
        weights=(1, 2, 0.7),
    )
    np.testing.assert_allclose(scores_by_number(answer, len(images)), expected, atol=1e-5)
    assert numbers(answer) == np.argsort(-expected, kind="stable").tolist()


@pytest.mark.parametrize("name", PAIRS)
def test_a_model_of_pairs_adds_standardised_scores(matchers, name):
    """sum_i w_i (s_i - mean) / deviation; a photo is compared by the mean of its regions."""
    matcher = matchers[name]
    images = matcher.index.rows("images")[:]
    with torch.no_grad():
        by_text = [
            matcher.encoder.model.score_matrix(images, matcher.encoder.encode_texts([text]))[:, 0]
            for text in ("red ball", "green")
        ]
    means = images.vectors.mean(dim=1)
    means = (means / means.norm(dim=1, keepdim=True)).double().numpy()
    parts = [by_text[0].double().numpy(), means @ means[4], by_text[1].double().numpy()]
    expected = sum(
        weight * (part - part.mean()) / part.std()
        for weight, part in zip((1, 2, -0.5), parts, strict=True)
    )
    photo = matcher.index.images[4].picture
    answer = everything(
        matcher, texts=("red ball",), images=(photo,), without=("green",), weights=(1, 2)
    )
    assert answer.exact
    np.testing.assert_allclose(scores_by_number(answer, len(expected)), expected, atol=1e-3)


def test_a_teacher_proposes_for_all_parts_together(matchers):
    matcher, teacher = matchers[PROPOSED], matchers["vse"]
    asked = {"texts": ("red ball", "two cup"), "without": ("green",), "top": 3}
    answer = everything(matcher, **asked)
    assert not answer.exact
    assert sorted(numbers(answer)) == sorted(numbers(everything(teacher, **asked)))


@pytest.mark.parametrize("name", ["vse", "bfan"])
def test_photos_like_a_photo_of_the_index_leave_that_one_out(matchers, name):
    matcher = matchers[name]
    answer = everything(matcher, images=(3,))
    assert sorted([*numbers(answer), 3]) == list(range(len(matcher.index.images)))
    by_file = everything(matcher, images=(matcher.index.images[3].picture,))
    assert numbers(by_file)[0] == 3
    assert numbers(by_file)[1:] == numbers(answer)
    assert len(matcher.find(Query(images=(3,), top=4)).hits) == 4


@pytest.mark.parametrize("name", ["vse", "bfan"])
def test_texts_like_a_text_are_found_by_their_vectors(matchers, name):
    matcher = matchers[name]
    texts = unit_vectors(matcher.index.rows("texts")[:]).double().numpy()
    expected = texts @ texts[7]
    answer = everything(matcher, texts=(7,), find="texts")
    best = [expected[hit.number] for hit in answer.hits]
    np.testing.assert_allclose(best, np.sort(expected)[::-1][: len(best)], atol=1e-5)
    assert {hit.correct for hit in answer.hits} == {None}


def test_what_cancels_out_is_refused(matchers):
    with pytest.raises(QueryError, match="are the same; exclude less"):
        matchers["vse"].find(Query(texts=("red ball",), without=("red ball",), without_weight=1))


def test_the_mean_of_words_leaves_padding_out():
    vectors = torch.tensor([[[3.0, 0.0], [0.0, 4.0], [9.0, 9.0]]])
    encoded = Encoding(vectors, torch.tensor([[True, True, False]]))
    assert torch.allclose(unit_vectors(encoded), torch.tensor([[0.6, 0.8]]))


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=9))
def test_standardised_scores_have_mean_0_and_deviation_1_unless_all_are_equal(scores):
    found = standardised(np.array(scores, float))
    assert abs(found.mean()) < 1e-6
    assert found.std() == pytest.approx(1, abs=1e-6) or not found.any()


# Captions


def plain_bm25(index, words, *, without=None):
    """Lucene's BM25 of all captions of a photo, by its formula; one text may be left out."""
    documents = [
        [word for text in image.texts for word in index.texts[text].text.split()]
        for image in index.images
    ]
    mean = np.mean([len(document) for document in documents])
    scores = np.zeros(len(documents))
    for number, image in enumerate(index.images):
        document = documents[number]
        if without in image.texts:
            document = [
                word
                for text in image.texts
                if text != without
                for word in index.texts[text].text.split()
            ]
        for word in words:
            having = sum(word in other for other in documents)
            rarity = np.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            count = document.count(word)
            scores[number] += (
                rarity * count / (count + 1.5 * (1 - 0.75 + 0.75 * len(document) / mean))
            )
    return scores


def test_words_alone_rank_photos_by_all_their_captions(matchers):
    index = matchers["vse"].index
    expected = plain_bm25(index, ["red", "ball"])
    answer = matchers["vse"].find(Query(texts=("Red ball!",), words="only", top=100))
    assert answer.ranked_by == "words"
    assert set(numbers(answer)) == set(np.flatnonzero(expected).tolist())
    np.testing.assert_allclose(
        [hit.score for hit in answer.hits], np.sort(expected)[::-1][: len(answer.hits)], atol=1e-5
    )
    for hit in answer.hits:
        assert hit.model_score is None
        assert hit.score == hit.words_score == pytest.approx(expected[hit.number], abs=1e-5)


def test_a_text_of_the_index_does_not_find_its_photo_by_itself(matchers):
    index = matchers["vse"].index
    for text in index.texts[::5]:
        expected = plain_bm25(index, text.text.split(), without=text.number)
        answer = matchers["vse"].find(Query(texts=(text.number,), words="only", top=100))
        found = {hit.number: hit.score for hit in answer.hits}
        for number, score in enumerate(expected):
            assert found.get(number, 0) == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("name", ["vse", "scan", PROPOSED])
@pytest.mark.parametrize("weight", [None, 0.3])
def test_the_model_and_words_are_merged_over_all_photos(matchers, name, weight):
    known = matchers[name]
    tuning = replace(known.index.manifest.tuning, weight=weight)
    manifest = replace(known.index.manifest, tuning=tuning)
    matcher = known.with_index(replace(known.index, manifest=manifest))
    model, texts = score_matrix(matcher), matcher.index.texts
    text = next(text for text in texts if text.split == "test")
    words = plain_bm25(matcher.index, text.text.split(), without=text.number)
    merged = Fusion(weight).merge(model[:, text.number], words)
    answer = matcher.find(Query(texts=(text.number,), top=5))
    assert answer.ranked_by == "merged"
    for hit in answer.hits:
        assert hit.model_score == pytest.approx(model[hit.number, text.number], abs=1e-5)
        assert hit.words_score == pytest.approx(words[hit.number], abs=1e-5)
        assert hit.correct == (hit.number in text.images)
    if name != PROPOSED:  # a teacher of three proposals, and the photos with any of the words
        assert [hit.score for hit in answer.hits] == pytest.approx(np.sort(merged)[::-1][:5])


def test_a_photo_is_shown_with_the_caption_that_was_found(matchers):
    index = matchers["vse"].index
    for text in index.texts[::4]:
        hits = matchers["vse"].find(Query(texts=(text.text,), words="only")).hits
        asked = set(text.text.split())
        for hit in hits:
            captions = [index.texts[each].text for each in index.images[hit.number].texts]
            assert hit.text in captions
            assert asked & set(hit.text.split())


def test_words_to_avoid_count_against_captions(matchers):
    index, matcher = matchers["vse"].index, matchers["vse"]
    expected = plain_bm25(index, ["red"]) - 0.5 * plain_bm25(index, ["ball"])
    answer = matcher.find(Query(texts=("red",), without=("ball",), words="only", top=100))
    assert set(numbers(answer)) == set(np.flatnonzero(expected > 0).tolist())
    for hit in answer.hits:
        assert hit.score == pytest.approx(expected[hit.number], abs=1e-5)


def test_a_photo_beside_words_is_left_to_the_model(matchers):
    answer = matchers["vse"].find(Query(texts=("red ball",), images=(3,)))
    assert answer.ranked_by == "model"


# Limits


@pytest.mark.parametrize("words", ["auto", "only", "off"])
def test_a_filter_lets_only_its_photos_be_found(matchers, words):
    matcher = matchers["vse"]
    of_dev = {image.number for image in matcher.index.images if image.split == "dev"}
    found = matcher.find(Query(texts=("red ball cup",), where="split = dev", words=words, top=99))
    assert set(numbers(found)) <= of_dev
    if words != "only":
        assert set(numbers(found)) == of_dev
    nothing = matcher.find(Query(texts=("red ball",), where="split = none", words=words))
    assert not nothing.hits
    assert not nothing.nothing_fits


@pytest.mark.parametrize("name", ["vse", "bfan"])
@pytest.mark.parametrize("words", ["auto", "only", "off"])
def test_hits_below_a_score_are_dropped(matchers, name, words):
    asked = Query(texts=("red ball",), words=words, top=5)
    scores = [hit.score for hit in matchers[name].find(asked).hits]
    answer = matchers[name].find(replace(asked, min_score=scores[2]))
    assert [hit.score for hit in answer.hits] == [s for s in scores if s >= scores[2]]
    nothing = matchers[name].find(replace(asked, min_score=1e9))
    assert nothing.nothing_fits
    assert nothing.bar == 1e9


@pytest.mark.parametrize("words", ["auto", "only", "off"])
def test_a_precision_is_reached_on_dev_itself(matchers, words):
    """Asked with the texts of dev, at least that share of the hits above the bar is right."""
    matcher = matchers["vse"]
    texts = [text.number for text in matcher.index.texts if text.split == "dev"]
    kind = {"auto": "merged", "only": "words", "off": "model"}[words]
    calibration = matcher.calibrations[kind]
    assert (calibration.split, calibration.queries) == ("dev", len(texts))
    wanted = calibration.best_precision
    found = [
        hit
        for text in texts
        for hit in matcher.find(
            Query(texts=(text,), words=words, min_precision=wanted, where="split = dev")
        ).hits
    ]
    assert found
    assert np.mean([hit.correct for hit in found]) >= wanted
    for hit in found:
        assert hit.probability == pytest.approx(calibration.probability(hit.score), abs=1e-4)


def test_a_precision_that_dev_does_not_reach_is_refused_with_the_one_it_does(matchers):
    matcher = matchers["vse"]
    low = replace(matcher.calibrations["model"], lowest=(0.0,), mean=(0.5,), hits=(8,), right=(2,))
    tuning = replace(matcher.index.manifest.tuning, calibrations={"model": low})
    manifest = replace(matcher.index.manifest, tuning=tuning)
    other = matcher.with_index(replace(matcher.index, manifest=manifest))
    query = Query(texts=("red ball",), words="off", min_precision=0.5)
    with pytest.raises(QueryError, match=r"no score has a precision of 50% on dev.* reach 25%"):
        other.find(query)
    assert other.find(replace(query, min_precision=0.25)).bar == 0
    manifest = replace(manifest, tuning=None)
    unknown = matcher.with_index(replace(matcher.index, manifest=manifest))
    with pytest.raises(QueryError, match="holds no captions of a dev split"):
        unknown.find(query)
    assert all(
        hit.probability is None for hit in unknown.find(replace(query, min_precision=None)).hits
    )


def test_a_siglip_without_dev_has_its_own_probability(matchers, monkeypatch):
    known = matchers["vse"]
    manifest = replace(known.index.manifest, tuning=None)
    matcher = known.with_index(replace(known.index, manifest=manifest))
    logits = Logits(scale=10.0, bias=-1.0)
    monkeypatch.setattr(known.encoder, "trained", replace(known.encoder.trained, logits=logits))
    asked = Query(texts=("red ball",), words="off", top=100)
    everything = matcher.find(asked).hits
    middle = everything[5]
    assert middle.probability == pytest.approx(1 / (1 + np.exp(1 - 10 * middle.score)))
    answer = matcher.find(replace(asked, min_precision=middle.probability - 1e-6))
    assert answer.hits == everything[:6]
    assert answer.calibration is None
    with pytest.raises(QueryError, match="holds no captions of a dev split"):
        matcher.find(Query(texts=("red ball",), min_precision=0.5))  # merged by ranks


def test_what_scores_of_composed_queries_mean_is_not_made_up(matchers):
    matcher = matchers["vse"]
    for query in (
        Query(texts=("red ball", "green")),
        Query(images=(3,)),
        Query(texts=("red ball",), without=("green",)),
    ):
        answer = matcher.find(query)
        assert answer.calibration is None
        assert all(hit.probability is None for hit in answer.hits)
        with pytest.raises(QueryError, match="queries of one sentence only"):
            matcher.find(replace(query, min_precision=0.5))


def test_duplicates_are_one_hit_with_their_number(matchers):
    """None of the hits shown duplicates a better one, and each other photo does."""
    matcher, same = matchers["vse"], 0.9
    images = matcher.index.rows("images")[:].vectors.double().numpy()
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    answer = matcher.find(
        Query(texts=("red ball",), words="off", collapse=True, same=same, top=100)
    )
    shown = numbers(answer)
    assert sorted([*shown, *(n for hit in answer.hits for n in hit.duplicates)]) == list(
        range(len(images))
    )
    for hit in answer.hits:
        assert hit.count == 1 + len(hit.duplicates)
        assert all(images[hit.number] @ images[other] >= same - 1e-6 for other in hit.duplicates)
    for place, number in enumerate(shown):
        assert all(images[number] @ images[other] < same + 1e-6 for other in shown[:place])


# The query itself


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "the query is empty"),
        ({"texts": "red"}, "expected a list"),
        ({"texts": ("red",), "weights": (1, 2)}, "2 weights are given for 1 texts and photos"),
        ({"texts": ("red",), "weights": (0,)}, "0 is not a weight"),
        ({"texts": ("red",), "without_weight": float("nan")}, "not a weight"),
        ({"texts": ("red",), "without": (3,)}, "3 cannot be excluded"),
        ({"texts": ("red",), "top": 0}, "ask for 1 or more"),
        ({"texts": ("red",), "min_score": "high"}, "is not a score"),
        ({"texts": ("red",), "min_precision": 1}, "1 is not a precision"),
        ({"texts": ("red",), "same": 1.5}, "is not a cosine"),
        ({"texts": ("red",), "find": "photos"}, "expected images or texts"),
        ({"texts": ("red",), "words": "some"}, "expected auto or only or off"),
        ({"images": (3,), "words": "only"}, "give sentences and no photo"),
        ({"images": (3,), "find": "texts", "collapse": True}, "only photos have duplicates"),
    ],
)
def test_a_query_that_cannot_be_meant_is_refused(fields, sentence):
    with pytest.raises(QueryError, match=sentence):
        Query(**fields)


def test_an_index_without_captions_has_no_words_to_search(world, tmp_path):
    from aoq.retrieval.build import Contents, build_index

    contents = Contents(pictures=[world.photos], with_data=False)
    build_index(world.runs["vse"], contents, out=tmp_path / "index")
    matcher = Matcher.load(world.runs["vse"], index=tmp_path / "index")
    assert matcher.captions is None
    assert matcher.find(Query(texts=("red ball",))).ranked_by == "model"
    with pytest.raises(QueryError, match="holds no captions whose words"):
        matcher.find(Query(texts=("red ball",), words="only"))
