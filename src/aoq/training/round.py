"""One round of training: epochs of steps, validation after each, the best model kept.

A round can be killed at any moment and continues from its last saved state; all randomness
follows from (seed, epoch, step), so it ends with the weights of an uninterrupted round.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from aoq.config import RoundConfig
from aoq.data.collate import Collator
from aoq.errors import UserError
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.protocols import evaluate
from aoq.losses import LossTerms
from aoq.models.vsrn import VSRN
from aoq.progress import EventLog, progress_bar, say
from aoq.randomness import epoch_order, seed_torch
from aoq.sampling import OfflineSampler
from aoq.storage import RunDirectory
from aoq.training.checkpoint import TrainerState, load_trainer, save_trainer, save_weights
from aoq.training.step import make_batch, step_loss
from aoq.types import Ids


class Round:
    """Trains one model with one loss and writes what comes of it to a run directory."""

    def __init__(
        self,
        run: RunDirectory,
        settings: RoundConfig,
        *,
        model: VSRN,
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
        self.optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, fused=True)
        self.state = load_trainer(run.trainer, model, self.optimizer)

    @property
    def finished(self) -> bool:
        return self.state.epoch >= self.settings.epochs

    def fit(self) -> TrainerState:
        """Train the epochs that are left."""
        while not self.finished:
            self._train_epoch(self.state.epoch)
            metrics = evaluate(self.model, self.dev, description=f"{self.label}: validate")
            self._finish_epoch(metrics)
        return self.state

    def _batches(self, epoch: int) -> list[Ids]:
        """The positive pairs of each step; a last batch of one pair has no negatives, so goes."""
        pairs = self.train.dataset.positives.pairs
        order = epoch_order(len(pairs), seed=self.seed, epoch=epoch)
        size = self.settings.batch_size
        batches = [pairs[order[start : start + size]] for start in range(0, len(order), size)]
        return [batch for batch in batches if len(batch) > 1]

    def _train_epoch(self, epoch: int) -> None:
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate_at(epoch)
        batches = self._batches(epoch)
        title = f"{self.label}: epoch {epoch + 1}/{self.settings.epochs}"
        sums: defaultdict[str, float] = defaultdict(float)
        started, first = time.monotonic(), self.state.step
        with progress_bar(title, total=len(batches), unit="steps") as update:
            update(advance=first)
            for step in range(first, len(batches)):
                terms = self._step(batches[step], epoch=epoch, step=step)
                for name, value in terms.items():
                    sums[name] += value
                self.state = replace(self.state, step=step + 1)
                if (step + 1) % self.settings.checkpoint_every == 0:
                    save_trainer(self.run.trainer, self.model, self.optimizer, self.state)
                update(note=f"loss {sum(terms.values()):.2f}")
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
        loss_config = self.settings.loss_at(epoch)
        batch = make_batch(
            self.train,
            pair_ids,
            sampler=self.sampler if loss_config.needs_candidates else None,
            diagonal_only=loss_config.diagonal_only,
            epoch=epoch,
            step=step,
        )
        loss = step_loss(self.model, batch, loss_config)
        terms = self._finite_terms(loss, pair_ids, epoch=epoch, step=step)
        self.optimizer.zero_grad(set_to_none=True)
        loss.total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        self.optimizer.step()
        return terms

    def _finite_terms(
        self, loss: LossTerms, pair_ids: Ids, *, epoch: int, step: int
    ) -> dict[str, float]:
        terms = {name: float(value.detach()) for name, value in loss.terms.items()}
        if all(math.isfinite(value) for value in terms.values()):
            return terms
        self.log.write("not_finite", epoch=epoch + 1, step=step, loss=str(terms))
        images = ", ".join(self.train.dataset.image_ids[i] for i in np.unique(pair_ids[:5, 0]))
        raise UserError(
            f"the loss is no longer finite in epoch {epoch + 1}, step {step + 1} ({terms}; images "
            f"{images}, ...); the last saved state is kept: lower the learning rate and continue."
        )

    def _finish_epoch(self, metrics: Metrics) -> None:
        """Note the validation, keep the model if it is the best, save the state."""
        epoch = self.state.epoch
        score = metrics.rsum if self.settings.select_by == "rsum" else metrics.r1_r5
        if self.settings.warming_up(epoch):
            score = -math.inf  # kept only until the loss itself has had an epoch
        best = score > self.state.best or self.state.best_epoch < 0
        self.state = TrainerState(
            epoch=epoch + 1,
            best=max(score, self.state.best),
            best_epoch=epoch + 1 if best else self.state.best_epoch,
        )
        self.log.write("validation", epoch=epoch + 1, best=best, **metrics.as_dict())
        if best:
            width = self.train.dataset.features.shape[2]
            save_weights(self.run.model, self.model, feature_width=width)
        save_trainer(self.run.trainer, self.model, self.optimizer, self.state)
        say(
            f"{self.label}: epoch {epoch + 1}/{self.settings.epochs}  dev rsum {metrics.rsum:.1f}  "
            f"R@1 {metrics.i2t.r1:.1f} i2t, {metrics.t2i.r1:.1f} t2i{'  (best)' if best else ''}"
        )
