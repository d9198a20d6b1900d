"""One training step: encode, score, and the terms of the loss.

A round-two step has up to three times the images and texts of an online one: the pairs, their
offline negatives, the partners of those. Every distinct image and text is read and encoded once,
all in one pass. A model whose batch norm must see the three sets of images apart, as VSRN's does,
gets them apart.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from aoq.config import LossConfig, RoundConfig
from aoq.data.collate import Collator
from aoq.errors import UserError
from aoq.losses import BatchScores, LossTerms, OfflineScores, compute_loss
from aoq.sampling import OfflineSampler
from aoq.scoring.protocol import (
    HasAuxiliaryLoss,
    MatchingModel,
    SeparatesImageSets,
    TrainableModel,
)
from aoq.types import AlignedIdx, Encoding, Ids, StepBatch


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
    if settings.diagonal_only:
        negatives = ~torch.eye(len(pair_ids), dtype=torch.bool)
    else:
        together = collator.dataset.positives.contains(image_ids[:, None], text_ids[None, :])
        negatives = torch.from_numpy(~together)
    loss, roles, valid = settings.loss_at(epoch), [(image_ids, text_ids)], None
    if sampler is not None and loss.needs_candidates:
        drawn = sampler.draw(image_ids, text_ids, epoch=epoch, step=step)
        roles.append((drawn.images, drawn.texts))
        if loss.needs_derived_pairs:
            roles.append((drawn.partner_images, drawn.partner_texts))
            valid = torch.from_numpy(drawn.valid).to(collator.device)
    images, image_idx = _distinct([images for images, _ in roles], device=collator.device)
    texts, text_idx = _distinct([texts for _, texts in roles], device=collator.device)
    aligned = [AlignedIdx(*idx) for idx in zip(image_idx, text_idx, strict=True)]
    return StepBatch(
        regions=collator.regions(images),
        texts=collator.texts(texts),
        pairs=aligned[0],
        negatives=negatives.to(collator.device),
        offline=aligned[1] if len(aligned) > 1 else None,
        partners=aligned[2] if len(aligned) > 2 else None,
        derived_mask=valid,
    )


def _distinct(roles: list[Ids], *, device: torch.device) -> tuple[Ids, Tensor]:
    """Every id once, and where the ids of each role are among them. (roles, B)"""
    ids = np.stack(roles)
    distinct, idx = np.unique(ids, return_inverse=True)
    return distinct, torch.from_numpy(idx.reshape(ids.shape)).to(device)


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
    with mixed_precision(settings.precision, batch.regions.device):
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


def mixed_precision(
    precision: Literal["auto", "float32", "bfloat16"], device: torch.device
) -> torch.autocast:
    """The context that runs products in bfloat16 where it is asked for, or `auto` finds it."""
    has_it = device.type == "cuda" and torch.cuda.is_bf16_supported()
    wanted = has_it if precision == "auto" else precision == "bfloat16"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=wanted)


def step_loss(model: MatchingModel, batch: StepBatch, config: LossConfig) -> LossTerms:
    """The loss terms of a step, the auxiliary ones included."""
    scores, images = score_batch(model, batch)
    terms = compute_loss(scores, config)
    if isinstance(model, HasAuxiliaryLoss):
        texts = batch.texts[batch.pairs.texts]
        return LossTerms(terms.terms | model.auxiliary_loss(images, texts))
    return terms


def score_batch(model: MatchingModel, batch: StepBatch) -> tuple[BatchScores, Encoding]:
    """Every score the losses need, and the encoded images of the positive pairs."""
    sets = [part for part in (batch.pairs, batch.offline, batch.partners) if part is not None]
    if isinstance(model, SeparatesImageSets):
        rows = torch.cat([part.images for part in sets])
        images = model.encode_image_sets(batch.regions[rows], len(sets))
    else:
        distinct = model.encode_images(batch.regions)
        images = [distinct[part.images] for part in sets]
    words = model.encode_texts(batch.texts)
    texts = [words[part.texts] for part in sets]
    matrix = model.score_matrix(images[0], texts[0])
    if len(sets) == 1:
        return BatchScores(matrix, batch.negatives), images[0]
    offline = OfflineScores(
        i2t=model.score_pairs(images[0], texts[1]), t2i=model.score_pairs(images[1], texts[0])
    )
    if len(sets) == 3:
        offline = replace(
            offline,
            derived=model.score_pairs(images[1], texts[1]),
            partners=model.score_pairs(images[2], texts[2]),
            derived_mask=batch.derived_mask,
        )
    return BatchScores(matrix, batch.negatives, offline), images[0]
