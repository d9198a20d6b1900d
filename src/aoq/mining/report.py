"""The mining report: what the rules dropped, how it scores, and what rounding missed.

A rule should show what it does: how many candidates it drops, whether those score like positives
or like the candidates that are kept, and a few of them in words. Mining counts what it drops but
does not store it, so some anchors are ranked once more, against everything, or everything that was
proposed to them. Without rules and in full precision this is left out: the report then holds the
scores of positives and of kept candidates, and costs next to nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from aoq.config import Direction, MiningConfig
from aoq.data.dataset import PairDataset
from aoq.errors import UserError
from aoq.manifest import read_checked
from aoq.mining.candidates import DIRECTIONS
from aoq.mining.captions import words_of
from aoq.mining.filters import (
    EQUAL_CAPTIONS,
    NEAR_CAPTIONS,
    SCORE_SHARE,
    SKIP_FIRST,
    pair_scores,
)
from aoq.mining.finish import MiningResult
from aoq.mining.plan import DirectionPlan
from aoq.mining.product import ProductReport
from aoq.mining.score_matrix import ScoreMatrix
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
class ScoreSummary:
    """Percentiles of the scores of one kind of pair."""

    n: int
    "Number of pairs."
    n_sampled: int
    percentiles: dict[str, float]
    "From p5 to p95; empty if the sample is."

    @classmethod
    def of(cls, sample: Floats, *, n: int) -> ScoreSummary:
        sample = sample[np.isfinite(sample)]  # float16 can overflow
        values = np.percentile(sample, PERCENTILES).tolist() if len(sample) else []
        names = (f"p{percent}" for percent in PERCENTILES)
        return cls(n, len(sample), dict(zip(names, values, strict=False)))


@dataclass(frozen=True)
class Example:
    """A candidate that was dropped, with its anchor: one is the image, the other the text."""

    image: str
    caption: str
    "The caption of the image that is most like the text."
    text: str
    words: str
    score: float
    best_positive: float
    "The score of the anchor's closest positive."


@dataclass(frozen=True)
class RuleReport:
    """What one rule dropped from the lists of one direction."""

    rule: str
    scores: ScoreSummary
    "Sampled from those that would have been in the list; equal captions count at any rank."
    examples: tuple[Example, ...]
    "The hardest of the sample, one per anchor."


@dataclass(frozen=True)
class MatchReport:
    """How many candidates of one direction are right, by estimate."""

    share: float
    "Mean probability that a candidate is right."
    by_rank: dict[str, float]
    "Mean probability at the first, the tenth and the last rank."
    score_weight: float
    "By how much the log odds rise with the score."
    likeness_weight: float
    "By how much they rise with the likeness of captions."


@dataclass(frozen=True)
class ListsReport:
    """The lists of one direction."""

    kept: ScoreSummary
    dropped: tuple[RuleReport, ...]
    "By rule, in order of application."
    n_excused: int
    "Anchors to which the rules left too few candidates: these keep what they had."
    n_ranked: int
    "Anchors that were ranked once more, for the sample of what was dropped and for recall."
    recall: float | None
    "Share of the lists in full precision that rounded scores find."
    matches: MatchReport | None = None
    "None without estimates."


_FLOAT32 = {"product": "float32", "n_pairs": 0, "n_scored": 0}  # reports of earlier versions


@dataclass(frozen=True)
class MiningReport:
    """What mining kept and dropped; stored beside the lists."""

    precision: str
    product: ProductReport
    positives: ScoreSummary
    i2t: ListsReport
    t2i: ListsReport

    def save(self, path: Path) -> None:
        """Write the report as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> MiningReport:
        """Read a report that `save` wrote."""
        try:
            fields = json.loads(read_checked(path))
            return cls(
                precision=fields["precision"],
                product=ProductReport(**fields.get("product", _FLOAT32)),
                positives=ScoreSummary(**fields["positives"]),
                i2t=_lists_from(fields["i2t"]),
                t2i=_lists_from(fields["t2i"]),
            )
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"{path} is not a mining report; expected the JSON of `aoq mine`: mine again."
            ) from None


