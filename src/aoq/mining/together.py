"""What mining and re-ranking share: saved sweeps, and the lists of all processes as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from aoq.config import MiningConfig
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.direction import BothWays, Part
from aoq.mining.filters import EQUAL_CAPTIONS, NEAR_CAPTIONS, SCORE_SHARE, SKIP_FIRST
from aoq.mining.saved import SavedSweep, plan_of
from aoq.mining.sweep import Sweep
from aoq.mining.toplists import TopLists, merged
from aoq.processes import Number, Processes
from aoq.progress import say
from aoq.scoring.blocks import ranges
from aoq.scoring.precision import tensor_cores

E = TypeVar("E")
_ANCHORS_AT_ONCE = 2048  # lists that are finished together


@dataclass(frozen=True, eq=False)
class Mined:
    """Lists, how they were to be, and how many candidates the rules kept out of them."""

    lists: CandidateLists
    ways: BothWays[Any]
    n_dropped: dict[str, tuple[int, int]]
    "By rule, from the lists of images and of texts."
    n_excused: tuple[int, int]
    "Images and texts to which the rules left too few candidates: these keep what they had."


def sweep_together(
    sweep: Sweep[E],
    ways: BothWays[E],
    *,
    config: MiningConfig,
    provenance: Provenance,
    processes: Processes,
    saved: Path | None,
    save_every: float,
) -> Mined | None:
    """Run the sweeps of all processes to their end; the first one gets what they found.

    With a file `saved`, a sweep that was killed goes on where it was last saved.
    """
    with tensor_cores(config.precision):
        if saved is None:
            for _ in sweep.run(pause=lambda: False):
                pass
        else:
            plan = plan_of(sweep, config, provenance, processes)
            _go_on(sweep, SavedSweep(saved, plan, at_least=save_every), processes)
        rules = tuple(ways.labels.values())
        provenance = replace(provenance, rules=rules, precision=config.precision)
        return _finish(sweep, ways, provenance, processes)


def _go_on(sweep: Sweep[Any], saved: SavedSweep, processes: Processes) -> None:
    """Run what is left of a sweep, and save it on the way."""
    done = saved.restore(sweep)
    if done and processes.is_first:
        say(f"mining goes on after {done} of {len(sweep.stripes)} stripes of images")
    for stripes_done in sweep.run(first_stripe=done, pause=saved.is_due):
        saved.save(sweep, stripes_done=stripes_done)


def _finish(
    sweep: Sweep[E], ways: BothWays[E], provenance: Provenance, processes: Processes
) -> Mined | None:
    """Put together what the sweeps found, and apply the rules; in the first process."""
    images, texts, block_size = ways.i2t, ways.t2i, sweep.block_size
    images.complete(sweep.i2t, first=sweep.images.start, block_size=block_size)
    texts.complete(sweep.t2i, candidates=sweep.images, block_size=block_size)
    of_shares = _gather_shares(sweep.i2t, len(images.side.anchors), processes)
    i2t = images.finish(of_shares, block_size=block_size)
    t2i = texts.finish(_gather_merged(sweep.t2i, processes), block_size=block_size)
    if not processes.is_first:
        return None
    n_dropped = {
        EQUAL_CAPTIONS: (ways.n_equal, ways.n_equal),
        SCORE_SHARE: (i2t.n_high, t2i.n_high),
        NEAR_CAPTIONS: (i2t.n_near, t2i.n_near),
        SKIP_FIRST: (images.skip_first * len(i2t.ids), texts.skip_first * len(t2i.ids)),
    }
    return Mined(
        CandidateLists(i2t.ids, i2t.scores, t2i.ids, t2i.scores, provenance),
        ways=ways,
        n_dropped={label: n_dropped[rule] for rule, label in ways.labels.items()},
        n_excused=(i2t.n_excused, t2i.n_excused),
    )


def _gather_shares(lists: TopLists, n_anchors: int, processes: Processes) -> Iterator[Part]:
    """The lists of all anchors, where each process has a share of them."""
    shares = [processes.share(n_anchors, rank) for rank in range(processes.size)]
    longest = max(share.stop - share.start for share in shares)
    for rows in ranges(longest, _ANCHORS_AT_ONCE):
        count = rows.stop - rows.start
        keys = processes.gather(_padded(lists.best(rows), count))
        n_high = processes.gather(_padded(lists.n_dropped[rows], count))
        for share, part_keys, part_high in zip(shares, keys, n_high, strict=False):
            first = share.start + rows.start
            length = max(0, min(count, share.stop - first))
            yield Part(slice(first, first + length), part_keys[:length], part_high[:length])


def _padded(array: npt.NDArray[Number], length: int) -> npt.NDArray[Number]:
    """With zeros at the end: processes send arrays of one shape."""
    padded = np.zeros((length, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded


def _gather_merged(lists: TopLists, processes: Processes) -> Iterator[Part]:
    """The lists of all anchors, where each process has ranked a share of the candidates."""
    for rows in ranges(len(lists), _ANCHORS_AT_ONCE):
        keys = processes.gather(lists.best(rows))
        n_high = processes.gather(lists.n_dropped[rows])
        if keys:
            best = keys[0] if len(keys) == 1 else merged(keys)
            yield Part(rows, best, np.sum(n_high, axis=0))
