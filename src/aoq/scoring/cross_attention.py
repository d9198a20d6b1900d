"""Cross attention between words and regions: the scores of SCAN and BFAN.

A *query* (say, a word) attends to *sources* (the regions of an image): their similarities s become
weights w, and the result is the cosine of the query with the attended vector v = sum_i w_i x_i.
That vector is never built, because the cosine needs only

    query . v = sum_i w_i s_i        and        |v|^2 = w' G w,

where G is the Gram matrix of the sources. One matrix product computes all similarities of a batch;
the rest is elementwise, on axes (m, T, R, n): m texts of T words each, n images of R regions each.
Every norm, softmax and sum runs over one of the two middle axes, and the n images fill the
vector registers.

Texts of one length are scored together, so nothing is padded. In `score_pairs`, where lengths are
mixed, padding is zero vectors, which are masked out of the few operations that they affect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from aoq.config import Aggregate, Direction, Focal, RawNorm
from aoq.errors import UserError
from aoq.scoring.precision import as_single, full_precision
from aoq.types import Encoding

_WORDS, _REGIONS = 1, 2  # axes of similarities
_EPSILON = 1e-8  # vectors shorter than this have no direction
_SLOPE = 0.1  # of the leaky ReLU
_ROUNDING = 64  # units in the last place by which equal weights may differ
# Without gradients, this many similarities, of this many images, are processed at a time: few
# enough to stay in cache, many enough for an efficient product.
_TILE, _IMAGES_OF_A_TILE = 2**22, 128


@dataclass(frozen=True, kw_only=True)
class Attention:
    """How similarities become weights of the sources.

    `raw_norm` runs over the queries of each source ("clipped": leaky ReLU first), followed by a
    softmax over the sources with `temperature`; `focal` drops sources with less weight than others.
    """

    temperature: float
    raw_norm: RawNorm = "clipped_l2norm"
    focal: Focal | None = None

    def weights(
        self, similarities: Tensor, direction: Direction, word_mask: Tensor | None
    ) -> Tensor:
        """Return source weights per query, up to a factor that cosines ignore. (m, T, R, n)"""
        sources, queries = (_REGIONS, _WORDS) if direction == "t2i" else (_WORDS, _REGIONS)
        mask = None if word_mask is None else word_mask[:, :, None, None]
        logits = self._logits(similarities, queries, mask if direction == "t2i" else None)
        if direction == "i2t" and mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        weights = logits.softmax(dim=sources)
        if self.focal is not None:
            n_sources: int | Tensor = weights.shape[sources]
            if direction == "i2t" and mask is not None:
                n_sources = mask.sum(dim=sources, keepdim=True)
            weights = weights * _focus(weights, self.focal, sources, n_sources)
        return weights

    def _logits(self, similarities: Tensor, queries: int, query_mask: Tensor | None) -> Tensor:
        """Return similarities in the raw norm, times the temperature."""
        if self.raw_norm.startswith("clipped"):
            similarities = leaky_relu(similarities, _SLOPE)
        match self.raw_norm.removeprefix("clipped_"):
            case "softmax":
                if query_mask is not None:
                    similarities = similarities.masked_fill(~query_mask, -torch.inf)
                return similarities.softmax(dim=queries) * self.temperature
            case "l2norm":
                lengths = _root(similarities.square().sum(dim=queries, keepdim=True))
            case "l1norm":
                lengths = similarities.abs().sum(dim=queries, keepdim=True)
            case _:
                return similarities * self.temperature
        return similarities * (self.temperature / _divisor(lengths + _EPSILON))


@torch.no_grad()
def _focus(weights: Tensor, focal: Focal, sources: int, n_sources: int | Tensor) -> Tensor:
    """Apply BFAN's focal step: 1 for a source i that keeps its weight a_i, 0 for one that loses it.

        equal  keeps i where  L a_i - sum_j a_j > 0
        prob   keeps i where  sum_j (a_i - a_j) sqrt(a_j) = a_i sum_j sqrt(a_j) - sum_j a_j^1.5 > 0

    Both test whether a_i is above a mean of all weights. Within rounding of it counts as above, so
    that sources of equal weight are treated alike, and at least one source remains.
    """
    if focal == "equal":
        mean = weights.sum(dim=sources, keepdim=True) / n_sources
        workspace = torch.empty_like(weights)
    else:
        workspace = weights.sqrt()
        total = workspace.sum(dim=sources, keepdim=True)
        mean = workspace.mul_(weights).sum(dim=sources, keepdim=True) / total
    almost = 1 - _ROUNDING * torch.finfo(weights.dtype).eps
    return torch.gt(weights, mean * almost, out=workspace)


def _root(squares: Tensor) -> Tensor:
    """Return the square root, with a finite gradient at 0."""
    return squares.clamp(min=_EPSILON**2).sqrt()


def _divisor(lengths: Tensor) -> Tensor:
    """Return lengths to divide by: zero lengths become 1, so values and gradients stay finite."""
    return lengths.where(lengths > 2 * _EPSILON, 1.0)


@dataclass(frozen=True)
class Vectors:
    """The regions of some images, or the words of some texts; `rows` are their indices."""

    values: Tensor  # (n, L, D)
    rows: Tensor | None = None  # (n,)

    @property
    def count(self) -> int:
        return self.values[..., 0].numel()

    @cached_property
    def gram(self) -> Tensor:
        """Return the inner products of the vectors of each item. (n, L, L)"""
        return self.values @ self.values.mT

    @cached_property
    def norms(self) -> Tensor:
        """Return the lengths of the vectors. (n, L)"""
        return _root(self.values.square().sum(dim=-1))


@dataclass(frozen=True)
class Similarities:
    """The words of m texts against the regions of n images; `paired`: text b with image b only.

    If paired, m is n, the last axis of `values` is 1, and words may be padded.
    """

    values: Tensor  # (m, T, R, n)
    words: Vectors
    regions: Vectors
    word_mask: Tensor | None = None  # (m, T)
    paired: bool = False

    def weights(self, direction: Direction, attention: Attention) -> Tensor:
        """Return weights: t2i of the regions per word, i2t of the words per region. (m, T, R, n)"""
        return attention.weights(self.values, direction, self.word_mask)

    def cosines(self, direction: Direction, attention: Attention) -> Tensor:
        """Return cosines: t2i of each word with its regions (m, T, n), i2t vice versa (m, R, n)."""
        weights = self.weights(direction, attention)
        along = (weights * self.values).sum(dim=_REGIONS if direction == "t2i" else _WORDS)
        if direction == "t2i":
            squares, query_norms = self._of_regions(weights), self.words.norms[..., None]
        else:
            squares, norms = self._of_words(weights), self.regions.norms
            query_norms = norms[..., None] if self.paired else norms.T
        # If the sources cancel, w' G w loses its digits, so cosines are clamped to [-1, 1].
        return (along / _divisor(_root(squares) * query_norms)).clamp(-1.0, 1.0)

    def _of_words(self, weights: Tensor) -> Tensor:
        """Return w' G w of the words that each region attends to. (m, R, n)"""
        attended = torch.bmm(self.words.gram, weights.flatten(2)).view_as(weights)
        return (weights * attended).sum(dim=_WORDS)

    def _of_regions(self, weights: Tensor) -> Tensor:
        """Return w' G w of the regions that each word attends to. (m, T, n)"""
        if self.paired:
            by_image = weights[..., 0].mT  # (n, R, T)
            return (by_image * torch.bmm(self.regions.gram, by_image)).sum(dim=1)[..., None]
        n_texts, n_words, n_regions, n_images = weights.shape
        # Transposed as one large matrix, which is fast, and read as one matrix per image.
        turned = weights.view(n_texts * n_words, n_regions * n_images).T.contiguous()
        by_image = turned.view(n_regions, n_images, -1).transpose(0, 1)  # (n, R, m T)
        squares = (by_image * torch.bmm(self.regions.gram, by_image)).sum(dim=1)
        return squares.T.reshape(n_texts, n_words, n_images)