def report_file(lists: Path) -> Path:
    """Name the report of a file of lists."""
    return lists.with_suffix(".report.json")


def _lists_from(fields: dict[str, Any]) -> ListsReport:
    dropped = tuple(
        RuleReport(
            rule["rule"],
            ScoreSummary(**rule["scores"]),
            tuple(Example(**example) for example in rule["examples"]),
        )
        for rule in fields["dropped"]
    )
    matches = fields.get("matches") and MatchReport(**fields["matches"])
    kept = ScoreSummary(**fields["kept"])
    return ListsReport(**{**fields, "kept": kept, "dropped": dropped, "matches": matches})


def mining_report(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    dataset: PairDataset,
    result: MiningResult,
    *,
    config: MiningConfig,
    sample: int = 100,
) -> MiningReport:
    """Report on what `scorer` has mined.

    Percentiles are those of 20,000 positive pairs and of 20,000 lists of either direction, and of
    what was dropped from the lists of `sample` images and texts, evenly spread over the data set.
    These are scored with everything that could be in their lists; with a slow model, a sample of 0
    leaves them out.
    """
    exact = None if config.precision == "float32" else scorer
    scorer = rounded(scorer, config.precision)
    positives = dataset.positives
    pairs = positives.pairs[evenly_spread(len(positives.pairs), _SAMPLED)]
    of_lists = {
        direction: _report_lists(direction, dataset, result, exact=exact, sample=sample)
        for direction in DIRECTIONS
    }
    of_positives = pair_scores(scorer, encoded, replace(positives, pairs=pairs))
    return MiningReport(
        precision=config.precision,
        product=result.product,
        positives=ScoreSummary.of(of_positives, n=len(positives.pairs)),
        **of_lists,
    )


