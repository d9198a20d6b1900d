"""Trains a row with sentence-transformers, as its documentation and its maintainers recommend.

Batches without duplicates, so that no other caption of a photo counts as its negative; the loss
over both directions; negatives mined with a margin relative to the positive; AdamW with warm-up and
a cosine. The best epoch is chosen on dev by aoq's own figures, as aoq chooses its.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file, save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.sampler import BatchSamplers
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.util import mine_hard_negatives
from torch import Tensor
from transformers import PrinterCallback

from aoq.data.collate import Collator
from aoq.progress import say_epoch
from reproduction.peers.modules import ENCODED_AT_ONCE, build, judge, swapped
from reproduction.peers.rows import Anchor, LossKind, Mining, Row
from reproduction.peers.start import Judge, Start
from reproduction.peers.stopwatch import Stopwatch

WEIGHTS = "learned.safetensors"
_LOSSES: dict[LossKind, dict[str, Any]] = {
    "query_to_doc": {},
    "symmetric": {
        "directions": ("query_to_doc", "doc_to_query"),
        "partition_mode": "per_direction",
    },
    "gte": {"directions": ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")},
}
_ROUTES: dict[Anchor, str] = {"caption": "query", "photo": "document"}


def train(row: Row, start: Start, folder: Path, *, teacher: Path | None, clock: Stopwatch) -> Judge:
    """Train into `folder`; return what judges the best model on dev."""
    pairs: dict[Anchor, Dataset] = {"caption": _pairs(start)}
    if teacher is not None:
        assert row.mining is not None
        with clock("mining"):
            pairs = mine(load(start, teacher), start, row.mining)
    model = build(start)
    with clock("training"):
        _fit(model, row, start, pairs, folder)
    save_file(_learned(model), folder / WEIGHTS)
    return partial(judge, model)


def load(start: Start, folder: Path) -> SentenceTransformer:
    """Load what was trained into `folder`."""
    model = build(start)
    _restore(model, load_file(folder / WEIGHTS))
    return model


def _pairs(start: Start) -> Dataset:
    captions, photos = start.pairs()
    return Dataset.from_dict({"caption": captions, "photo": photos})


def mine(model: SentenceTransformer, start: Start, mining: Mining) -> dict[Anchor, Dataset]:
    """Add mined negatives to every pair: those for captions are photos, and the reverse."""
    pairs = _pairs(start)
    mined: dict[Anchor, Dataset] = {}
    for anchor in mining.anchors:
        is_photo = anchor == "photo"
        mined[anchor] = mine_hard_negatives(
            pairs.select_columns(["photo", "caption"]) if is_photo else pairs,
            swapped(model) if is_photo else model,
            output_format="n-tuple",
            batch_size=ENCODED_AT_ONCE,
            **mining.parameters(),
        )
    return mined


class DevJudge(BaseEvaluator):
    """Judges the model on dev after each epoch, and keeps the weights of the best."""

    def __init__(self, dev: Collator, *, label: str, epochs: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.primary_metric = "rsum"
        self._dev = dev
        self._label = label
        self._epochs = epochs
        self._judged = 0
        self._best = -1.0
        self.weights: dict[str, Tensor] = {}

    def __call__(
        self,
        model: Any,
        output_path: str | None = None,
        epoch: float = -1,
        steps: int = -1,
    ) -> dict[str, float]:
        figures = judge(model, self._dev).as_dict()
        is_best = figures["rsum"] > self._best
        if is_best:
            self._best = figures["rsum"]
            self.weights = _learned(model)
        self._judged += 1
        note = "best" if is_best else ""
        say_epoch(self._label, f"{self._judged}/{self._epochs}", figures, note=note)
        return figures


def _fit(
    model: SentenceTransformer,
    row: Row,
    start: Start,
    pairs: dict[Anchor, Dataset],
    folder: Path,
) -> None:
    """Train on pairs, or on pairs with negatives, and leave the best weights on dev in the model.

    Where some pairs have no negatives, or each is there for both anchors, the number of steps is
    still that of the pairs: all rows see as many.
    """
    epochs = start.recipe.round_one.epochs
    best = DevJudge(start.data.dev, label=row.label, epochs=epochs)
    loss = MultipleNegativesRankingLoss(
        model,
        scale=row.scale,
        hardness_mode="in_batch_negatives" if row.hardness else None,
        hardness_strength=row.hardness,
        **_LOSSES[row.kind],
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=_arguments(start, pairs, folder),
        train_dataset=DatasetDict(pairs) if len(pairs) > 1 else next(iter(pairs.values())),
        loss=loss,
        evaluator=best,
    )
    trainer.remove_callback(PrinterCallback)  # `best` prints the figures
    trainer.train()
    _restore(model, best.weights)


def _arguments(
    start: Start, pairs: dict[Anchor, Dataset], folder: Path
) -> SentenceTransformerTrainingArguments:
    """Return the settings of the recipe under the names of the trainer's.

    What the recipe has no equal of keeps the trainer's default, such as the norm of clipping.
    """
    settings, steps = start.recipe.round_one, start.steps_per_epoch
    routes = {str(anchor): _routes(anchor, dataset) for anchor, dataset in pairs.items()}
    rates = {}
    if settings.tower_learning_rate is not None:
        rates = {r"query\.0\.": settings.tower_learning_rate}
    return SentenceTransformerTrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=settings.epochs * steps,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        learning_rate_mapping=rates,
        weight_decay=settings.weight_decay,
        lr_scheduler_type="cosine",
        warmup_steps=round(settings.rise_epochs * steps),
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        router_mapping=routes if len(routes) > 1 else next(iter(routes.values())),
        eval_strategy="steps",
        eval_steps=steps,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=settings.precision == "bfloat16",
        seed=start.recipe.seed,
        disable_tqdm=not sys.stderr.isatty(),
    )


def _routes(anchor: Anchor, pairs: Dataset) -> dict[str, str]:
    """Return the route of every column; negatives are of the other kind than their anchor."""
    other: Anchor = "photo" if anchor == "caption" else "caption"
    return {name: _ROUTES[anchor if name == anchor else other] for name in pairs.column_names}


def _learned(model: SentenceTransformer) -> dict[str, Tensor]:
    """Return a copy of the weights that learn."""
    return {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def _restore(model: SentenceTransformer, weights: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, values in weights.items():
            parameters[name].copy_(values)
