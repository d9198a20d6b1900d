"""The mining report: what the rules dropped, how it scores, and what rounding missed.

Whoever turns a rule on should see what it does: how many candidates it drops, whether those score
like positives or like the ones that are kept, and a few of them in words. Mining counts what it
drops but does not remember it, so for the rest some anchors are ranked once more, against
everything, or everything that was proposed to them. Without rules and in full precision there is
nothing to find out that way: the report then holds the scores of positives and of kept candidates,
and costs next to nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from aoq.config import MiningConfig
from aoq.data.dataset import PairDataset
from aoq.errors import UserError
from aoq.manifest import read_checked
from aoq.mining.captions import words_of
from aoq.mining.direction import OneWay
from aoq.mining.filters import (
    EQUAL_CAPTIONS,
    NEAR_CAPTIONS,
    SCORE_SHARE,
    SKIP_FIRST,
    pair_scores,
)
from aoq.mining.sides import Side
from aoq.mining.together import Mined
from aoq.mining.toplists import ids_of, keys_of, scores_of
from aoq.scoring.blocks import evenly_spread
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.precision import rounded
from aoq.scoring.protocol import Scorer
from aoq.storage import write_json
from aoq.types import Bools, Floats, Ids, Int32s, Positives

E = TypeVar("E")
PERCENTILES = (5, 25, 50, 75, 95)
EXAMPLES = 3  # of every rule and direction
_SAMPLED = 20_000  # positive pairs, and lists of either kind
_SCORES_HELD = 2**26  # at the most: all of those anchors at COCO's size, fewer beyond it
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Scores:
    """The scores of one kind of pair, by percentiles of a sample."""

    n: int
    "How many pairs there are."
    n_sampled: int
    percentiles: dict[str, float]
    "From p5 to p95; nothing where the sample is empty."

    @classmethod
    def of(cls, sample: Floats, *, n: int) -> Scores:
        sample = sample[np.isfinite(sample)]  # float16 can overflow
        values = np.percentile(sample, PERCENTILES).tolist() if len(sample) else []
        names = (f"p{percent}" for percent in PERCENTILES)
        return cls(n, len(sample), dict(zip(names, values, strict=False)))


@dataclass(frozen=True)
class Example:
    """A candidate that was dropped, with its anchor: one is the image, the other the text."""

    image: str
    caption: str
    "The one of the image's captions that is most like the text."
    text: str
    words: str
    score: float
    best_positive: float
    "The score of the anchor's closest positive."


@dataclass(frozen=True)
class DroppedBy:
    """What one rule dropped from the lists of one direction."""

    rule: str
    scores: Scores
    "Sampled are those that would have been in their list; equal captions count at any rank."
    examples: tuple[Example, ...]
    "The hardest of the sample, one an anchor."


@dataclass(frozen=True)
class DirectionReport:
    """The lists of one direction."""

    kept: Scores
    dropped: tuple[DroppedBy, ...]
    "By rule, in the order in which they apply."
    n_excused: int
    "Anchors to which the rules left too few candidates: these keep what they had."
    n_ranked: int
    "Anchors that were ranked once more: the sample of what was dropped, and of recall."
    recall: float | None
    "Of rounded scores: how much they find of what full precision finds among the same candidates."


@dataclass(frozen=True)
class MiningReport:
    """What mining kept and dropped; stored beside the lists."""

    precision: str
    positives: Scores
    i2t: DirectionReport
    t2i: DirectionReport

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def save(self, path: Path) -> None:
        write_json(path, self.as_dict())

    @classmethod
    def load(cls, path: Path) -> MiningReport:
        try:
            fields = json.loads(read_checked(path))
            return cls(
                precision=fields["precision"],
                positives=Scores(**fields["positives"]),
                i2t=_direction_from(fields["i2t"]),
                t2i=_direction_from(fields["t2i"]),
            )
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"{path} is no mining report; expected the JSON that `aoq mine` writes: mine again."
            ) from None


def report_file(lists: Path) -> Path:
    """Where the report of a file of lists is."""
    return lists.with_suffix(".report.json")


def _direction_from(fields: dict[str, Any]) -> DirectionReport:
    dropped = tuple(
        DroppedBy(
            part["rule"],
            Scores(**part["scores"]),
            tuple(Example(**example) for example in part["examples"]),
        )
        for part in fields["dropped"]
    )
    return DirectionReport(**{**fields, "kept": Scores(**fields["kept"]), "dropped": dropped})


def mining_report(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    dataset: PairDataset,
    mined: Mined,
    *,
    config: MiningConfig,
    sample: int = 100,
) -> MiningReport:
    """Report on what `scorer` has mined.

    Percentiles are those of 20,000 positive pairs and of 20,000 lists of either kind, and of what
    was dropped from the lists of `sample` images and texts, evenly spread over the data set. These
    are scored against all that could be in their lists, which a slow model may be spared: 0 leaves
    them out.
    """
    exact = None if config.precision == "float32" else scorer
    scorer = rounded(scorer, config.precision)
    lists, ways, positives = mined.lists, mined.ways, dataset.positives
    pairs = positives.pairs[evenly_spread(len(positives.pairs), _SAMPLED)]
    i2t, t2i = (
        _report_direction(
            way,
            dataset,
            kept_scores=kept_scores,
            labels=ways.labels,
            n_dropped={rule: numbers[which] for rule, numbers in mined.n_dropped.items()},
            n_excused=mined.n_excused[which],
            exact=exact,
            sample=sample,
        )
        for which, (way, kept_scores) in enumerate(
            ((ways.i2t, lists.i2t_scores), (ways.t2i, lists.t2i_scores))
        )
    )
    of_positives = pair_scores(scorer, encoded, replace(positives, pairs=pairs))
    return MiningReport(
        precision=config.precision,
        positives=Scores.of(of_positives, n=len(positives.pairs)),
        i2t=i2t,
        t2i=t2i,
    )


def _report_direction(
    way: OneWay[E],
    dataset: PairDataset,
    *,
    kept_scores: Floats,
    labels: Mapping[str, str],
    n_dropped: dict[str, int],
    n_excused: int,
    exact: Scorer[E] | None,
    sample: int,
) -> DirectionReport:
    """One direction; `exact` is the scorer in full precision where the lists are rounded."""
    side, depth = way.side, way.depth
    of_texts = side.anchors_are_texts
    positives = dataset.positives.swapped if of_texts else dataset.positives
    n_ranked = min(sample, max(1, _SCORES_HELD // positives.n_texts))
    if not n_dropped and exact is None:
        n_ranked = 0
    anchors = evenly_spread(positives.n_images, n_ranked)
    nothing = np.zeros(0, np.float32)
    scores: dict[str, list[Floats]] = {rule: [nothing] for rule in n_dropped}
    examples: dict[str, list[Example]] = {rule: [] for rule in n_dropped}
    found: list[Int32s] = []
    for ranking in _rank(side, anchors, positives):
        found.append(ranking.ids[:depth])
        for rule, dropped in _dropped(way, ranking, labels).items():
            scores[rule].append(ranking.scores[dropped])
            if dropped.any():
                hardest = int(dropped.argmax())
                examples[rule].append(_example(ranking, hardest, dataset, of_texts=of_texts))
    recall = None
    if exact is not None and n_ranked:
        rankings = _rank(replace(side, scorer=exact), anchors, positives)
        wanted = (ranking.ids[:depth] for ranking in rankings)
        shares = [np.isin(*pair).mean() for pair in zip(wanted, found, strict=True)]
        recall = float(np.mean(shares))
    return DirectionReport(
        kept=Scores.of(kept_scores[evenly_spread(len(kept_scores), _SAMPLED)], n=kept_scores.size),
        dropped=tuple(
            DroppedBy(
                rule,
                Scores.of(np.concatenate(scores[rule]), n=n),
                tuple(sorted(examples[rule], key=lambda one: -one.score)[:EXAMPLES]),
            )
            for rule, n in n_dropped.items()
        ),
        n_excused=n_excused,
        n_ranked=len(anchors),
        recall=recall,
    )


@dataclass(frozen=True, eq=False)
class _Ranking:
    """One anchor with its candidates, positives left out, hardest first."""

    anchor: int
    best_positive: float
    ids: Int32s
    scores: Floats


def _rank(side: Side[E], anchors: Ids, positives: Positives) -> Iterator[_Ranking]:
    """Rank some anchors against all that the side knows of, also what else it strikes out."""
    if not len(anchors):
        return
    whole = replace(side, positives=positives)
    for anchor, (ids, scores) in zip(anchors.tolist(), whole.negatives(anchors), strict=True):
        keys = np.sort(keys_of(_finite(scores), ids))[::-1]
        yield _Ranking(anchor, _best_positive(whole, anchor), ids_of(keys), scores_of(keys))


def _best_positive(side: Side[E], anchor: int) -> float:
    """The score of the closest positive of an anchor, if it has any."""
    own = torch.from_numpy(side.positives.texts_of(anchor))
    if not len(own):
        return _LOWEST
    anchors = side.anchors[slice(anchor, anchor + 1)]
    return float(_finite(side.matrix(anchors, side.candidates[own])).max())


def _finite(scores: Floats) -> Floats:
    """Numbers that can be ranked and written: float16 can overflow."""
    return np.nan_to_num(scores, copy=False, nan=_LOWEST)


def _dropped(way: OneWay[E], ranking: _Ranking, labels: Mapping[str, str]) -> dict[str, Bools]:
    """Which candidates each rule, by its label, keeps out of the list of an anchor.

    A candidate counts for the first rule that drops it, if it ranks above the last that is kept.
    """
    anchor, ids = ranking.anchor, ranking.ids
    nothing = np.zeros(len(ids), dtype=bool)
    equal = way.side.positives.contains(anchor, ids)
    ceilings, near_of = way.ceilings, way.near
    high = nothing if ceilings is None else (ranking.scores > ceilings[anchor]) & ~equal
    near = nothing if near_of is None else near_of(np.array(anchor), ids) & ~equal & ~high
    last = way.skip_first + way.depth
    left = np.flatnonzero(~(equal | high | near))
    if len(left) < last:  # the anchor is excused
        high = near = nothing
        left = np.flatnonzero(~equal)
    first = nothing.copy()
    first[left[: way.skip_first]] = True
    in_reach = np.arange(len(ids)) < left[last - 1]
    dropped = {EQUAL_CAPTIONS: equal, SCORE_SHARE: high, NEAR_CAPTIONS: near, SKIP_FIRST: first}
    return {label: dropped[rule] & in_reach for rule, label in labels.items()}


def _example(ranking: _Ranking, place: int, dataset: PairDataset, *, of_texts: bool) -> Example:
    """A dropped candidate in words; an image by the caption that is most like the text."""
    anchor, candidate = ranking.anchor, int(ranking.ids[place])
    image, text = (candidate, anchor) if of_texts else (anchor, candidate)
    words = set(words_of(dataset.captions[text]))

    def likeness(caption: str) -> float:
        others = set(words_of(caption))
        return len(words & others) / max(len(words | others), 1)

    captions = [dataset.captions[own] for own in dataset.positives.texts_of(image)]
    return Example(
        image=dataset.image_ids[image],
        caption=max(captions, key=likeness),
        text=dataset.caption_ids[text],
        words=dataset.captions[text],
        score=float(ranking.scores[place]),
        best_positive=ranking.best_positive,
    )