def _report_lists(
    direction: Direction,
    dataset: PairDataset,
    result: MiningResult,
    *,
    exact: Scorer[Any] | None,
    sample: int,
) -> ListsReport:
    """Report on one direction; `exact` is the unrounded scorer where the lists are rounded."""
    which = DIRECTIONS.index(direction)
    plan = result.plan.i2t if direction == "i2t" else result.plan.t2i
    n_dropped = {rule: counts[which] for rule, counts in result.n_dropped.items()}
    matrix, depth = plan.matrix, plan.depth
    positives = dataset.positives if direction == "i2t" else dataset.positives.swapped
    n_ranked = min(sample, max(1, _SCORES_HELD // positives.n_texts))
    if not n_dropped and exact is None:
        n_ranked = 0
    anchors = evenly_spread(positives.n_images, n_ranked)
    nothing = np.zeros(0, np.float32)
    scores: dict[str, list[Floats]] = {rule: [nothing] for rule in n_dropped}
    examples: dict[str, list[Example]] = {rule: [] for rule in n_dropped}
    found: list[Int32s] = []
    for ranking in _rank(matrix, anchors, positives):
        found.append(ranking.ids[:depth])
        for rule, dropped in _dropped(plan, ranking, result.plan.labels).items():
            scores[rule].append(ranking.scores[dropped])
            if dropped.any():
                hardest = int(dropped.argmax())
                examples[rule].append(_example(ranking, hardest, dataset, direction))
    recall = None
    if exact is not None and n_ranked:
        rankings = _rank(replace(matrix, scorer=exact), anchors, positives)
        wanted = (ranking.ids[:depth] for ranking in rankings)
        shares = [np.isin(*pair).mean() for pair in zip(wanted, found, strict=True)]
        recall = float(np.mean(shares))
    _, kept_scores = result.lists.of(direction)
    kept_sample = kept_scores[evenly_spread(len(kept_scores), _SAMPLED)]
    return ListsReport(
        kept=ScoreSummary.of(kept_sample, n=kept_scores.size),
        dropped=tuple(
            RuleReport(
                rule,
                ScoreSummary.of(np.concatenate(scores[rule]), n=n),
                tuple(sorted(examples[rule], key=lambda one: -one.score)[:EXAMPLES]),
            )
            for rule, n in n_dropped.items()
        ),
        n_excused=result.n_excused[which],
        n_ranked=len(anchors),
        recall=recall,
        matches=_report_matches(result, direction),
    )


def _report_matches(result: MiningResult, direction: Direction) -> MatchReport | None:
    """Report on the probabilities of one direction, if they were estimated."""
    matches = result.lists.matches_of(direction)
    if matches is None:
        return None
    estimate, means = result.estimates[direction], matches.mean(axis=0, dtype=np.float64)
    ranks = sorted({1, min(10, len(means)), len(means)})
    return MatchReport(
        share=float(means.mean()),
        by_rank={str(rank): float(means[rank - 1]) for rank in ranks},
        score_weight=estimate.score_weight,
        likeness_weight=estimate.likeness_weight,
    )


@dataclass(frozen=True, eq=False)
class _Ranking:
    """One anchor with its candidates but its positives, hardest first."""

    anchor: int
    best_positive: float
    ids: Int32s
    scores: Floats


def _rank(matrix: ScoreMatrix[E], anchors: Ids, positives: Positives) -> Iterator[_Ranking]:
    """Rank all candidates of some anchors, those that a rule strikes out included."""
    if not len(anchors):
        return
    whole = replace(matrix, positives=positives)
    for anchor, (ids, scores) in zip(anchors.tolist(), whole.negatives(anchors), strict=True):
        keys = np.sort(keys_of(_finite(scores), ids))[::-1]
        yield _Ranking(anchor, _best_positive(whole, anchor), ids_of(keys), scores_of(keys))


def _best_positive(matrix: ScoreMatrix[E], anchor: int) -> float:
    """Score of the closest positive of an anchor; lowest without one."""
    own = torch.from_numpy(matrix.positives.texts_of(anchor))
    if not len(own):
        return _LOWEST
    anchors = matrix.anchors[slice(anchor, anchor + 1)]
    return float(_finite(matrix.scores(anchors, matrix.candidates[own])).max())


def _finite(scores: Floats) -> Floats:
    """Replace what cannot be ranked or written as JSON: float16 can overflow."""
    return np.nan_to_num(scores, copy=False, nan=_LOWEST)


def _dropped(
    plan: DirectionPlan[E], ranking: _Ranking, labels: Mapping[str, str]
) -> dict[str, Bools]:
    """Find the candidates that each rule, by its label, keeps out of the list of an anchor.

    A candidate counts for the first rule that drops it, if it ranks above the last that is kept.
    """
    anchor, ids = ranking.anchor, ranking.ids
    nothing = np.zeros(len(ids), dtype=bool)
    equal = plan.matrix.positives.contains(anchor, ids)
    ceilings, near_of = plan.ceilings, plan.near
    high = nothing if ceilings is None else (ranking.scores > ceilings[anchor]) & ~equal
    near = nothing if near_of is None else near_of(np.array(anchor), ids) & ~equal & ~high
    left = np.flatnonzero(~(equal | high | near))
    if len(left) < plan.last:  # the anchor is excused
        high = near = nothing
        left = np.flatnonzero(~equal)
    first = nothing.copy()
    first[left[: plan.skip_first]] = True
    in_reach = np.arange(len(ids)) < left[plan.last - 1]
    dropped = {EQUAL_CAPTIONS: equal, SCORE_SHARE: high, NEAR_CAPTIONS: near, SKIP_FIRST: first}
    return {label: dropped[rule] & in_reach for rule, label in labels.items()}


def _example(ranking: _Ranking, place: int, dataset: PairDataset, direction: Direction) -> Example:
    """Describe a dropped candidate; an image by the caption that is most like the text."""
    anchor, candidate = ranking.anchor, int(ranking.ids[place])
    image, text = (anchor, candidate) if direction == "i2t" else (candidate, anchor)
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
