"""One round of training: epochs of steps, validation after each, the best model kept.

A round can be killed at any moment and continues from its last saved state; all randomness
follows from (seed, epoch, step), so it ends with the weights of an uninterrupted round.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import replace

from aoq.config import RoundConfig
from aoq.data.collate import Collator
from aoq.errors import UserError
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.protocols import evaluate
from aoq.progress import EventLog, progress_bar, say
from aoq.randomness import epoch_order, seed_torch
from aoq.sampling import OfflineSampler
from aoq.scoring.protocol import TrainableModel
from aoq.storage import RunDirectory
from aoq.training.checkpoint import TrainerState, load_trainer, save_trainer, save_weights
from aoq.training.step import make_batch, make_optimizer, update
from aoq.types import Ids


class Round:
    """Trains one model with one loss and writes what comes of it to a run directory."""

    def __init__(
        self,
        run: RunDirectory,
        settings: RoundConfig,
        *,
        model: TrainableModel,
        train: Collator,
        dev: Collator,
        sampler: OfflineSampler | None,
        seed: int,
        label: str,
    ) -> None:
        self.run = run
        self.settings = settings
        self.model = model
        self.train = train
        self.dev = dev
        self.sampler = sampler
        self.seed = seed
        self.label = label
        self.log = EventLog(run.events)
        self.optimizer = make_optimizer(model, settings)
        self.state = load_trainer(run.trainer, model, self.optimizer)

    def fit(self) -> TrainerState:
        """Train the epochs that are left."""
        if self.state.epoch >= self.settings.epochs:
            say(f"{self.label}: finished before, {self.settings.epochs} epochs")
        elif self.state != TrainerState():
            say(f"{self.label}: continues in epoch {self.state.epoch + 1}, step {self.state.step}")
        while self.state.epoch < self.settings.epochs:
            self._train_epoch(self.state.epoch)
            warming_up = self.settings.warming_up(self.state.epoch)
            metrics, best = self._validate(self.state.epoch)
            self.state = replace(self.state, epoch=self.state.epoch + 1, step=0)
            self._save()
            say(
                f"{self.label}: epoch {self.state.epoch}/{self.settings.epochs}  "
                f"dev rsum {metrics.rsum:.1f}  R@1 {metrics.i2t.r1:.1f} i2t, "
                f"{metrics.t2i.r1:.1f} t2i"
                f"{'  (warm-up)' if warming_up else '  (best)' if best else ''}"
            )
        return self.state

    def _batches(self, epoch: int) -> list[Ids]:
        """The positive pairs of each step; a last batch of one pair has no negatives, so goes."""
        pairs = self.train.dataset.positives.pairs
        order = epoch_order(len(pairs), seed=self.seed, epoch=epoch)
        size = self.settings.batch_size
        batches = [pairs[order[start : start + size]] for start in range(0, len(order), size)]
        return [batch for batch in batches if len(batch) > 1]

    def _train_epoch(self, epoch: int) -> None:
        """The steps of an epoch that are left, with what is due in between."""
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate_at(epoch)
        batches = self._batches(epoch)
        title = f"{self.label}: epoch {epoch + 1}/{self.settings.epochs}"
        sums: defaultdict[str, float] = defaultdict(float)
        started, first = time.monotonic(), self.state.step
        with progress_bar(title, total=len(batches), unit="steps") as bar:
            bar(advance=first)
            for step in range(first, len(batches)):
                terms = self._step(batches[step], epoch=epoch, step=step)
                for name, value in terms.items():
                    sums[name] += value
                self.state = replace(self.state, step=step + 1)
                self._between_steps(epoch * len(batches) + step + 1, last=step + 1 == len(batches))
                bar(note=f"loss {sum(terms.values()):.2f}")
        n_steps = len(batches) - first
        self.log.write(
            "epoch",
            epoch=epoch + 1,
            learning_rate=self.settings.learning_rate_at(epoch),
            seconds=round(time.monotonic() - started, 2),
            steps=n_steps,
            loss={name: round(value / max(n_steps, 1), 5) for name, value in sums.items()},
        )

    def _step(self, pair_ids: Ids, *, epoch: int, step: int) -> dict[str, float]:
        """One update of the weights; the loss terms it was made from."""
        seed_torch(self.seed, epoch=epoch + 1, step=step)
        batch = make_batch(
            self.train,
            pair_ids,
            settings=self.settings,
            sampler=self.sampler,
            epoch=epoch,
            step=step,
        )
        try:
            return update(self.model, self.optimizer, batch, settings=self.settings, epoch=epoch)
        except UserError as error:
            images = [self.train.dataset.image_ids[image] for image in pair_ids[:, 0]]
            self.log.write("not_finite", epoch=epoch + 1, step=step + 1, images=images)
            raise UserError(f"epoch {epoch + 1}, step {step + 1}: {error}") from None

    def _between_steps(self, steps: int, *, last: bool) -> None:
        """A validation or a saved state where one is due; the end of an epoch brings both."""
        every, save_every = self.settings.validate_every, self.settings.checkpoint_every
        if every is not None and steps % every == 0 and not last:
            self._validate(self.state.epoch)
        if steps % save_every == 0 and not last:
            self._save()

    def _validate(self, epoch: int) -> tuple[Metrics, bool]:
        """Judge the model on dev, and keep its weights where they are the best so far.

        Weights of the warm-up are kept only until the loss itself has had its turn.
        """
        metrics = evaluate(self.model, self.dev, description=f"{self.label}: validate")
        score = metrics.rsum if self.settings.select_by == "rsum" else metrics.r1_r5
        if self.settings.warming_up(epoch):
            score = -math.inf
        best = score > self.state.best or self.state.best_epoch < 0
        if best:
            self.state = replace(self.state, best=score, best_epoch=epoch + 1)
            width = self.train.dataset.features.shape[2]
            save_weights(self.run.model, self.model, feature_width=width)
        self.log.write(
            "validation", epoch=epoch + 1, step=self.state.step, best=best, **metrics.as_dict()
        )
        return metrics, best

    def _save(self) -> None:
        save_trainer(self.run.trainer, self.model, self.optimizer, self.state)
