"""Grouped batches: an order of the positive pairs that makes in-batch negatives hard.

A batch of random pairs holds few of the candidates that were mined for its anchors. Here the pairs
of an epoch are put into groups: a seed, and pairs whose texts are in the list of the seed's image
or whose images are in the list of its text. Several groups make a batch, so a loss that sees
nothing but the batch meets mined negatives in it, and no pair is encoded twice for that.

Every pair is in one group of the epoch. Seeds come in random order, and the candidates that join
them are drawn from the lists as offline negatives are; the order follows from (seed, epoch, lists).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aoq.compiling import compiled
from aoq.randomness import epoch_order, group_generator
from aoq.sampling import OfflineSampler
from aoq.types import Bools, Ids, Int32s


class Side(NamedTuple):
    """The images or the texts of some pairs, and the lists in which they are candidates."""

    ids: Ids  # (P,) of each pair
    places: Ids  # (P,) the pairs of id 0, then those of id 1, ...
    starts: Ids  # (ids + 1,) where those of each id begin
    lists: Int32s  # (anchors, h) ids of this side, for each anchor of the other
    ranks: Ids  # (P,) where the search for a member begins, by its place in the order
    barred: Ids  # (ids,) the last group that holds the id or a positive of it


def grouped_order(sampler: OfflineSampler, *, group_size: int, epoch: int) -> Ids:
    """Return the order in which an epoch visits the positive pairs, one group after the other.

    Groups of the full size come in random order. Where lists have run out of free pairs, smaller
    groups are joined to full ones; what is left over is last.
    """
    pairs = sampler.positives.pairs
    order = epoch_order(len(pairs), seed=sampler.seed, epoch=epoch)
    random = group_generator(sampler.seed, epoch=epoch)
    walked, sizes = walk(*sides_of(sampler, order, random), group_size)
    full = np.repeat(sizes == group_size, sizes)
    walked = order[np.concatenate([walked[full], walked[~full]])]
    n_grouped = len(walked) // group_size * group_size
    groups = random.permutation(walked[:n_grouped].reshape(-1, group_size))
    return np.concatenate([groups.ravel(), walked[n_grouped:]])


def sides_of(sampler: OfflineSampler, order: Ids, random: np.random.Generator) -> tuple[Side, Side]:
    """Look up the images and the texts of the pairs in this order; draw the ranks."""
    positives = sampler.positives
    text_ranks, image_ranks = sampler.draw_ranks(len(order), random)

    def side(ids: Ids, count: int, lists: Int32s, ranks: Ids) -> Side:
        places = np.argsort(ids, kind="stable")
        starts = np.searchsorted(ids[places], np.arange(count + 1))
        return Side(ids, places, starts, lists, ranks, np.full(count, -1))

    images, texts = np.ascontiguousarray(positives.pairs[order].T)
    return (
        side(images, positives.n_images, sampler.images, image_ranks),
        side(texts, positives.n_texts, sampler.texts, text_ranks),
    )


@compiled
def walk(images: Side, texts: Side, group_size: int) -> tuple[Ids, Ids]:
    """Put all pairs into groups; return the pairs, group by group, and the size of each group.

    Each pair that is still free starts a group, which ends at `group_size` members or when its
    lists hold no free pair that may join. No two pairs of a group belong together.
    """
    n_pairs = len(images.ids)
    order = np.empty(n_pairs, np.int64)
    sizes = np.zeros(n_pairs, np.int64)
    is_placed = np.zeros(n_pairs, np.bool_)
    n_placed = n_groups = 0
    for seed in range(n_pairs):
        if is_placed[seed]:
            continue
        member = seed
        while member >= 0:
            order[n_placed] = member
            is_placed[member] = True
            n_placed += 1
            sizes[n_groups] += 1
            _bar(images, texts, member, n_groups)
            _bar(texts, images, member, n_groups)
            member = -1
            if sizes[n_groups] < group_size and n_placed < n_pairs:
                member = _find_member(images, texts, seed, n_placed, is_placed, n_groups)
        n_groups += 1
    return order, sizes[:n_groups]


@compiled
def _bar(side: Side, other: Side, member: int, group: int) -> None:
    """Keep all ids of one side that belong to a member from joining its group."""
    anchor = other.ids[member]
    for place in range(other.starts[anchor], other.starts[anchor + 1]):
        side.barred[side.ids[other.places[place]]] = group


@compiled
def _find_member(
    images: Side, texts: Side, seed: int, n_placed: int, is_placed: Bools, group: int
) -> int:
    """Find a free pair for the group of a seed, by texts and images in turn; -1 if there is none.

    Where one list has run out, the other is searched.
    """
    image, text = images.ids[seed], texts.ids[seed]
    for turn in range(n_placed, n_placed + 2):
        if turn % 2:
            found = _search(texts, images, image, texts.ranks[n_placed], is_placed, group)
        else:
            found = _search(images, texts, text, images.ranks[n_placed], is_placed, group)
        if found >= 0:
            return found
    return -1


@compiled
def _search(side: Side, other: Side, anchor: int, start: int, is_placed: Bools, group: int) -> int:
    """Find a free pair that may join, of the first candidate from a rank on, round the list."""
    candidates = side.lists[anchor]
    for step in range(len(candidates)):
        candidate = candidates[(start + step) % len(candidates)]
        if side.barred[candidate] == group:
            continue
        for place in range(side.starts[candidate], side.starts[candidate + 1]):
            pair = side.places[place]
            if not is_placed[pair] and other.barred[other.ids[pair]] != group:
                return int(pair)
    return -1
