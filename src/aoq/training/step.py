"""One training step: encode, score, and the terms of the loss.

A round-two step has up to three times the images and texts of an online one: the pairs, their
offline negatives, the partners of those. Every distinct image and text is read and encoded once
(`aoq.training.encoding`). A model whose batch norm must see the three sets of images apart, as
VSRN's does, gets them apart.

A step can be taken in parts, one after the other, and by several processes at once. Its order and
its draws are those of one process; each reads its share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from aoq.config import LossConfig, RoundConfig
from aoq.data.collate import Collator
from aoq.distributed import ALONE, Processes, share
from aoq.errors import UserError
from aoq.losses import BatchScores, LossTerms, OfflineScores, compute_loss
from aoq.sampling import OfflineNegatives, OfflineSampler
from aoq.scoring.protocol import HasAuxiliaryLoss, MatchingModel, TrainableModel
from aoq.training.collectives import Collectives
from aoq.training.encoding import encode_roles, mixed_precision
from aoq.training.logit_scale import LogitScale
from aoq.types import AlignedIdx, Encoding, Ids, StepBatch, require_tensor


def make_batches(
    collator: Collator,
    pair_ids: Ids,
    *,
    settings: RoundConfig,
    sampler: OfflineSampler | None,
    epoch: int,
    step: int,
    seed: int = 0,
    processes: Processes = ALONE,
) -> list[StepBatch]:
    """Read the positive pairs (P, 2) of a step, and draw their offline negatives if it has any.

    One batch for each part of the step, and of each this process's share. The `seed` decides how
    photos are augmented.
    """
    read_images = collator.regions
    if settings.augment and collator.is_augmented:
        read_images = partial(collator.random_views, seed=seed, epoch=epoch, step=step)
    loss, drawn = settings.loss_at(epoch), None
    if sampler is not None and loss.needs_candidates:
        drawn = sampler.draw(pair_ids[:, 0], pair_ids[:, 1], epoch=epoch, step=step)
    batches = []
    for number in range(settings.accumulate):
        part = share(len(pair_ids), number, settings.accumulate)
        batch = _read_batch(
            collator,
            read_images,
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
    read_images: Callable[[Ids], Tensor],
    pair_ids: Ids,
    drawn: OfflineNegatives | None,
    *,
    loss: LossConfig,
    diagonal_only: bool,
    own: slice,
) -> StepBatch:
    """Read the `own` pairs of a batch, which are this process's share."""
    image_ids, text_ids = pair_ids.T
    if diagonal_only:
        positives = np.eye(len(pair_ids), dtype=bool)
    else:
        positives = collator.dataset.positives.among(image_ids, text_ids)
    likeness = None
    if loss.semantic_margin:
        likeness = collator.likeness.between(image_ids, text_ids).to(collator.device)
    roles, derived_mask = {"pairs": (image_ids[own], text_ids[own])}, None
    i2t_matches, t2i_matches = None, None
    if drawn is not None:
        read = drawn[own]
        roles["offline"] = read.images, read.texts
        if drawn.text_matches is not None and drawn.image_matches is not None:
            i2t_matches = torch.from_numpy(drawn.text_matches).to(collator.device)
            t2i_matches = torch.from_numpy(drawn.image_matches).to(collator.device)
        if loss.needs_derived_pairs:
            roles["partners"] = read.partner_images, read.partner_texts
            derived_mask = torch.from_numpy(drawn.valid).to(collator.device)
    images, image_idx = _distinct([images for images, _ in roles.values()], collator.device)
    texts, text_idx = _distinct([texts for _, texts in roles.values()], collator.device)
    aligned = dict(zip(roles, map(AlignedIdx, image_idx, text_idx), strict=True))
    return StepBatch(
        regions=read_images(images),
        texts=collator.texts(texts),
        pairs=aligned["pairs"],
        negatives=torch.from_numpy(~positives).to(collator.device),
        offline=aligned.get("offline"),
        partners=aligned.get("partners"),
        derived_mask=derived_mask,
        likeness=likeness,
        i2t_matches=i2t_matches,
        t2i_matches=t2i_matches,
    )


def _distinct(roles: list[Ids], device: torch.device) -> tuple[Ids, Tensor]:
    """Return every id once, and where the ids of each role are among them. (roles, b)"""
    ids = np.stack(roles)
    distinct, idx = np.unique(ids, return_inverse=True)
    return distinct, torch.from_numpy(idx.reshape(ids.shape)).to(device)


@dataclass(frozen=True)
class Outcome:
    """The scores of a batch, and the loss that they make."""

    scores: BatchScores
    loss: LossTerms


class NotFiniteError(UserError):
    """A loss term or the gradient is NaN or infinite; the weights have not moved."""


