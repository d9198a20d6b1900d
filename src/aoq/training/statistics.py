"""What a window of steps was like, and the watch for a training that has collapsed.

A sum of hinges does not show how a model learns. The share of hinges that still pull does, and so
do the scores of positives and of each kind of negative: they should part. Under Eq. 5 the weights
show how much harder the online negatives are than the offline ones.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aoq.losses import BatchScores
from aoq.training.step import Outcome
from aoq.types import Floats

_QUANTILES = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}

_ONLINE = ("i2t_online", "t2i_online")
COLLAPSED = (
    "the loss sits on its plateau of 2 x batch x margin: all scores are alike, so no pair stands "
    "out from its negatives. Some data sets leave it by themselves after an epoch or two: wait, or "
    "train again with a warm-up (--round-one.warmup-epochs 1), selective hard negatives "
    "(--round-one.loss.selective 0.01), a lower learning rate (--round-one.learning-rate) or a "
    "smaller batch (--round-one.batch-size); for round two the flags begin with --round-two."
)


def _has_negative(hinge: str, scores: BatchScores, masks: Mapping[str, Tensor]) -> Tensor:
    """Return where the hinge of this name has a negative. (B,), or (B, B) for Eq. 1

    Elsewhere it is zero whatever the model does, and its score and weight are stand-ins.
    """
    negatives = scores.negative_mask
    direction, _, kind = hinge.partition("_")
    if kind == "all":
        return negatives
    if kind == "online":
        return scores.has_negative[0 if direction == "i2t" else 1]
    return masks.get(hinge, torch.ones_like(negatives.diagonal()))


def _online(scores: BatchScores) -> list[tuple[Tensor, Tensor]]:
    """Return scores of online negatives of images and texts, and where there are any. (B,) each"""
    return [(getattr(scores, name), _has_negative(name, scores, {})) for name in _ONLINE]


class StepStatistics:
    """Collects a window of steps, which begins with it.

    `seconds` is all the time since then: a validation in between counts.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._steps = 0
        self._terms: defaultdict[str, list[float]] = defaultdict(list)
        self._active: Counter[str] = Counter()  # hinges above zero
        self._counted: Counter[str] = Counter()  # hinges that have a negative
        self._values: defaultdict[str, list[Tensor]] = defaultdict(list)

    def add(self, terms: dict[str, float], outcomes: Sequence[Outcome]) -> None:
        """Add one step: its terms, and what they were computed from."""
        self._steps += 1
        for name, value in terms.items():
            self._terms[name].append(value)
        with torch.no_grad():
            for outcome in outcomes:
                self._add_scores(outcome.scores)
                self._add_hinges(outcome)

    def _add_scores(self, scores: BatchScores) -> None:
        self._keep("positive", scores.positive.clone())  # so that the matrix can be freed
        for values, has_negative in _online(scores):
            self._keep("online", values[has_negative])
        if scores.offline is not None:
            self._keep("offline", scores.offline.i2t.clone())
            self._keep("offline", scores.offline.t2i.clone())

    def _add_hinges(self, outcome: Outcome) -> None:
        scores, loss = outcome.scores, outcome.loss
        for name, hinge in loss.hinges.items():
            active = hinge[_has_negative(name, scores, loss.masks)] > 0
            self._active[name] += int(active.sum())
            self._counted[name] += active.numel()
        for name, weights in loss.weights.items():
            if not name.endswith("_online"):
                continue  # those of offline terms are no adaptive ones
            self._keep("weights", weights[_has_negative(name, scores, loss.masks)])

    def _keep(self, name: str, values: Tensor) -> None:
        self._values[name].append(values.detach())

    def values(self) -> dict[str, Floats]:
        """Collect the scores by kind (`positive`, `online`, `offline`) and the adaptive `weights`.

        A kind holds both directions; kinds that the window does not have are absent.
        """
        joined = {name: torch.cat(parts) for name, parts in self._values.items()}
        return {name: parts.float().cpu().numpy() for name, parts in joined.items() if len(parts)}

    def summary(self) -> dict[str, Any]:
        """Summarize the window as one line of the log, rounded, without what it does not have.

        loss     mean of each term over the steps
        active   share of each hinge's negatives that it still pulls away from
        scores   quantiles and mean, by kind
        weights  quantiles and mean of the adaptive weights, and the share below zero
        """
        if not self._steps:
            return {"steps": 0}
        seconds = max(time.monotonic() - self._started, 1e-6)
        values = self.values()
        weights = values.pop("weights", None)
        summary: dict[str, Any] = {
            "steps": self._steps,
            "seconds": round(seconds, 2),
            "steps_per_second": round(self._steps / seconds, 3),
            "loss": {name: round(fmean(terms), 5) for name, terms in self._terms.items()},
            "active": {
                name: round(self._active[name] / counted, 4)
                for name, counted in self._counted.items()
                if counted
            },
            "scores": {name: _described(scores) for name, scores in values.items()},
        }
        if weights is not None:
            below_zero = round(float(np.mean(weights < 0)), 4)
            summary["weights"] = _described(weights) | {"below_zero": below_zero}
        return summary


