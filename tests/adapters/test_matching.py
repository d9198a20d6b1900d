"""The loss of sentence-transformers that any loss of aoq becomes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import aoq


class Vectors(nn.Module):
    """A model whose inputs are its vectors."""

    def forward(self, inputs):
        return {"sentence_embedding": inputs["rows"]}


def columns(count, *, rows=4):
    torch.manual_seed(0)
    return [torch.randn(rows, 8) for _ in range(count)]


def loss_of(name, vectors, labels=None):
    loss = aoq.MatchingLoss(Vectors(), aoq.LossConfig(name=name))
    return loss([{"rows": rows} for rows in vectors], labels)


@pytest.mark.parametrize("name", ["standard", "online", "infonce", "siglip"])
def test_the_loss_is_that_of_aoq_without_equal_anchors_as_negatives(name):
    anchors, positives = columns(2)
    labels = torch.tensor([[0, 4], [0, 5], [1, 6], [2, 5]])  # two anchors, two positives are equal
    negatives = torch.tensor(
        [[0, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 1], [1, 0, 1, 0]], dtype=torch.bool
    )
    scores = aoq.BatchScores(
        normalize(anchors, dim=1) @ normalize(positives, dim=1).T, negatives=negatives
    )
    expected = aoq.compute_loss(scores, aoq.LossConfig(name=name)).total / 4
    assert loss_of(name, (anchors, positives), labels) == expected


@pytest.mark.parametrize("name", ["off_tri", "off_quin", "adap_off_quin", "softmax_offline"])
def test_offline_negatives_are_four_more_columns(name):
    vectors = columns(6)
    labels = torch.tensor([[0, 0, 1], [1, 1, 0], [2, 2, 1], [3, 3, 1]])
    image, text, image_off, text_off, partner_image, partner_text = (
        normalize(rows, dim=1) for rows in vectors
    )
    scores = aoq.BatchScores(
        image @ text.T,
        offline=aoq.OfflineScores(
            i2t=(image * text_off).sum(1),
            t2i=(image_off * text).sum(1),
            derived=(image_off * text_off).sum(1),
            partners=(partner_image * partner_text).sum(1),
            derived_mask=torch.tensor([True, False, True, True]),
        ),
    )
    expected = aoq.compute_loss(scores, aoq.LossConfig(name=name)).total / 4
    assert loss_of(name, vectors, labels) == expected


def test_rows_without_labels_are_all_different():
    vectors = columns(2)
    apart = torch.arange(4)[:, None].repeat(1, 2)
    assert loss_of("online", vectors) == loss_of("online", vectors, apart)


@pytest.mark.parametrize(("name", "count", "expected"), [("online", 3, 2), ("off_tri", 2, 6)])
def test_columns_that_a_loss_does_not_read_are_refused(name, count, expected):
    with pytest.raises(aoq.UserError, match=f"have {count} columns .* expected {expected} "):
        loss_of(name, columns(count))


def test_offline_negatives_without_their_label_are_refused():
    with pytest.raises(aoq.UserError, match="a label of three numbers"):
        loss_of("off_quin", columns(6))


def test_probabilities_of_matches_are_refused():
    with pytest.raises(aoq.UserError, match="weigh_matches"):
        aoq.MatchingLoss(Vectors(), aoq.LossConfig(name="off_quin", weigh_matches=True))
