"""Every word looks at the regions, every region at the words: the scores of SCAN and BFAN.

A *query* (say, a word) attends to *sources* (the regions of an image): their similarities s become
weights w, and what counts is the cosine of the query with the attended vector v = sum_i w_i x_i.
That vector is never built, because the cosine needs only

    query . v = sum_i w_i s_i        and        |v|^2 = w' G w,

where G is the Gram matrix of the sources. One matrix product gives all similarities of a batch;
the rest is arithmetic on them, on axes (n, L, Q, m): n items with L sources each against m items
with Q queries each. Norms, softmaxes and sums then run over outer axes, so that the m items fill
the vector registers, and exchanging the roles of images and texts is reversing the axes.

Texts of one length are scored together, so nothing is padded. Where lengths do mix, in
`score_pairs`, padding is a zero vector, and is masked out of the few places where that shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from aoq.config import Aggregate, Direction, Focal, RawNorm
from aoq.scoring.precision import as_single, full_precision
from aoq.types import Encoding

_EPSILON = 1e-8  # vectors shorter than this have no direction
_SLOPE = 0.1  # of the leaky ReLU
_ROUNDING = 64  # units in the last place by which equal weights may differ
# Where no gradient is kept, this many similarities are worked on at a time: they stay in cache.
_TILE, _TEXTS_OF_A_TILE = 2**21, 64


@dataclass(frozen=True, kw_only=True)
class Attention:
    """How the similarities of sources and queries become weights of the sources.

    `raw_norm` works over the queries of each source ("clipped": leaky ReLU first), then comes a
    softmax over the sources with `temperature`; `focal` drops sources that matter less than others.
    """

    temperature: float
    raw_norm: RawNorm = "clipped_l2norm"
    focal: Focal | None = None

    def weights(
        self,
        similarities: Tensor,
        *,
        source_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
    ) -> Tensor:
        """Weights of the sources for each query, up to a factor no cosine sees. (n, L, Q, m)"""
        logits = self._logits(similarities, query_mask)
        if source_mask is not None:
            logits = logits.masked_fill(~source_mask, -torch.inf)
        weights = logits.softmax(dim=1)
        if self.focal is not None:
            weights = weights * _focus(weights.detach(), self.focal, source_mask)
        return weights

    def _logits(self, similarities: Tensor, query_mask: Tensor | None) -> Tensor:
        """Similarities in the raw norm, times the temperature."""
        if self.raw_norm.startswith("clipped"):
            similarities = leaky_relu(similarities, _SLOPE)
        match self.raw_norm.removeprefix("clipped_"):
            case "softmax":
                if query_mask is not None:
                    similarities = similarities.masked_fill(~query_mask, -torch.inf)
                return similarities.softmax(dim=2) * self.temperature
            case "l2norm":
                length = _root(similarities.square().sum(2, keepdim=True))
                return similarities * (self.temperature / _divisor(length + _EPSILON))
            case "l1norm":
                length = similarities.abs().sum(2, keepdim=True)
                return similarities * (self.temperature / _divisor(length + _EPSILON))
            case _:
                return similarities * self.temperature


@torch.no_grad()
def _focus(weights: Tensor, focal: Focal, source_mask: Tensor | None) -> Tensor:
    """BFAN's focal step: 1 for a source i that keeps its weight a_i, 0 for one that loses it.

        equal  keeps i where  L a_i - sum_j a_j > 0
        prob   keeps i where  sum_j (a_i - a_j) sqrt(a_j) = a_i sum_j sqrt(a_j) - sum_j a_j^1.5 > 0

    Both ask whether a_i is above a mean of all weights. Within rounding of it counts as above, so
    that sources which weigh the same share one fate, and one is always left.
    """
    if focal == "equal":
        n_sources = weights.shape[1] if source_mask is None else source_mask.sum(1, keepdim=True)
        threshold = weights.sum(1, keepdim=True) / n_sources
    else:
        roots = weights.sqrt()
        total = roots.sum(1, keepdim=True)
        threshold = (roots * weights).sum(1, keepdim=True) / total
    threshold *= 1 - _ROUNDING * torch.finfo(weights.dtype).eps
    return torch.gt(weights, threshold, out=torch.empty_like(weights))


def _root(squares: Tensor) -> Tensor:
    """The square root, with a finite gradient at 0."""
    return squares.clamp(min=_EPSILON**2).sqrt()


def _divisor(lengths: Tensor) -> Tensor:
    """Lengths to divide by: what has none is left as it is, and so is its gradient."""
    return lengths.where(lengths > 2 * _EPSILON, 1.0)


def _cosines(weights: Tensor, similarities: Tensor, gram: Tensor, query_norms: Tensor) -> Tensor:
    """query . v / (|query| |v|) for v = sum_i w_i x_i; 0 where one has no direction. (n, Q, m)"""
    along = (weights * similarities).sum(dim=1)
    attended = torch.bmm(gram, weights.flatten(2)).view_as(weights)  # (n, L, Q, m)
    lengths = _root((weights * attended).sum(dim=1)) * query_norms
    return along / _divisor(lengths)


def _gram(vectors: Tensor) -> Tensor:
    """Inner products of the vectors of each item. (n, L, L)"""
    with full_precision(vectors):
        vectors = as_single(vectors)
        return vectors @ vectors.mT


def _norms(gram: Tensor) -> Tensor:
    """Lengths of the vectors with this Gram matrix. (n, L)"""
    return _root(gram.diagonal(dim1=1, dim2=2))


@dataclass(frozen=True)
class Similarities:
    """The regions of n images against the words of m texts; or, `paired`, image b and text b only.

    Paired, n is m, the last axis of `values` is 1, and words may be padded: `word_mask`.
    """

    values: Tensor  # (n, R, T, m)
    region_gram: Tensor  # (n, R, R)
    word_gram: Tensor  # (m, T, T)
    word_mask: Tensor | None = None  # (n, T)
    paired: bool = False

    @cached_property
    def _words_first(self) -> Tensor:
        """Words as sources: (m, T, R, n), or (n, T, R, 1) where paired."""
        axes = (0, 2, 1, 3) if self.paired else (3, 2, 1, 0)
        return self.values.permute(axes).contiguous()

    def weights(self, direction: Direction, attention: Attention) -> Tensor:
        """t2i: of regions for words (n, R, T, m); i2t: of words for regions (m, T, R, n)."""
        mask = self.word_mask
        if direction == "t2i":
            query_mask = None if mask is None else mask[:, None, :, None]
            return attention.weights(self.values, query_mask=query_mask)
        source_mask = None if mask is None else mask[:, :, None, None]
        return attention.weights(self._words_first, source_mask=source_mask)

    def cosines(self, direction: Direction, attention: Attention) -> Tensor:
        """t2i: each word with the regions it attends to (n, T, m); i2t: each region (n, R, m)."""
        weights = self.weights(direction, attention)
        queries = _norms(self.word_gram if direction == "t2i" else self.region_gram)
        query_norms = queries[..., None] if self.paired else queries.T
        if direction == "t2i":
            return _cosines(weights, self.values, self.region_gram, query_norms)
        cosines = _cosines(weights, self._words_first, self.word_gram, query_norms)
        return cosines if self.paired else cosines.permute(2, 1, 0)


def aggregate(
    cosines: Tensor, how: Aggregate, *, temperature: float, mask: Tensor | None
) -> Tensor:
    """One score of the cosines of all queries. (n, Q, m) -> (n, m)"""
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


@dataclass(frozen=True)
class _Words:
    """Texts of one length: which they are, and their words, position first."""

    rows: Tensor  # (m,)
    vectors: Tensor  # (T, m, D)

    @cached_property
    def flat(self) -> Tensor:
        return self.vectors.flatten(0, 1)  # (T m, D)

    @cached_property
    def gram(self) -> Tensor:
        return _gram(self.vectors.transpose(0, 1))  # (m, T, T)


def _equal_lengths(texts: Encoding, *, at_most: int) -> list[_Words]:
    """The texts in groups of one length, at most so many in each."""
    n_texts, n_words = texts.vectors.shape[:2]
    lengths = texts.vectors.new_full((n_texts,), n_words, dtype=torch.int64)
    if texts.mask is not None:
        lengths = texts.mask.sum(dim=1)
    order = lengths.argsort(stable=True)
    counts = lengths[order].unique_consecutive(return_counts=True)[1].tolist()
    groups = [rows for same in order.split(counts) for rows in same.split(at_most)]
    return [
        _Words(rows, texts.vectors[rows, : int(lengths[rows[0]])].transpose(0, 1).contiguous())
        for rows in groups
    ]


def _similarities(regions: Tensor, groups: list[_Words], *, whole: bool) -> Iterator[Similarities]:
    """All regions against the words of each group.

    `whole`: one product serves all groups, and so one pair of products its gradient. Otherwise
    each group has a product of its own, which is still in cache when it is read.
    """
    flat, gram = regions.flatten(0, 1), _gram(regions)  # (n R, D), (n, R, R)
    if whole:
        words = [group.flat for group in groups]
        products = iter((flat @ torch.cat(words).T).split([len(part) for part in words], dim=1))
    else:
        products = (flat @ group.flat.T for group in groups)
    for group, product in zip(groups, products, strict=True):
        values = product.view(*regions.shape[:2], *group.vectors.shape[:2])  # (n, R, T, m)
        yield Similarities(as_single(values), gram, group.gram)


def _paired_similarities(images: Encoding, texts: Encoding) -> Similarities:
    """The regions of image b against the words of text b."""
    values = images.vectors @ texts.vectors.mT  # (B, R, T)
    if texts.mask is not None:
        values = values.masked_fill(~texts.mask[:, None], 0.0)
    return Similarities(
        as_single(values)[..., None],
        _gram(images.vectors),
        _gram(texts.vectors),
        word_mask=texts.mask,
        paired=True,
    )


class CrossAttention:
    """Mix-in: one vector a region, one a word; SCAN attends in one direction, BFAN in both.

    The score is the sum over the directions of the aggregated cosines. Padding is zero vectors.
    """

    attentions: Mapping[Direction, Attention]
    aggregate: Aggregate = "mean"
    aggregate_temperature: float = 1.0

    def score_matrix(self, images: Encoding, texts: Encoding) -> Tensor:
        """Every image against every text; where no gradient is kept, in pieces that fit a cache."""
        learning = images.vectors.requires_grad or texts.vectors.requires_grad
        whole = learning and torch.is_grad_enabled()
        groups = _equal_lengths(texts, at_most=len(texts) if whole else _TEXTS_OF_A_TILE)
        largest = max(len(group.flat) for group in groups) * images.vectors.shape[1]
        n_images = len(images) if whole else max(1, _TILE // largest)
        rows = []
        for regions in images.vectors.split(n_images):
            parts = _similarities(regions, groups, whole=whole)
            rows.append(torch.cat([self._match(part) for part in parts], dim=1))
        order = torch.cat([group.rows for group in groups])
        return torch.cat(rows)[:, order.argsort()]

    def score_pairs(self, images: Encoding, texts: Encoding) -> Tensor:
        return self._match(_paired_similarities(images, texts))[:, 0]

    def attention_maps(self, images: Encoding, texts: Encoding) -> dict[Direction, Tensor]:
        """What matched what in image b and text b: t2i (B, T, R), i2t (B, R, T); each adds to 1."""
        similarities = _paired_similarities(images, texts)
        maps = {}
        for direction, attention in self.attentions.items():
            weights = similarities.weights(direction, attention)[..., 0]  # (B, sources, queries)
            maps[direction] = (weights / weights.sum(dim=1, keepdim=True)).mT
        return maps

    def _match(self, similarities: Similarities) -> Tensor:
        """The score of each image with each text. (n, m)"""
        mask = similarities.word_mask
        word_mask = None if mask is None else mask[..., None]  # (n, T, 1)
        with full_precision(similarities.values):
            scores = [
                aggregate(
                    similarities.cosines(direction, attention),
                    self.aggregate,
                    temperature=self.aggregate_temperature,
                    mask=word_mask if direction == "t2i" else None,
                )
                for direction, attention in self.attentions.items()
            ]
        return torch.stack(scores).sum(dim=0)
