"""Rankings: the order of the full score matrix, equal scores by the lower number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.errors import UserError
from aoq.retrieval import ranking, vector_ranking
from aoq.retrieval.ranking import Candidates, FullRanker, ProposedRanker
from aoq.retrieval.stores import embedded
from aoq.retrieval.vector_ranking import EncodedQuery, VectorRanker
from aoq.scoring.cross_attention import Attention, CrossAttention
from aoq.scoring.encoded import PackedEncoding
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding


def units(count, width=16, *, seed=0):
    vectors = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vectors, dim=-1)


def in_order(scores, top):
    """What a plain sort makes of a matrix (queries, candidates)."""
    return np.argsort(-np.asarray(scores), axis=1, kind="stable")[:, :top]


def test_vectors_are_ranked_as_the_full_matrix_says():
    vectors, queries = units(1000), units(7, seed=1)
    found = VectorRanker.of_rows(Encoding(vectors)).rank(EncodedQuery(Encoding(queries)), top=25)
    scores = (queries.double() @ vectors.double().T).float()
    assert np.array_equal(found.ids, in_order(scores, 25))
    expected = np.take_along_axis(scores.numpy(), found.ids, axis=1)
    assert np.array_equal(found.scores, expected)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 300), st.integers(1, 40))
def test_equal_scores_are_ranked_by_the_lower_number_however_many_there_are(seed, count, top):
    """Entries of -1, 0 and 1 in four dimensions: nearly everything is equal to something else."""
    random = np.random.default_rng(seed)
    vectors = torch.from_numpy(random.integers(-1, 2, (count, 4)).astype(np.float32))
    queries = torch.from_numpy(random.integers(-1, 2, (3, 4)).astype(np.float32))
    found = VectorRanker.of_rows(Encoding(vectors)).rank(EncodedQuery(Encoding(queries)), top=top)
    assert np.array_equal(found.ids, in_order(queries @ vectors.T, top))


@pytest.mark.parametrize("top", [10, 150])
def test_scores_that_differ_by_less_than_faiss_rounds_are_in_order_too(top):
    """Nearly equal vectors: the best are not among those that faiss is first asked for."""
    noise = torch.randn(3000, 256, generator=torch.Generator().manual_seed(1))
    vectors = units(1, 256) + 1e-8 * noise
    query = units(1, 256, seed=2)
    ranker = VectorRanker.of_rows(Encoding(vectors))
    found = ranker.rank(EncodedQuery(Encoding(query)), top=top)
    exact = (query.double() @ vectors.double().T).float()
    assert np.array_equal(found.ids, in_order(exact, top))
    _, proposed = ranker._store._index.search(query.numpy(), top + vector_ranking._EXTRA)
    assert not set(found.ids[0]) <= set(proposed[0]), "the case is too easy"


def test_nearly_equal_vectors_are_compared_in_blocks(monkeypatch):
    vectors, queries = units(1, 64).repeat(1003, 1), EncodedQuery(Encoding(units(3, 64, seed=2)))
    ranker = VectorRanker.of_rows(Encoding(vectors))
    compared, reconstruct = [], ranker._store._index.reconstruct_batch

    def watched(ids):
        compared.append(len(ids))
        return reconstruct(ids)

    monkeypatch.setattr(ranker._store._index, "reconstruct_batch", watched)
    monkeypatch.setattr(vector_ranking, "BLOCK_BYTES", 50 * 3 * 64 * 8)
    found = ranker.rank(queries, top=10)
    assert found.ids.tolist() == [list(range(10))] * 3
    assert sum(compared) >= 1003
    assert max(compared) == 50


def test_equal_vectors_are_in_order_however_many_there_are():
    vectors = units(1, 100).repeat(1003, 1)
    found = VectorRanker.of_rows(Encoding(vectors)).rank(
        EncodedQuery(Encoding(units(1, 100, seed=2))), top=10
    )
    assert found.ids[0].tolist() == list(range(10))


def test_vectors_are_read_in_blocks_as_if_they_were_read_at_once(monkeypatch):
    vectors, query = units(100), EncodedQuery(Encoding(units(2, seed=1)))
    whole = VectorRanker.of_rows(Encoding(vectors)).rank(query, top=9)
    monkeypatch.setattr(embedded, "BLOCK_BYTES", 7 * vectors[0].nbytes)
    pieces = VectorRanker.of_rows(Encoding(vectors)).rank(query, top=9)
    assert np.array_equal(whole.ids, pieces.ids)


def test_more_than_there_is_gives_all_there_is():
    found = VectorRanker.of_rows(Encoding(units(5))).rank(
        EncodedQuery(Encoding(units(1, seed=1))), top=50
    )
    assert sorted(found.ids[0].tolist()) == [0, 1, 2, 3, 4]


def test_without_faiss_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr("aoq.errors.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "aoq\[search\]"'):
        VectorRanker.of_rows(Encoding(units(5)))


class BothWays(CrossAttention):
    def __init__(self):
        self.attentions = {"t2i": Attention(temperature=9.0), "i2t": Attention(temperature=4.0)}


def crossed(*, images=40, texts=60):
    """Images of four regions, and texts of two to six words."""
    lengths = torch.from_numpy(np.random.default_rng(2).integers(2, 7, texts))
    regions = Encoding(units(images * 4).view(images, 4, 16))
    return regions, PackedEncoding(units(int(lengths.sum()), seed=1), lengths)


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("kind", ["images", "texts"])
def test_scoring_everything_in_blocks_is_the_order_of_the_matrix(monkeypatch, kind, block):
    images, texts = crossed()
    scores = BothWays().score_matrix(images[:], texts[:])
    rows, others = (images, texts) if kind == "images" else (texts, images)
    matrix = scores.T if kind == "images" else scores
    monkeypatch.setattr(ranking, "_BLOCK_BYTES", block * rows.row_nbytes)
    full = FullRanker(Candidates(BothWays(), rows, kind))
    found = full.rank(EncodedQuery(others[:]), top=12)
    assert full.exact
    expected = np.take_along_axis(matrix.numpy(), in_order(matrix, 12), axis=1)
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)
    assert (found.ids == in_order(matrix, 12)).mean() > 0.99


def test_equal_images_in_different_blocks_are_ranked_by_the_lower_number(monkeypatch):
    """The inner product of whole numbers is exact, so that equal ones are equal to the last bit."""
    vectors = torch.from_numpy(np.random.default_rng(0).integers(-1, 2, (50, 4)).astype(np.float32))
    query = torch.ones(1, 4)
    monkeypatch.setattr(ranking, "_BLOCK_BYTES", 6 * vectors[0].nbytes)
    full = FullRanker(Candidates(InnerProduct(), Encoding(vectors), "images"))
    assert np.array_equal(
        full.rank(EncodedQuery(Encoding(query)), top=20).ids, in_order(query @ vectors.T, 20)
    )


def proposed(kind, *, proposals):
    images, texts = crossed()
    rows, others = (images, texts) if kind == "images" else (texts, images)
    teacher = VectorRanker.of_rows(Encoding(units(len(rows), seed=5)))
    ranker = ProposedRanker(Candidates(BothWays(), rows, kind), teacher, proposals)
    query = EncodedQuery(others[slice(0, 6)], Encoding(units(6, seed=6)))
    return ranker, query


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_a_teacher_that_proposes_everything_misses_nothing(kind):
    ranker, query = proposed(kind, proposals=1000)
    assert ranker.exact
    found, full = ranker.rank(query, top=15), FullRanker(ranker.candidates).rank(query, top=15)
    np.testing.assert_allclose(found.scores, full.scores, atol=1e-5)
    assert np.array_equal(found.ids, full.ids)


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_only_what_the_teacher_proposes_is_found_in_the_order_of_the_model(kind):
    ranker, query = proposed(kind, proposals=9)
    assert not ranker.exact
    found = ranker.rank(query, top=5)
    everything = FullRanker(ranker.candidates).rank(query, top=1000)
    proposals = ranker.teacher.rank_vectors(query.teacher, top=9).ids
    for row, ids in enumerate(found.ids):
        allowed = [number for number in everything.ids[row] if number in proposals[row]]
        assert ids.tolist() == allowed[:5]


def test_whoever_asks_for_more_than_is_proposed_gets_as_many_as_asked_for():
    ranker, query = proposed("images", proposals=3)
    assert ranker.rank(query, top=8).ids.shape == (6, 8)
