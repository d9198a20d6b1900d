"""Cross attention in the order of the published programs: caption by caption, vectors built.

Written for the purpose: the baseline of the benchmarks, and what the tests hold our scores against.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

EPSILON = 1e-8


def l2norm(values: Tensor, dim: int) -> Tensor:
    return values / (values.pow(2).sum(dim, keepdim=True).sqrt() + EPSILON)


def l1norm(values: Tensor, dim: int) -> Tensor:
    return values / (values.abs().sum(dim, keepdim=True) + EPSILON)


RAW_NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda values: values.softmax(dim=2),
    "l2norm": lambda values: l2norm(values, 2),
    "clipped_l2norm": lambda values: l2norm(leaky_relu(values, 0.1), 2),
    "l1norm": lambda values: l1norm(values, 2),
    "clipped_l1norm": lambda values: l1norm(leaky_relu(values, 0.1), 2),
    "clipped": lambda values: leaky_relu(values, 0.1),
    "no_norm": lambda values: values,
}
AGGREGATES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "logsumexp": lambda cosines, scale: (cosines * scale).exp().sum(1).log() / scale,
    "mean": lambda cosines, scale: cosines.mean(1),
    "max": lambda cosines, scale: cosines.max(1).values,
    "sum": lambda cosines, scale: cosines.sum(1),
}


def focus(weights: Tensor, focal: str) -> Tensor:
    """The focal step with its sum over all pairs of sources."""
    if focal == "equal":
        gains = weights.shape[2] * weights - weights.sum(2, keepdim=True)
    else:
        each, other = weights.unsqueeze(3), weights.unsqueeze(2)
        gains = ((each - other) * other.sqrt()).sum(3)
    kept = weights * torch.where(gains > 0, torch.ones_like(gains), torch.zeros_like(gains))
    return kept / kept.sum(2, keepdim=True)


def attend(
    queries: Tensor,
    sources: Tensor,
    *,
    temperature: float,
    raw_norm: str = "clipped_l2norm",
    focal: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Attended vectors (B, Q, D) and weights (B, Q, L) of queries (B, Q, D), sources (B, L, D)."""
    n_items, n_queries, _ = queries.shape
    n_sources = sources.shape[1]
    similarities = torch.bmm(sources, queries.transpose(1, 2))  # (B, L, Q)
    normed = RAW_NORMS[raw_norm](similarities).transpose(1, 2).contiguous()
    rows = normed.view(n_items * n_queries, n_sources)
    weights = (rows * temperature).softmax(dim=1).view(n_items, n_queries, n_sources)
    if focal is not None:
        weights = focus(weights, focal)
    columns = weights.transpose(1, 2).contiguous()
    return torch.bmm(sources.transpose(1, 2), columns).transpose(1, 2), weights


def cosine(first: Tensor, second: Tensor) -> Tensor:
    along = (first * second).sum(2)
    cosines: Tensor = along / (first.norm(2, 2) * second.norm(2, 2)).clamp(min=EPSILON)
    return cosines


def scan_scores(
    images: Tensor,
    texts: Tensor,
    lengths: Tensor,
    *,
    direction: str,
    temperature: float,
    raw_norm: str = "clipped_l2norm",
    aggregate: str = "logsumexp",
    scale: float = 6.0,
) -> Tensor:
    """SCAN's score matrix, one caption at a time. (N, M)"""
    columns = []
    for text, length in zip(texts, lengths.tolist(), strict=True):
        words = text[:length].unsqueeze(0).repeat(len(images), 1, 1)
        queries, sources = (words, images) if direction == "t2i" else (images, words)
        attended, _ = attend(queries, sources, temperature=temperature, raw_norm=raw_norm)
        columns.append(AGGREGATES[aggregate](cosine(queries, attended), scale))
    return torch.stack(columns, dim=1)


def bfan_scores(
    images: Tensor, texts: Tensor, lengths: Tensor, *, focal: str, temperature: float = 20.0
) -> Tensor:
    """BFAN's score matrix, one caption at a time. (N, M)"""
    columns = []
    for text, length in zip(texts, lengths.tolist(), strict=True):
        words = text[:length].unsqueeze(0).repeat(len(images), 1, 1)
        of_words, _ = attend(words, images, temperature=temperature, focal=focal)
        of_regions, _ = attend(images, words, temperature=temperature, focal=focal)
        columns.append(cosine(words, of_words).mean(1) + cosine(images, of_regions).mean(1))
    return torch.stack(columns, dim=1)