def update(
    model: TrainableModel,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[StepBatch],
    *,
    settings: RoundConfig,
    epoch: int,
    collectives: Collectives,
    logit_scale: LogitScale | None = None,
) -> tuple[dict[str, float], list[Outcome]]:
    """Take one clipped step of the optimizer, by the gradients of all batches added up.

    `logit_scale` is what the loss itself learns; its parameters are the optimizer's too. Returns
    the terms of the whole step, and what they were made from. Refuses to step where a term or the
    gradient is not finite: the weights stay as they were.
    """
    optimizer.zero_grad(set_to_none=True)
    outcomes = add_gradients(
        model,
        batches,
        settings.loss_at(epoch),
        collectives=collectives,
        encode_at_once=settings.encode_at_once,
        logit_scale=logit_scale,
    )
    learned = list(model.parameters())
    if logit_scale is not None:  # left alone where the loss of the step does not use it
        learned += [value for value in logit_scale.parameters() if value.grad is not None]
    collectives.average_gradients(learned)
    terms = _terms_of_step(outcomes, collectives)
    norm = float(nn.utils.clip_grad_norm_(learned, settings.clip_norm))
    if not all(math.isfinite(value) for value in (*terms.values(), norm)):
        raise NotFiniteError(
            f"the loss or its gradient is no longer finite ({terms}, norm {norm}); the last saved "
            "state is kept: start a new run with a lower learning rate."
        )
    optimizer.step()
    if logit_scale is not None:
        logit_scale.clamp()
    return terms, outcomes


def add_gradients(
    model: TrainableModel,
    batches: Sequence[StepBatch],
    loss: LossConfig,
    *,
    collectives: Collectives,
    encode_at_once: int | None = None,
    logit_scale: LogitScale | None = None,
) -> list[Outcome]:
    """Compute the loss of each batch and add its gradients to those of the weights."""
    outcomes = []
    for batch in batches:
        outcome = step_loss(
            model,
            batch,
            loss,
            collectives=collectives,
            encode_at_once=encode_at_once,
            logit_scale=logit_scale,
        )
        collectives.fabric.backward(outcome.loss.total)
        outcomes.append(outcome)
    return outcomes


def _terms_of_step(outcomes: Sequence[Outcome], collectives: Collectives) -> dict[str, float]:
    """Add the terms up over the batches; auxiliary terms, which are local, also over processes."""
    losses = [outcome.loss for outcome in outcomes]
    terms = {}
    for name in losses[0].terms:
        value = torch.stack([loss.terms[name].detach() for loss in losses]).sum()
        terms[name] = float(collectives.mean(value) if name in losses[0].auxiliary else value)
    return terms


def step_loss(
    model: MatchingModel,
    batch: StepBatch,
    config: LossConfig,
    *,
    collectives: Collectives | None = None,
    encode_at_once: int | None = None,
    logit_scale: LogitScale | None = None,
) -> Outcome:
    """Compute the scores and the loss of a batch.

    Auxiliary terms are means, and are weighted by their share of the batch: the mean of the
    processes' losses is that of the whole batch.
    """
    scores, images = score_batch(
        model, batch, collectives=collectives, encode_at_once=encode_at_once
    )
    if logit_scale is not None:
        scores = logit_scale.add_to(scores)
    loss = compute_loss(scores, config)
    if isinstance(model, HasAuxiliaryLoss):
        weight = batch.share * (1 if collectives is None else collectives.processes.size)
        with mixed_precision(collectives):
            auxiliary = model.auxiliary_loss(images, batch.texts[batch.pairs.texts])
        loss = replace(loss, auxiliary={name: weight * term for name, term in auxiliary.items()})
    return Outcome(scores, loss)


def score_batch(
    model: MatchingModel,
    batch: StepBatch,
    *,
    collectives: Collectives | None = None,
    encode_at_once: int | None = None,
) -> tuple[BatchScores, Encoding]:
    """Compute every score the losses need; also return the encoded images of the pairs read here.

    Encoders may run in lower precision; scores never do.
    """
    pairs, offline, partners = encode_roles(
        model, batch, collectives=collectives, at_once=encode_at_once
    )
    own, size = len(batch.pairs.images), len(batch.negatives)
    texts = pairs.texts if collectives is None else collectives.gather_encoding(pairs.texts, size)
    matrix = model.score_matrix(pairs.images, texts)  # (b, B)
    require_tensor("score_matrix(images, texts)", matrix, (own, size), of="fraction")
    aligned: dict[str, Tensor] = {}  # (b,) each
    if offline is not None:
        aligned["i2t"] = model.score_pairs(pairs.images, offline.texts)
        aligned["t2i"] = model.score_pairs(offline.images, pairs.texts)
    if offline is not None and partners is not None:
        aligned["derived"] = model.score_pairs(offline.images, offline.texts)
        aligned["partners"] = model.score_pairs(partners.images, partners.texts)
    for scores in aligned.values():
        require_tensor("score_pairs(images, texts)", scores, (own,), of="fraction")
    if collectives is not None:
        gathered = collectives.gather(torch.column_stack([matrix, *aligned.values()]), size)
        matrix = gathered[:, :size]
        aligned = dict(zip(aligned, gathered[:, size:].unbind(dim=1), strict=True))
    offline_scores = None
    if aligned:
        offline_scores = OfflineScores(
            **aligned,
            derived_mask=batch.derived_mask,
            i2t_matches=batch.i2t_matches,
            t2i_matches=batch.t2i_matches,
        )
    likeness = batch.likeness
    return BatchScores(matrix, batch.negatives, offline_scores, likeness=likeness), pairs.images