def _described(values: Floats) -> dict[str, float]:
    """Quantiles and mean.

    >>> _described(np.array([0, 1, 2, 3, 4], dtype=np.float32))
    {'p5': 0.2, 'p25': 1.0, 'p50': 2.0, 'p75': 3.0, 'p95': 3.8, 'mean': 2.0}
    """
    found = np.quantile(values.astype(np.float64), list(_QUANTILES.values()))
    described = dict(zip(_QUANTILES, found, strict=True)) | {"mean": values.mean(dtype=np.float64)}
    return {name: round(float(value), 4) for name, value in described.items()}


class CollapseWatch:
    """Detects that the hardest-negative loss is stuck where all scores are alike.

    A model that gives every pair the same score has every online hinge at exactly the margin, so
    the loss sits at 2 * batch * margin (under Eq. 5 times beta, the weight where S_off = S_on).
    Pushing the hardest negative away then moves the positive just as much, and the model can stay
    there for good. The loss itself is a poor witness: a healthy one can pass through that value.
    So the scores are asked: a step is on the plateau where |S_on - S(i, t)|, averaged over both
    directions, is below a tenth of the margin. A fresh model may well start there; stuck is one
    that was there for `patience` steps in a row.

    Anchors without a negative do not count. A step whose loss has no online hinges, such as Eq. 1
    in the warm-up, is not on the plateau.
    """

    def __init__(self, margin: float, patience: int = 200) -> None:
        self.margin = margin
        self.patience = patience
        self._stuck = 0

    @classmethod
    def for_epochs_of(cls, n_steps: int, *, margin: float) -> CollapseWatch:
        """Make a watch whose patience is an epoch, within 30 to 200 steps.

        A small data set may be trained in 200 steps in all. In one healthy round of 40 steps
        an epoch, at most 8 steps in a row were on the plateau; in a collapsed one, 101.
        """
        return cls(margin, patience=min(200, max(30, n_steps)))

    @property
    def is_stuck(self) -> bool:
        """Whether the last step was part of a collapse."""
        return self._stuck >= self.patience

    def sees(self, outcomes: Sequence[Outcome]) -> bool:
        """Count a step; true when it makes a collapse, once until the loss recovers."""
        self._stuck = self._stuck + 1 if self._on_plateau(outcomes) else 0
        return self._stuck == self.patience

    def _on_plateau(self, outcomes: Sequence[Outcome]) -> bool:
        gaps = [gap for outcome in outcomes for gap in _online_gaps(outcome)]
        return bool(gaps) and bool(torch.cat(gaps).mean() < 0.1 * self.margin)


@torch.no_grad()
def _online_gaps(outcome: Outcome) -> list[Tensor]:
    """Compute |S_on - S(i, t)| of the anchors of both directions that have a negative."""
    if "i2t_online" not in outcome.loss.hinges:
        return []
    positive = outcome.scores.positive
    return [(values - positive).abs()[found] for values, found in _online(outcome.scores)]