def aggregate(
    cosines: Tensor, how: Aggregate, *, temperature: float, mask: Tensor | None
) -> Tensor:
    """Combine the cosines of all queries into one score. (m, Q, n) -> (m, n)"""
    match how:
        case "logsumexp":
            scaled = cosines * temperature
            scaled = scaled if mask is None else scaled.masked_fill(~mask, -torch.inf)
            return scaled.logsumexp(dim=1) / temperature
        case "max":
            return (cosines if mask is None else cosines.masked_fill(~mask, -torch.inf)).amax(dim=1)
        case _:
            total = (cosines if mask is None else cosines * mask).sum(dim=1)
            count = cosines.shape[1] if mask is None else mask.sum(dim=1)
            return total / count if how == "mean" else total


class CrossAttention:
    """Mix-in: one vector per region and per word; SCAN attends in one direction, BFAN in both.

    The score is the sum over the directions of the aggregated cosines. Padding is zero vectors.
    """

    attentions: Mapping[Direction, Attention]
    aggregate: Aggregate = "mean"
    aggregate_temperature: float = 1.0

    def score_matrix(self, images: Encoding, texts: Encoding) -> Tensor:
        """Score every image against every text; without gradients, in pieces that fit a cache."""
        regions, words, mask = _checked(images, texts)
        if torch.is_grad_enabled() and (regions.requires_grad or words.requires_grad):
            n_images, most_words = len(regions), words[..., 0].numel()
        else:
            n_images = min(_IMAGES_OF_A_TILE, len(regions))
            most_words = _TILE // (n_images * regions.shape[1])
        with full_precision(regions):
            groups = _one_length_each(words, mask, most_words=most_words)
            columns = [
                torch.cat(
                    [
                        self._match(similarities)
                        for similarities in _similarities(part, groups, most_words=most_words)
                    ]
                )
                for part in regions.split(n_images)
            ]
        order = torch.cat([group.rows for group in groups if group.rows is not None])
        return torch.cat(columns, dim=1)[order.argsort()].T

    def score_pairs(self, images: Encoding, texts: Encoding) -> Tensor:
        with full_precision(images.vectors):
            return self._match(_paired_similarities(images, texts))[:, 0]

    def attention_maps(self, images: Encoding, texts: Encoding) -> dict[Direction, Tensor]:
        """Return attention in image b and text b: t2i (B, T, R), i2t (B, R, T); each sums to 1."""
        with full_precision(images.vectors):
            similarities = _paired_similarities(images, texts)
        maps = {}
        for direction, attention in self.attentions.items():
            weights = similarities.weights(direction, attention)[..., 0]  # (B, T, R)
            by_query = weights if direction == "t2i" else weights.mT
            maps[direction] = by_query / by_query.sum(dim=-1, keepdim=True)
        return maps

    def _match(self, similarities: Similarities) -> Tensor:
        """Return the score of each text with each image. (m, n)"""
        mask = similarities.word_mask
        scores = [
            aggregate(
                similarities.cosines(direction, attention),
                self.aggregate,
                temperature=self.aggregate_temperature,
                mask=mask[..., None] if direction == "t2i" and mask is not None else None,
            )
            for direction, attention in self.attentions.items()
        ]
        return torch.stack(scores).sum(dim=0)


