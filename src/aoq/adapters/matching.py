"""A loss of sentence-transformers out of any of ours: its trainer calls the model, we see scores.

Two columns are the pairs of a batch. Six columns, as `OfflineDataset` gives them, add the offline
negatives and their partners, so that Eq. 3 to 5 can be trained there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from aoq.config import LossConfig
from aoq.errors import UserError
from aoq.losses import BatchScores, OfflineScores, compute_loss


class MatchingLoss(nn.Module):
    """Compute a loss of aoq from the columns of a `SentenceTransformerTrainer`.

    Columns are anchor and positive; losses that need offline negatives read four more: the offline
    negative of the positive's side and of the anchor's, and the partners of both (`image`, `text`,
    `image_off`, `text_off`, `partner_image`, `partner_text` of an `OfflineDataset`, images being
    the anchors). The label of a row is the number of its anchor and of its positive, so that equal
    ones are not negatives of each other, and with six columns also whether its derived pairs are
    negatives (`image_id`, `text_id`, `derived_mask`). Rows without a label all count as different.
    The loss is the mean over the batch.
    """

    def __init__(
        self, model: Callable[[dict[str, Tensor]], dict[str, Tensor]], config: LossConfig
    ) -> None:
        super().__init__()
        if config.reads_matches:
            raise UserError(
                "loss.weigh_matches reads probabilities that no column holds; set it to false."
            )
        self.model, self.config = model, config

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        columns = [self._encode(features) for features in sentence_features]
        expected = 6 if self.config.needs_candidates else 2
        if len(columns) != expected:
            raise UserError(
                f"the data have {len(columns)} columns beside the label; expected {expected} for "
                f"the loss {self.config.name}: select them with select_columns."
            )
        anchors, positives = columns[:2]
        size = len(anchors)
        if labels is None or labels.ndim != 2 or labels.shape[1] < 2:
            anchor_ids = positive_ids = torch.arange(size, device=anchors.device)
        else:
            anchor_ids, positive_ids = labels[:, :2].T  # (B,) each
        belongs = (anchor_ids[:, None] == anchor_ids) | (positive_ids[:, None] == positive_ids)
        offline = None
        if len(columns) == 6:
            anchors_off, positives_off, partner_anchors, partner_positives = columns[2:]
            if labels is None or labels.ndim != 2 or labels.shape[1] != 3:
                raise UserError(
                    "rows with offline negatives need a label of three numbers: those of anchor "
                    "and positive, and whether the derived pairs are negatives (1 or 0)."
                )
            offline = OfflineScores(
                i2t=_products(anchors, positives_off),
                t2i=_products(anchors_off, positives),
                derived=_products(anchors_off, positives_off),
                partners=_products(partner_anchors, partner_positives),
                derived_mask=labels[:, 2].bool(),
            )
        scores = BatchScores(anchors @ positives.T, negatives=~belongs, offline=offline)
        return compute_loss(scores, self.config).total / size

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model card of sentence-transformers says about the loss."""
        return {"loss": f"aoq {self.config.name}"}

    def _encode(self, features: dict[str, Tensor]) -> Tensor:
        return normalize(self.model(features)["sentence_embedding"], dim=1)


def _products(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(dim=1)  # (B,)
