"""Global mining: every image against every text, and the hardest negatives of each kept.

One pass over the score matrix serves both directions (`sweep`); the few anchors whose lists it
left short are ranked again; what several processes found is put together; then the rules against
false negatives that need a finished list are applied (`filters`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from aoq.config import MiningConfig
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.direction import Direction
from aoq.mining.filters import EQUAL_CAPTIONS, NEAR_CAPTIONS, SCORE_SHARE, SKIP_FIRST, Rules
from aoq.mining.saved import SavedSweep
from aoq.mining.sides import Side
from aoq.mining.sweep import Sweep
from aoq.mining.toplists import Keys, TopLists, merged
from aoq.processes import ALONE, Processes
from aoq.progress import say, warn
from aoq.scoring.blocks import block_size_within, ranges
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.precision import rounded
from aoq.scoring.protocol import Scorer
from aoq.types import Positives

E = TypeVar("E")
_BLOCK = 2048  # images and texts of a block, where memory allows
_ROWS_TAKEN_OUT = 64 * 2**20  # bytes of encodings that a block reads, at the most
_ANCHORS_AT_ONCE = 16_384  # lists that are finished together
_SORTED_AT_ONCE = 1024


@dataclass(frozen=True)
class Mined:
    """Lists, and how many candidates the rules kept out of them."""

    lists: CandidateLists
    n_dropped: dict[str, tuple[int, int]]
    "By rule, from the lists of images and of texts."
    n_excused: tuple[int, int]
    "Images and texts to which the rules left too few candidates: these keep what they had."


def usable_depth(wanted: int, positives: Positives, *, what: str, skip_first: int = 0) -> int:
    """The depth that every anchor can fill with negatives; says so where that is less."""
    available = positives.n_texts - int(positives.texts_per_image().max(initial=0)) - skip_first
    if available < 1:
        raise UserError(f"no {what} are left to mine: every one belongs to some anchor.")
    if available < wanted:
        warn(f"the lists are {available} {what} deep instead of {wanted}: the set has no more.")
    return min(wanted, available)


def mine(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    *,
    config: MiningConfig,
    provenance: Provenance,
    captions: Sequence[str] | None = None,
    block_size: int | None = None,
) -> CandidateLists:
    """The hardest negatives of every image and text. `captions` are for rules that read them."""
    mined = mine_together(
        scorer,
        encoded,
        positives,
        config=config,
        provenance=provenance,
        captions=captions,
        block_size=block_size,
    )
    assert mined is not None  # there is one process
    return mined.lists


def mine_together(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    *,
    config: MiningConfig,
    provenance: Provenance,
    captions: Sequence[str] | None = None,
    block_size: int | None = None,
    processes: Processes = ALONE,
    saved: Path | None = None,
    save_every: float = 10.0,
) -> Mined | None:
    """The same, each process with its share of the images; the first one gets the lists.

    With a file `saved`, a killed process goes on where it last saved (every `save_every` seconds
    at the most), and ends up with the same lists, bit by bit.
    """
    scorer = rounded(scorer, config.precision)
    rules = Rules.from_config(config, scorer, encoded, positives, captions)
    images, texts = _directions(scorer, encoded, rules, config)
    share = processes.share(positives.n_images)
    n_images, n_texts = share.stop - share.start, positives.n_texts
    if block_size is None:
        beside = images.nbytes(n_images) + texts.nbytes(n_texts)
        block_size = _block_size(config.memory, encoded, beside=beside)
    sweep = Sweep(
        scorer,
        encoded,
        rules.struck,
        images=share,
        i2t=images.new_lists(share, n_candidates=n_texts),
        t2i=texts.new_lists(slice(0, n_texts), n_candidates=n_images),
        block_size=block_size,
    )
    if saved is None:
        for _ in sweep.run(pause=lambda: False):
            pass
    else:
        plan = _plan(config, provenance, processes, block_size)
        _run_and_save(sweep, SavedSweep(saved, plan, at_least=save_every))
    images.complete(sweep.i2t, first=share.start, block_size=block_size)
    texts.complete(sweep.t2i, candidates=share, block_size=block_size)

    n_too_high = processes.gather(
        np.array([[sweep.i2t.n_dropped.sum(), sweep.t2i.n_dropped.sum()]])
    )
    of_shares = _gather_shares(sweep.i2t, positives.n_images, processes)
    i2t = images.finish(of_shares, block_size=block_size)
    t2i = texts.finish(_gather_merged(sweep.t2i, processes), block_size=block_size)
    if not processes.is_first:
        return None
    too_high = np.concatenate(n_too_high).sum(axis=0)
    n_equal = len(rules.struck.pairs) - len(positives.pairs)
    n_dropped = {
        EQUAL_CAPTIONS: (n_equal, n_equal),
        SCORE_SHARE: (int(too_high[0]), int(too_high[1])),
        NEAR_CAPTIONS: (i2t.n_near, t2i.n_near),
        SKIP_FIRST: (rules.skip_first * len(i2t.ids), rules.skip_first * len(t2i.ids)),
    }
    provenance = replace(provenance, rules=rules.names, precision=config.precision)
    return Mined(
        CandidateLists(i2t.ids, i2t.scores, t2i.ids, t2i.scores, provenance),
        n_dropped={
            name: n_dropped[rule] for name in rules.names for rule in n_dropped if rule in name
        },
        n_excused=(i2t.n_excused, t2i.n_excused),
    )


def _block_size(memory: str | None, encoded: EncodedDataset[E], *, beside: int) -> int:
    """Blocks that are large enough to be fast, and small enough for the budget."""
    row = max(encoded.images.row_nbytes, encoded.texts.row_nbytes)
    usual = max(64, min(_BLOCK, _ROWS_TAKEN_OUT // row))
    if memory is None:
        return usual
    threads = torch.get_num_threads()
    return min(usual, block_size_within(memory, encoded, beside=beside, blocks=threads))


def _plan(
    config: MiningConfig, provenance: Provenance, processes: Processes, block_size: int
) -> str:
    """All that half-finished lists depend on."""
    settings = {**asdict(config), "memory": None}
    return json.dumps([asdict(provenance), settings, asdict(processes), block_size])


def _run_and_save(sweep: Sweep[E], saved: SavedSweep) -> None:
    done = saved.restore(sweep)
    if done:
        say(f"mining goes on after {done} of {len(sweep.stripes)} stripes of images")
    for stripes_done in sweep.run(first_stripe=done, pause=saved.is_due):
        saved.save(sweep, stripes_done=stripes_done)


def _directions(
    scorer: Scorer[E], encoded: EncodedDataset[E], rules: Rules, config: MiningConfig
) -> tuple[Direction[E], Direction[E]]:
    """The lists of images and those of texts."""
    of_images = Side.of_images(scorer, encoded, rules.struck)
    of_texts = Side.of_texts(scorer, encoded, rules.struck)
    return (
        Direction(
            of_images,
            depth=usable_depth(
                config.depth_texts, of_images.positives, what="texts", skip_first=rules.skip_first
            ),
            skip_first=rules.skip_first,
            ceilings=rules.ceilings_i2t,
            near=rules.near_texts,
        ),
        Direction(
            of_texts,
            depth=usable_depth(
                config.depth_images, of_texts.positives, what="images", skip_first=rules.skip_first
            ),
            skip_first=rules.skip_first,
            ceilings=rules.ceilings_t2i,
            near=rules.near_images,
        ),
    )


def _gather_shares(
    lists: TopLists, n_anchors: int, processes: Processes
) -> Iterator[tuple[slice, Keys]]:
    """The lists of all anchors, where each process has a share of them."""
    shares = [processes.share(n_anchors, rank) for rank in range(processes.size)]
    longest = max(share.stop - share.start for share in shares)
    for rows in ranges(longest, _ANCHORS_AT_ONCE):
        best = _best(lists, rows)
        padded = np.zeros((rows.stop - rows.start, lists.depth), np.uint64)
        padded[: len(best)] = best
        for share, keys in zip(shares, processes.gather(padded), strict=False):
            first = share.start + rows.start
            anchors = slice(first, max(first, min(share.start + rows.stop, share.stop)))
            yield anchors, keys[: anchors.stop - anchors.start]


def _gather_merged(lists: TopLists, processes: Processes) -> Iterator[tuple[slice, Keys]]:
    """The lists of all anchors, where each process has ranked a share of the candidates."""
    for rows in ranges(len(lists), _ANCHORS_AT_ONCE):
        parts = processes.gather(_best(lists, rows))
        if parts:
            yield rows, parts[0] if len(parts) == 1 else merged(parts)


def _best(lists: TopLists, rows: slice) -> Keys:
    """Some lists, best first, sorted by as many threads as torch would use."""
    pieces = ranges(min(rows.stop, len(lists)), _SORTED_AT_ONCE, start=rows.start)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        parts = list(pool.map(lists.best, pieces))
    return np.concatenate(parts) if parts else lists.best(slice(0, 0))