def _checked(images: Encoding, texts: Encoding) -> tuple[Tensor, Tensor, Tensor]:
    """Validate encodings; return regions, words and word mask, in single precision."""
    if images.mask is not None:
        raise UserError("cross attention needs equally many regions per image, without a mask.")
    regions, words = as_single(images.vectors), as_single(texts.vectors)
    if texts.mask is None:
        return regions, words, torch.ones(words.shape[:2], dtype=torch.bool, device=words.device)
    if not texts.mask[:, 0].all() or (texts.mask[:, 1:] > texts.mask[:, :-1]).any():
        raise UserError("cross attention needs texts of at least one word, padded at the end.")
    return regions, words, texts.mask


def _one_length_each(words: Tensor, mask: Tensor, *, most_words: int) -> list[Vectors]:
    """Group texts by length, with at most `most_words` words, or one text, in each group."""
    lengths, order = mask.sum(dim=1).sort(stable=True)
    values, counts = lengths.unique_consecutive(return_counts=True)
    return [
        Vectors(words[rows, :length], rows)
        for length, same in zip(values.tolist(), order.split(counts.tolist()), strict=True)
        for rows in same.split(max(1, most_words // length))
    ]


def _chunks(groups: list[Vectors], *, most_words: int) -> Iterator[list[Vectors]]:
    """Join neighbouring groups, up to `most_words` words."""
    chunk: list[Vectors] = []
    for group in groups:
        if chunk and sum(part.count for part in chunk) + group.count > most_words:
            yield chunk
            chunk = []
        chunk.append(group)
    yield chunk


def _similarities(
    regions: Tensor, groups: list[Vectors], *, most_words: int
) -> Iterator[Similarities]:
    """Yield the similarities of each group's words with all regions, in bounded products."""
    n_images, n_regions = regions.shape[:2]
    flat, sources = regions.transpose(0, 1).flatten(0, 1), Vectors(regions)  # (R n, D)
    for chunk in _chunks(groups, most_words=most_words):
        words = torch.cat([group.values.flatten(0, 1) for group in chunk])
        rows = (words @ flat.T).split([group.count for group in chunk])
        for group, row in zip(chunk, rows, strict=True):
            values = row.view(*group.values.shape[:2], n_regions, n_images)  # (m, T, R, n)
            yield Similarities(values, group, sources)


def _paired_similarities(images: Encoding, texts: Encoding) -> Similarities:
    """Return the similarities of the words of text b with the regions of image b."""
    regions, words, mask = _checked(images, texts)
    values = (words @ regions.mT).masked_fill(~mask[..., None], 0.0)  # (B, T, R)
    return Similarities(values[..., None], Vectors(words), Vectors(regions), mask, paired=True)
