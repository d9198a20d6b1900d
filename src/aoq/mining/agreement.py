"""What re-ranking loses: how much of the exact lists of some anchors was proposed at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from aoq.config import Direction, MiningConfig
from aoq.distributed import ALONE, Processes
from aoq.mining.candidates import DIRECTIONS, CandidateLists
from aoq.mining.proposals import ProposedMatrix
from aoq.mining.score_matrix import ScoreMatrix
from aoq.mining.toplists import ids_of
from aoq.progress import progress_bar
from aoq.scoring.blocks import block_size_for, evenly_spread, ranges
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.precision import rounded
from aoq.scoring.protocol import Scorer
from aoq.types import Ids, Int32s, Positives

E = TypeVar("E")
_FIRST = 10  # of a list, on which agreement is reported too
_RANKED_AT_ONCE = 16  # anchors whose exact lists are found in one go


@dataclass(frozen=True)
class Agreement:
    """How much of the exact lists of some anchors was proposed, and so found by re-ranking.

    Rules are left aside: what is among the best of all is among the best of those proposed.
    """

    anchors: str
    "images, or texts."
    n_anchors: int
    depth: int
    found: float
    "Share of the first `depth` of the exact lists."
    depth_first: int
    found_first: float
    "Share of the first `depth_first`."

    @property
    def sentence(self) -> str:
        candidates = "images" if self.anchors == "texts" else "texts"
        sentence = (
            f"re-ranking found {self.found:.1%} of the {self.depth} hardest {candidates} of "
            f"{self.n_anchors} sampled {self.anchors}"
        )
        if self.depth_first < self.depth:
            sentence += f", and {self.found_first:.1%} of the first {self.depth_first}"
        return sentence


def agreement(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    proposals: CandidateLists,
    *,
    config: MiningConfig,
    sample: int = 100,
    processes: Processes = ALONE,
) -> dict[Direction, Agreement]:
    """Compare proposals with the exact lists of `sample` anchors, evenly spread; of i2t and t2i.

    Processes share the work; the first one gets the answer.
    """
    scorer = rounded(scorer, config.precision)
    block_size = block_size_for(config.memory, encoded, beside=proposals.nbytes)
    wanted = {"i2t": config.depth_texts, "t2i": config.depth_images}
    results = {}
    for direction in DIRECTIONS:
        depth = min(wanted[direction], proposals.of(direction)[0].shape[1])
        matrix = ScoreMatrix.of(direction, scorer=scorer, encoded=encoded, positives=positives)
        anchors = evenly_spread(len(matrix.anchors), sample)
        share = anchors[processes.share(len(anchors))]
        exact = _exact_lists(matrix, share, depth=depth, block_size=block_size)
        proposed = ProposedMatrix.restrict(matrix, proposals, at_most=block_size)
        found = processes.gather(proposed.proposes(share, exact).sum(axis=0, keepdims=True))
        if processes.is_first:
            at_ranks = np.concatenate(found).sum(axis=0) / len(anchors)
            results[direction] = Agreement(
                anchors=f"{matrix.nouns[0]}s",
                n_anchors=len(anchors),
                depth=depth,
                found=float(at_ranks.mean()),
                depth_first=len(at_ranks[:_FIRST]),
                found_first=float(at_ranks[:_FIRST].mean()),
            )
    return results


def _exact_lists(matrix: ScoreMatrix[E], anchors: Ids, *, depth: int, block_size: int) -> Int32s:
    """Rank all candidates of some anchors. (anchors, depth)"""
    exact = np.zeros((len(anchors), depth), np.int32)
    with progress_bar("rank a sample", total=len(anchors), unit="anchors") as update:
        for piece in ranges(len(anchors), _RANKED_AT_ONCE):
            lists = matrix.rank(anchors[piece], depth=depth, block_size=block_size)
            exact[piece] = ids_of(lists.best(slice(0, len(lists))))
            update(advance=len(lists))
    return exact
