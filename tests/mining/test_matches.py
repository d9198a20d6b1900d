"""The probability that a candidate is right: against plain loops, and where it is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.config import MiningConfig
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists
from aoq.mining.captions import words_of
from aoq.mining.matches import SAME, estimate_matches, fit
from aoq.mining.mine import mine, mine_in_processes
from aoq.mining.overlap import WordOverlap
from aoq.mining.report import MiningReport, mining_report
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Positives
from tests.conftest import uneven_dataset
from tests.mining.cases import NOWHERE
from tests.mining.test_report import encode, few_words

DATASET = few_words(uneven_dataset(images=60, seed=4))
CONFIG = MiningConfig(depth_texts=20, depth_images=12, estimate_matches=True)


def likeness_by_loop(positives, captions, image, text):
    words, best = set(words_of(captions[text])), None
    for own in positives.texts_of(image):
        if own != text:
            others = set(words_of(captions[own]))
            share = len(words & others) / max(len(words | others), 1)
            best = share if best is None else max(best, share)
    return np.nan if best is None else best


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_the_likeness_of_pairs_is_that_of_a_plain_loop(seed):
    dataset = few_words(uneven_dataset(images=8, seed=seed))
    positives, captions = dataset.positives, dataset.captions
    images, texts = np.meshgrid(np.arange(8), np.arange(dataset.n_texts), indexing="ij")
    images, texts = images.ravel(), texts.ravel()
    expected = [
        likeness_by_loop(positives, captions, *pair) for pair in zip(images, texts, strict=True)
    ]
    np.testing.assert_allclose(WordOverlap(positives, captions).of(images, texts), expected)


def mixture(*, share, seed=0, candidates=20_000, named=4_000):
    """Candidates of which a share are matches; matches score higher and share more words."""
    random = np.random.default_rng(seed)
    is_match = random.random(candidates) < share

    def draw(matches):
        scores = random.normal(size=len(matches)) + 1.5 * matches
        likeness = np.where(
            matches, random.beta(3, 4, len(matches)), random.beta(1, 9, len(matches))
        )
        return scores, likeness

    return is_match, draw(is_match), draw(np.ones(named, dtype=bool))


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_the_share_of_a_mixture_and_its_members_are_found(share):
    is_match, candidates, named = mixture(share=share)
    found = fit(*candidates, *named)
    p = found.probability(*candidates)
    assert found.share == pytest.approx(share, rel=0.35)
    assert p.mean() == pytest.approx(found.share, abs=0.01)
    assert p[is_match].mean() > p[~is_match].mean() + 0.2
    for low in (0.0, 0.25, 0.5, 0.75):  # calibrated, as far as the share is
        rows = (p >= low) & (p < low + 0.25)
        if rows.sum() > 300:
            assert is_match[rows].mean() == pytest.approx(p[rows].mean(), abs=0.25)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.03, 0.3]))
def test_p_is_a_probability_that_never_falls_with_score_or_likeness(seed, share):
    _, candidates, named = mixture(share=share, seed=seed, candidates=300, named=60)
    found = fit(*candidates, *named)
    grid = np.linspace(-4, 4, 9)
    p = np.array([found.probability(grid, np.full(9, words)) for words in (0.0, 0.4, 0.79, SAME)])
    assert np.isfinite(p).all()
    assert (p >= 0).all()
    assert (p <= 1).all()
    assert (np.diff(p, axis=0) >= 0).all()
    assert (np.diff(p, axis=1) >= 0).all()
    assert (p[-1] == 1).all()


def test_with_one_caption_an_image_only_those_that_say_the_same_are_matches():
    captions = ["a dog", "A dog.", "two cats", "a dog runs fast"]
    positives = Positives.from_pairs([(n, n) for n in range(4)], n_images=4, n_texts=4)
    ids = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]], np.int32)
    scores = np.tile(np.array([3, 2, 1], np.float32), (4, 1))
    lists = CandidateLists(ids, scores, ids, scores, NOWHERE)
    found, estimates = estimate_matches(
        lists, positives, captions, pair_ids=positives.pairs, pair_scores=np.ones(4, np.float32)
    )
    expected = [[1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(found.i2t_matches, expected)
    np.testing.assert_array_equal(found.t2i_matches, expected)
    assert estimates["i2t"].share == pytest.approx(2 / 12)


def mined(config=CONFIG, dataset=DATASET):
    return mine_in_processes(
        InnerProduct(),
        encode(dataset),
        dataset.positives,
        config=config,
        provenance=replace(NOWHERE, data=dataset.fingerprint),
        captions=dataset.captions,
    )


def test_mining_stores_estimates_and_finds_the_lists_that_it_finds_without():
    lists, without = mined().lists, mined(replace(CONFIG, estimate_matches=False)).lists
    np.testing.assert_array_equal(lists.i2t, without.i2t)
    np.testing.assert_array_equal(lists.t2i, without.t2i)
    assert lists.i2t_matches.shape == lists.i2t.shape
    assert without.i2t_matches is without.t2i_matches is None
    overlap = WordOverlap(DATASET.positives, DATASET.captions)
    rows = np.repeat(np.arange(len(lists.i2t)), lists.depth_texts)
    same = overlap.of(rows, lists.i2t.ravel().astype(np.int64)) >= SAME
    assert same.any()
    assert (lists.i2t_matches.ravel()[same] == 1).all()
    assert 0 < lists.t2i_matches.mean() < 1


def test_lists_with_estimates_are_stored_cut_and_checked(tmp_path):
    lists = mined().lists
    lists.save(tmp_path / "lists.safetensors")
    read = CandidateLists.load(tmp_path / "lists.safetensors").require_fit(DATASET, source="file")
    np.testing.assert_array_equal(read.i2t_matches, lists.i2t_matches)
    np.testing.assert_array_equal(read.cut(3).t2i_matches, lists.t2i_matches[:, :3])
    assert read.nbytes == lists.nbytes > replace(lists, i2t_matches=None).nbytes
    wrong = lists.i2t_matches.copy()
    wrong[2, 1] = 1.5
    with pytest.raises(UserError, match=r"row 2, rank 1 has the probability 1\.5"):
        replace(lists, i2t_matches=wrong).require_fit(DATASET, source="file")
    with pytest.raises(UserError, match="probabilities are float32"):
        replace(lists, t2i_matches=wrong).require_fit(DATASET, source="file")


def test_estimates_need_the_captions():
    with pytest.raises(UserError, match="estimate_matches reads the captions"):
        mine(
            InnerProduct(),
            encode(DATASET),
            DATASET.positives,
            config=CONFIG,
            provenance=NOWHERE,
        )


def test_the_report_tells_how_many_are_right(tmp_path):
    result = mined()
    report = mining_report(InnerProduct(), encode(DATASET), DATASET, result, config=CONFIG)
    report.save(tmp_path / "report.json")
    assert MiningReport.load(tmp_path / "report.json") == report
    assert report.i2t.matches.share == pytest.approx(result.lists.i2t_matches.mean())
    assert list(report.i2t.matches.by_rank) == ["1", "10", "20"]
    first = result.lists.t2i_matches[:, 0].mean()
    assert report.t2i.matches.by_rank["1"] == pytest.approx(first)
