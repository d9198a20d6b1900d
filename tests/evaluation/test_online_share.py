"""How hard in-batch negatives are in the whole set: against a full matrix, and the formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aoq.errors import UserError
from aoq.evaluation import online_share as module
from aoq.evaluation.online_share import online_shares
from aoq.randomness import epoch_order
from aoq.scoring.inner_product import InnerProduct
from tests.evaluation.cases import encode, in_order, matrix_of, uneven


def looped_ranks(matrix, positives, pairs, size):
    """The rank of each anchor's hardest in-batch negative, both ways, batch by batch."""
    i2t, t2i = [], []
    for start in range(0, len(pairs) - size + 1, size):
        batch = pairs[start : start + size]
        for image, text in batch.tolist():
            wrong = [t for t in range(positives.n_texts) if t not in positives.texts_of(image)]
            hardest = max(matrix[image, t] for t in batch[:, 1] if t in wrong)
            i2t.append(1 + sum(matrix[image, t] > hardest for t in wrong))
            wrong = [i for i in range(positives.n_images) if i not in positives.images_of(text)]
            hardest = max(matrix[i, text] for i in batch[:, 0] if i in wrong)
            t2i.append(1 + sum(matrix[i, text] > hardest for i in wrong))
    return {"i2t": np.array(i2t), "t2i": np.array(t2i)}


@pytest.mark.parametrize("positives", [in_order(30), uneven(40)])
def test_ranks_are_those_of_the_full_matrix(positives, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_SIZE", 7)
    monkeypatch.setattr(module, "_SCORES_AT_ONCE", 300)
    encoded = encode(positives, noise=1.5)
    found = online_shares(
        InnerProduct(), encoded, positives, batch_sizes=(8, 20), top=6, pairs=50, seed=3
    )
    assert [(share.direction, share.batch_size) for share in found] == [
        ("i2t", 8),
        ("i2t", 20),
        ("t2i", 8),
        ("t2i", 20),
    ]
    order = epoch_order(len(positives.pairs), seed=3, epoch=0)[:50]
    for share in found:
        ranks = looped_ranks(
            matrix_of(encoded), positives, positives.pairs[order], share.batch_size
        )[share.direction]
        assert share.anchors == len(ranks) == 50 // share.batch_size * share.batch_size
        assert share.mean_rank.value == pytest.approx(ranks.mean())
        assert share.share.value == pytest.approx(100 * (ranks <= 6).mean())
        assert share.share.low <= share.share.value <= share.share.high


def test_scores_without_structure_give_the_formula():
    """Where every score is drawn by itself, nothing but chance decides what a batch meets."""
    positives = in_order(400, 5)
    encoded = encode(positives, noise=50.0, width=300)
    found = online_shares(InnerProduct(), encoded, positives, batch_sizes=(16, 64), pairs=2000)
    for share in found:
        assert share.candidates == (2000 if share.direction == "i2t" else 400)
        assert share.share.value == pytest.approx(share.share_by_formula, abs=4)
        if share.direction == "i2t":
            assert share.mean_rank.value == pytest.approx(share.rank_by_formula, rel=0.15)


def test_the_formula_is_the_paper_s_on_coco():
    positives = in_order(4)
    share = online_shares(InnerProduct(), encode(positives), positives, batch_sizes=(2,), pairs=20)
    coco = replace(share[0], candidates=566_435, batch_size=128)
    assert coco.share_by_formula == pytest.approx(2.2, abs=0.05)
    assert coco.rank_by_formula == pytest.approx(4425, abs=1)


def test_batches_that_cannot_be_made_are_refused():
    positives = in_order(4)
    for sizes in ((1,), (21,), ()):
        with pytest.raises(UserError, match="from 2 to 20"):
            online_shares(InnerProduct(), encode(positives), positives, batch_sizes=sizes)
