"""Encodes what a step reads: all at once, or a few images and texts at a time.

Scores compare the whole batch, and so need all its encodings. These are small; what fills the
memory is what encoders keep for the backward pass. With `encode_at_once` they keep nothing: every
piece is encoded again when the gradient of its encodings is known, and then goes backward by itself
(GradCache, Gao et al. 2021). torch's checkpoints do that, with the same dropout the second time.
Loss and gradients are those of encoding all at once, and negatives come from the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from aoq.scoring.precision import as_single
from aoq.scoring.protocol import MatchingModel, SeparatesImageSets
from aoq.training.collectives import Collectives
from aoq.types import Encoding, StepBatch, Texts


@dataclass(frozen=True)
class Encoded:
    """The images and texts of a role, aligned as its `AlignedIdx`."""

    images: Encoding
    texts: Encoding


def encode_roles(
    model: MatchingModel,
    batch: StepBatch,
    *,
    collectives: Collectives | None = None,
    at_once: int | None = None,
) -> tuple[Encoded, Encoded | None, Encoded | None]:
    """Encode the pairs, the offline negatives and their partners, each distinct entry once."""
    roles = [role for role in (batch.pairs, batch.offline, batch.partners) if role is not None]
    with mixed_precision(collectives):
        if isinstance(model, SeparatesImageSets):
            rows = torch.cat([role.images for role in roles])
            images = model.encode_image_sets(batch.regions[rows], len(roles))
        else:
            distinct = _encode_images(model, batch.regions, at_once)
            images = [distinct[role.images] for role in roles]
        words = _encode_texts(model, batch.texts, at_once)
    pairs, *others = (
        Encoded(_in_single(encoded), _in_single(words[role.texts]))
        for encoded, role in zip(images, roles, strict=True)
    )
    offline, partners = (*others, None, None)[:2]
    return pairs, offline, partners


def mixed_precision(collectives: Collectives | None) -> AbstractContextManager[None]:
    """Return the context in which encoders run."""
    return nullcontext() if collectives is None else collectives.fabric.autocast()


def _encode_images(model: MatchingModel, regions: Tensor, at_once: int | None) -> Encoding:
    if at_once is None:
        return model.encode_images(regions)
    return _encode_pieces(model.encode_images, ((piece,) for piece in regions.split(at_once)))


def _encode_texts(model: MatchingModel, texts: Texts, at_once: int | None) -> Encoding:
    if at_once is None:
        return model.encode_texts(texts)

    def encode(tokens: Tensor, lengths: Tensor, vectors: Tensor | None) -> Encoding:
        return model.encode_texts(Texts(tokens, lengths, vectors))

    rows = torch.arange(len(texts.tokens), device=texts.tokens.device).split(at_once)
    pieces = (texts[piece] for piece in rows)
    return _encode_pieces(encode, ((each.tokens, each.lengths, each.vectors) for each in pieces))


def _encode_pieces(
    encode: Callable[..., Encoding], pieces: Iterable[tuple[Tensor | None, ...]]
) -> Encoding:
    """Encode pieces, and again in the backward pass.

    The checkpoint has to see the tensors themselves: it finds by them whose random state to keep.
    """
    return _joined([checkpoint(encode, *piece, use_reentrant=False) for piece in pieces])


def _joined(parts: list[Encoding]) -> Encoding:
    """Concatenate encodings; words are padded to the longest text."""
    vectors, masks = [part.vectors for part in parts], [part.mask for part in parts]
    contexts = [part.context for part in parts if part.context is not None]
    mask = None
    if all(each is not None for each in masks):
        missing = [max(map(_width, vectors)) - _width(each) for each in vectors]
        vectors = [pad(each, (0, 0, 0, n)) for each, n in zip(vectors, missing, strict=True)]
        known = (each for each in masks if each is not None)
        mask = torch.cat([pad(each, (0, n)) for each, n in zip(known, missing, strict=True)])
    return Encoding(torch.cat(vectors), mask, torch.cat(contexts) if contexts else None)


def _width(vectors: Tensor) -> int:
    return vectors.shape[1]


def _in_single(encoding: Encoding) -> Encoding:
    return replace(encoding, vectors=as_single(encoding.vectors))
