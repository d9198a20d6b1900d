"""Rules against false negatives: candidates that are hard because they are right.

The paper leaves them in, so every rule is off unless asked for. Rules can be combined; they are
applied in this order:

    equal captions   a caption with the words of one of the image's own is struck out
    score share      a candidate that scores above a share of the anchor's best positive
    near captions    a caption that shares so much of its words with one of the image's own
    skip first       the first so many that are left

An anchor with too few candidates left is excused from score share and near captions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from aoq.config import Direction, MiningConfig
from aoq.errors import UserError
from aoq.mining.captions import NearCaptions, with_equal_captions
from aoq.progress import progress_bar
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.protocol import Scorer
from aoq.types import Bools, Floats, Ids, Int32s, Positives

E = TypeVar("E")
NearTest = Callable[[Ids, Int32s], Bools]
EQUAL_CAPTIONS = "equal captions"
SCORE_SHARE = "score share"
NEAR_CAPTIONS = "near captions"
SKIP_FIRST = "skip first"
_PAIRS_AT_ONCE = 1024
_READ_BY = "the rules equal_captions and near_captions read"


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules in force, prepared for one data set and model."""

    struck: Positives
    "Pairs that are never negatives: the positives, and by rule those with equal captions."
    ceilings: Mapping[Direction, Floats] = field(default_factory=dict)
    "Scores above are dropped. (N,) for i2t, (M,) for t2i"
    near: Mapping[Direction, NearTest] = field(default_factory=dict)
    "Whether a caption of the image nearly equals the text."
    skip_first: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    "Rules in force, by kind, as shown to users."

    @classmethod
    def from_config(
        cls,
        config: MiningConfig,
        scorer: Scorer[E],
        encoded: EncodedDataset[E],
        positives: Positives,
        captions: Sequence[str] | None,
    ) -> Rules:
        """Prepare the rules that the config asks for."""
        struck, labels = positives, {}
        ceilings: dict[Direction, Floats] = {}
        near: dict[Direction, NearTest] = {}
        if config.equal_captions:
            struck = with_equal_captions(positives, require_captions(captions, _READ_BY))
            labels[EQUAL_CAPTIONS] = EQUAL_CAPTIONS
        if config.score_share is not None:
            i2t, t2i = best_positive_scores(scorer, encoded, positives)
            ceilings["i2t"] = _ceilings(i2t, config.score_share)
            ceilings["t2i"] = _ceilings(t2i, config.score_share)
            labels[SCORE_SHARE] = f"{SCORE_SHARE} {config.score_share}"
        if config.near_captions is not None:
            contains = NearCaptions(
                positives,
                require_captions(captions, _READ_BY),
                share=config.near_captions,
            ).contains
            near["i2t"] = contains
            near["t2i"] = lambda texts, images: contains(images, texts)
            labels[NEAR_CAPTIONS] = f"{NEAR_CAPTIONS} {config.near_captions}"
        if config.skip_first:
            labels[SKIP_FIRST] = f"{SKIP_FIRST} {config.skip_first}"
        return cls(struck, ceilings, near, config.skip_first, labels)


def require_captions(captions: Sequence[str] | None, read_by: str) -> Sequence[str]:
    """Return the captions; refuse to go on without what is `read_by` the settings named."""
    if captions is None:
        raise UserError(
            f"{read_by} the captions, which are not given; pass captions=dataset.captions, or "
            "leave this out."
        )
    return captions


def _ceilings(best: Floats, share: float) -> Floats:
    """Take a share of each score, negative ones included; inf for anchors without a positive."""
    finite = np.where(np.isfinite(best), best, 0)
    ceilings = finite - np.float32(1 - share) * np.abs(finite)
    return np.where(np.isfinite(best), ceilings, np.inf).astype(np.float32)


def best_positive_scores(
    scorer: Scorer[E], encoded: EncodedDataset[E], positives: Positives
) -> tuple[Floats, Floats]:
    """Score the closest positive of every image and of every text; -inf without one."""
    scores = pair_scores(scorer, encoded, positives)
    best = []
    for column, count in ((0, positives.n_images), (1, positives.n_texts)):
        highest = np.full(count, -np.inf, np.float32)
        np.maximum.at(highest, positives.pairs[:, column], scores)
        best.append(highest)
    return best[0], best[1]


def pair_scores(scorer: Scorer[E], encoded: EncodedDataset[E], positives: Positives) -> Floats:
    """Score every positive pair, in the order of `positives.pairs`."""
    pairs = torch.from_numpy(positives.pairs)
    parts = []
    with (
        torch.no_grad(),
        progress_bar("score positives", total=len(pairs), unit="pairs") as update,
    ):
        for rows in ranges(len(pairs), _PAIRS_AT_ONCE):
            images, texts = pairs[rows].T
            scores = scorer.score_pairs(encoded.images[images], encoded.texts[texts])
            parts.append(scores.float().cpu().numpy())
            update(advance=len(images))
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)
