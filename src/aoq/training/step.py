"""One training step: encode, score, and the terms of the loss.

A round-two step has up to three times the images and texts of an online one: the pairs, their
offline negatives, the partners of those. Every distinct image and text is read and encoded once,
all in one pass. A model whose batch norm must see the three sets of images apart, as VSRN's does,
gets them apart.

A step can be taken in parts, one after the other, and by several processes at once. Its order and
its draws are those of one process; each reads its share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from aoq.config import LossConfig, RoundConfig
from aoq.data.collate import Collator
from aoq.errors import UserError
from aoq.losses import BatchScores, LossTerms, OfflineScores, compute_loss
from aoq.processes import ALONE, Processes, share
from aoq.sampling import OfflineNegatives, OfflineSampler
from aoq.scoring.precision import as_single
from aoq.scoring.protocol import (
    HasAuxiliaryLoss,
    MatchingModel,
    SeparatesImageSets,
    TrainableModel,
)
from aoq.training.together import Together
from aoq.types import AlignedIdx, Encoding, Ids, StepBatch, require_tensor


def make_optimizer(model: TrainableModel, settings: RoundConfig) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=settings.learning_rate, fused=True)


def make_batches(
    collator: Collator,
    pair_ids: Ids,
    *,
    settings: RoundConfig,
    sampler: OfflineSampler | None,
    epoch: int,
    step: int,
    processes: Processes = ALONE,
) -> list[StepBatch]:
    """Read the positive pairs (P, 2) of a step, and draw their offline negatives if it has any.

    One batch for each part of the step, and of each this process's share.
    """
    loss, drawn = settings.loss_at(epoch), None
    if sampler is not None and loss.needs_candidates:
        drawn = sampler.draw(pair_ids[:, 0], pair_ids[:, 1], epoch=epoch, step=step)
    batches = []
    for number in range(settings.accumulate):
        part = share(len(pair_ids), number, settings.accumulate)
        batch = _read_batch(
            collator,
            pair_ids[part],
            None if drawn is None else drawn[part],
            loss=loss,
            diagonal_only=settings.diagonal_only,
            own=processes.share(part.stop - part.start),
        )
        batches.append(replace(batch, share=len(batch.pairs.images) / len(pair_ids)))
    return batches


def _read_batch(
    collator: Collator,
    pair_ids: Ids,
    drawn: OfflineNegatives | None,
    *,
    loss: LossConfig,
    diagonal_only: bool,
    own: slice,
) -> StepBatch:
    """A batch of which this process reads its `own` pairs."""
    image_ids, text_ids = pair_ids.T
    if diagonal_only:
        negatives = ~torch.eye(len(pair_ids), dtype=torch.bool)
    else:
        together = collator.dataset.positives.contains(image_ids[:, None], text_ids[None, :])
        negatives = torch.from_numpy(~together)
    roles, valid = [(image_ids[own], text_ids[own])], None
    if drawn is not None:
        negatives_of_own = drawn[own]
        roles.append((negatives_of_own.images, negatives_of_own.texts))
        if loss.needs_derived_pairs:
            roles.append((negatives_of_own.partner_images, negatives_of_own.partner_texts))
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
    """Every id once, and where the ids of each role are among them. (roles, b)"""
    ids = np.stack(roles)
    distinct, idx = np.unique(ids, return_inverse=True)
    return distinct, torch.from_numpy(idx.reshape(ids.shape)).to(device)


@dataclass(frozen=True)
class Outcome:
    """The scores of a batch, and the loss that they make."""

    scores: BatchScores
    loss: LossTerms


class NotFiniteError(UserError):
    """A loss term or the gradient is no number; the weights have not moved."""


def update(
    model: TrainableModel,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[StepBatch],
    *,
    settings: RoundConfig,
    epoch: int,
    together: Together,
) -> tuple[dict[str, float], list[Outcome]]:
    """One clipped step of the optimiser, by the gradients of all batches added up.

    Returns the terms of the whole step, and what they were made from. Refuses to step where a
    term or the gradient is not finite: the weights stay as they were.
    """
    optimizer.zero_grad(set_to_none=True)
    outcomes = add_gradients(model, batches, settings.loss_at(epoch), together=together)
    together.average_gradients(model.parameters())
    terms = _terms_of_step(outcomes, together)
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm))
    if not all(math.isfinite(value) for value in (*terms.values(), norm)):
        raise NotFiniteError(
            f"the loss or its gradient is no longer finite ({terms}, norm {norm}); the last saved "
            "state is kept: start a new run with a lower learning rate."
        )
    optimizer.step()
    return terms, outcomes


def add_gradients(
    model: TrainableModel, batches: Sequence[StepBatch], loss: LossConfig, *, together: Together
) -> list[Outcome]:
    """Compute the loss of each batch and add its gradients to those of the weights."""
    outcomes = []
    for batch in batches:
        outcome = step_loss(model, batch, loss, together=together)
        together.fabric.backward(outcome.loss.total)
        outcomes.append(outcome)
    return outcomes


def _terms_of_step(outcomes: Sequence[Outcome], together: Together) -> dict[str, float]:
    """Added up over its batches; what a model adds, which is local, also over the processes."""
    losses = [outcome.loss for outcome in outcomes]
    terms = {}
    for name in losses[0].terms:
        value = torch.stack([loss.terms[name].detach() for loss in losses]).sum()
        terms[name] = float(together.mean(value) if name in losses[0].auxiliary else value)
    return terms


def step_loss(
    model: MatchingModel, batch: StepBatch, config: LossConfig, *, together: Together | None = None
) -> Outcome:
    """The scores and the loss of a batch; auxiliary terms, which are means, by their share of it.

    The mean of the processes' losses is that of the whole batch.
    """
    scores, images = score_batch(model, batch, together=together)
    loss = compute_loss(scores, config)
    if isinstance(model, HasAuxiliaryLoss):
        weight = batch.share * (1 if together is None else together.processes.size)
        with _mixed_precision(together):
            auxiliary = model.auxiliary_loss(images, batch.texts[batch.pairs.texts])
        loss = replace(loss, auxiliary={name: weight * term for name, term in auxiliary.items()})
    return Outcome(scores, loss)


def score_batch(
    model: MatchingModel, batch: StepBatch, *, together: Together | None = None
) -> tuple[BatchScores, Encoding]:
    """Every score the losses need, and the encoded images of the pairs that are read here.

    Encoders may run in lower precision; scores never do.
    """
    sets = [part for part in (batch.pairs, batch.offline, batch.partners) if part is not None]
    with _mixed_precision(together):
        if isinstance(model, SeparatesImageSets):
            rows = torch.cat([part.images for part in sets])
            images = model.encode_image_sets(batch.regions[rows], len(sets))
        else:
            distinct = model.encode_images(batch.regions)
            images = [distinct[part.images] for part in sets]
        words = model.encode_texts(batch.texts)
    images = [_in_single(part) for part in images]
    texts = [_in_single(words[part.texts]) for part in sets]
    size = len(batch.negatives)
    all_texts = texts[0] if together is None else together.gather_encoding(texts[0], size)
    matrix = model.score_matrix(images[0], all_texts)  # (b, B)
    # S(i, t_off) and S(i_off, t); of derived pairs also S(i_off, t_off) and S(i~_off, t~_off).
    meetings = [(0, 1), (1, 0), (1, 1), (2, 2)][: 2 * len(sets) - 2]
    offline = [model.score_pairs(images[first], texts[second]) for first, second in meetings]
    own = len(batch.pairs.images)
    require_tensor("score_matrix(images, texts)", matrix, (own, size), of="fraction")
    for scores_of_pairs in offline:
        require_tensor("score_pairs(images, texts)", scores_of_pairs, (own,), of="fraction")
    if together is not None:
        together_scores = together.gather(torch.column_stack([matrix, *offline]), size)
        matrix, offline = together_scores[:, :size], list(together_scores[:, size:].unbind(dim=1))
    if not offline:
        return BatchScores(matrix, batch.negatives), images[0]
    scores = OfflineScores(*offline[:2])
    if len(sets) > 2:
        derived, partners = offline[2:]
        scores = replace(
            scores, derived=derived, partners=partners, derived_mask=batch.derived_mask
        )
    return BatchScores(matrix, batch.negatives, scores), images[0]


def _mixed_precision(together: Together | None) -> AbstractContextManager[None]:
    return nullcontext() if together is None else together.fabric.autocast()


def _in_single(encoding: Encoding) -> Encoding:
    return replace(encoding, vectors=as_single(encoding.vectors))
