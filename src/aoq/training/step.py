"""One training step: encode, score, and the terms of the loss.

The three sets of a round-two step (the pairs, their offline negatives, the partners of those)
go through the image encoder one after the other, as in the published program, because VSRN's
batch normalisation sees each set on its own. Texts are encoded in one pass.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from aoq.config import LossConfig, RoundConfig
from aoq.data.collate import Collator
from aoq.errors import UserError
from aoq.losses import BatchScores, LossTerms, OfflineScores, compute_loss
from aoq.sampling import OfflineSampler
from aoq.scoring.protocol import HasAuxiliaryLoss, MatchingModel, TrainableModel
from aoq.types import Encoding, Ids, StepBatch, Texts


def make_optimizer(model: TrainableModel, settings: RoundConfig) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=settings.learning_rate, fused=True)


def make_batch(
    collator: Collator,
    pair_ids: Ids,
    *,
    settings: RoundConfig,
    sampler: OfflineSampler | None,
    epoch: int,
    step: int,
) -> StepBatch:
    """Read the positive pairs (B, 2) of a step, and draw their offline negatives if it has any."""
    image_ids, text_ids = pair_ids.T
    pairs = collator.pairs(image_ids, text_ids)
    if settings.diagonal_only:
        negatives = ~torch.eye(len(pair_ids), dtype=torch.bool)
    else:
        together = collator.dataset.positives.contains(image_ids[:, None], text_ids[None, :])
        negatives = torch.from_numpy(~together)
    negatives = negatives.to(collator.device)
    if sampler is None or not settings.loss_at(epoch).needs_candidates:
        return StepBatch(pairs=pairs, negatives=negatives)
    drawn = sampler.draw(image_ids, text_ids, epoch=epoch, step=step)
    return StepBatch(
        pairs=pairs,
        negatives=negatives,
        offline=collator.pairs(drawn.images, drawn.texts),
        partners=collator.pairs(drawn.partner_images, drawn.partner_texts),
        derived_mask=torch.from_numpy(drawn.valid).to(collator.device),
    )


def update(
    model: TrainableModel,
    optimizer: torch.optim.Optimizer,
    batch: StepBatch,
    *,
    settings: RoundConfig,
    epoch: int,
) -> dict[str, float]:
    """One clipped step of the optimiser; the loss terms it was made from.

    Refuses to step where a term or the gradient is not finite: the weights stay as they were.
    """
    loss = step_loss(model, batch, settings.loss_at(epoch))
    terms = {name: float(value.detach()) for name, value in loss.terms.items()}
    optimizer.zero_grad(set_to_none=True)
    loss.total.backward()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm))
    if not all(math.isfinite(value) for value in (*terms.values(), norm)):
        raise UserError(
            f"the loss or its gradient is no longer finite ({terms}, norm {norm}); the last saved "
            "state is kept: start a new run with a lower learning rate."
        )
    optimizer.step()
    return terms


def step_loss(model: MatchingModel, batch: StepBatch, config: LossConfig) -> LossTerms:
    """The loss terms of a step, the auxiliary ones included."""
    scores, images = score_batch(model, batch)
    terms = compute_loss(scores, config)
    if isinstance(model, HasAuxiliaryLoss):
        return LossTerms(terms.terms | model.auxiliary_loss(images, batch.pairs.texts))
    return terms


def score_batch(model: MatchingModel, batch: StepBatch) -> tuple[BatchScores, Encoding]:
    """Every score the losses need, and the encoded images of the positive pairs."""
    if batch.offline is None or batch.partners is None:
        images = model.encode_images(batch.pairs.regions)
        texts = model.encode_texts(batch.pairs.texts)
        return BatchScores(model.score_matrix(images, texts), batch.negatives), images

    sets = (batch.pairs, batch.offline, batch.partners)
    images, images_off, images_partner = (model.encode_images(pairs.regions) for pairs in sets)
    texts, texts_off, texts_partner = _encode_together(model, [pairs.texts for pairs in sets])
    offline = OfflineScores(
        i2t=model.score_pairs(images, texts_off),
        t2i=model.score_pairs(images_off, texts),
        derived=model.score_pairs(images_off, texts_off),
        partners=model.score_pairs(images_partner, texts_partner),
        derived_mask=batch.derived_mask,
    )
    return BatchScores(model.score_matrix(images, texts), batch.negatives, offline), images


def _encode_together(model: MatchingModel, parts: list[Texts]) -> list[Encoding]:
    """Encode several sets of texts in one pass."""
    longest = max(part.tokens.shape[1] for part in parts)
    tokens = [_pad(part.tokens, longest) for part in parts]
    together = Texts(torch.cat(tokens), torch.cat([part.lengths for part in parts]))
    encoding = model.encode_texts(together)
    size = len(parts[0].tokens)
    return [encoding[start : start + size] for start in range(0, len(encoding), size)]


def _pad(tokens: Tensor, length: int) -> Tensor:
    return nn.functional.pad(tokens, (0, length - tokens.shape[1]))
