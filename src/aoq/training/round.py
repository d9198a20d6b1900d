"""One round of training: epochs of steps, validation after each, the best model kept.

A round can be killed at any moment and continues from its last saved state; all randomness
follows from (seed, epoch, step, process), so it ends with the weights of an uninterrupted round.
SIGTERM and Ctrl-C save the step under way before they take effect.

The order of a step's sums depends on the number of threads. It is measured before the first step
and kept with the state: a round that goes on takes its steps with as many. Where steps become much
slower, it is measured again.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from aoq.config import MiningConfig, RoundConfig, RoundName
from aoq.data.collate import Collator
from aoq.data.dataset import ImagesOnDemand
from aoq.distributed import ALONE, Processes
from aoq.errors import UserError
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.protocols import evaluate
from aoq.manifest import record_pattern
from aoq.progress import EventLog, count_of, progress_bar, say, say_epoch, warn
from aoq.randomness import epoch_order, seed_torch
from aoq.runs.checkpoint import (
    HasState,
    TrainerState,
    load_trainer,
    save_trainer,
    save_weights,
)
from aoq.runs.directory import RunDirectory
from aoq.sampling import OfflineSampler
from aoq.scoring.protocol import TrainableModel
from aoq.threads import Pace, ThreadChoice, choose_threads, is_set_by_user, using_threads
from aoq.training.average import WeightAverage
from aoq.training.board import step_board
from aoq.training.callbacks import Callback, RoundEnd, RoundStart, StepEnd, Validation
from aoq.training.collectives import Collectives, start_fabric
from aoq.training.logit_scale import LogitScale
from aoq.training.optimizers import LearningRates, MakeOptimizer, add_undecayed
from aoq.training.optimizers import make_optimizer as usual_optimizer
from aoq.training.prefetch import prefetch
from aoq.training.remining import Remining, describe
from aoq.training.signals import Stop, waiting_signals
from aoq.training.statistics import COLLAPSED, CollapseWatch, StepStatistics
from aoq.training.step import NotFiniteError, add_gradients, make_batches, update
from aoq.types import Ids, StepBatch

_AHEAD = 2


class Round:
    """Trains one model with one loss and writes what comes of it to a run directory.

    Several processes share its steps; the first one validates, writes and reports for all.
    """

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
        which: RoundName,
        feature_width: int | None,
        mining: MiningConfig | None = None,
        make_optimizer: MakeOptimizer | None = None,
        callbacks: Sequence[Callback] = (),
        processes: Processes = ALONE,
    ) -> None:
        self.run = run
        self.settings = settings
        self.model = model
        self.train = train
        self.dev = dev
        self.sampler = sampler
        self.seed = seed
        self.label = label
        self.which: RoundName = which
        self.callbacks = tuple(callbacks) if processes.is_first else ()
        self.feature_width = feature_width
        self.processes = processes
        self.collectives = Collectives(start_fabric(train.device, settings.precision))
        if self.collectives.processes != processes:
            raise UserError(
                "torchrun started this program, which did not join its processes; train inside "
                "`with aoq.distributed.join_processes() as processes`, and pass them on."
            )
        self.remining = None
        if settings.remine_every is not None:
            self.remining = Remining(
                run,
                settings,
                config=mining or MiningConfig(),
                train=train,
                processes=processes,
            )
        self.n_steps = len(self._batches(0))
        if not self.n_steps:
            raise UserError(
                f"{self.label}: {len(train.dataset.positives.pairs):,} pairs in batches of "
                f"{settings.batch_size} leave fewer than 2 pairs for each of {processes.size} "
                f"processes and {settings.accumulate} parts of a step; use fewer of these, or a "
                "larger training split."
            )
        self.optimizer = (make_optimizer or usual_optimizer)(model, settings)
        self.logit_scale = LogitScale(settings.loss).to(train.device)
        add_undecayed(self.optimizer, self.logit_scale, settings)
        self.rates = LearningRates(self.optimizer, settings, n_steps=self.n_steps)
        self.average = None
        if settings.ema is not None and processes.is_first:  # which validates
            self.average = WeightAverage(model, decay=settings.ema)
        self.state = load_trainer(run.trainer, model, self.optimizer, **self._also_kept)
        for module in (model, self.logit_scale):
            self.collectives.share_weights(module)
        if self.state.fell_back:
            self.settings = settings.fallen_back()
        self.log = EventLog(run.events if processes.is_first else None)
        self.pace = Pace()
        self.statistics = StepStatistics()
        self.collapse = CollapseWatch.for_epochs_of(
            self.n_steps, margin=settings.loss.margin_online
        )

    def fit(self) -> TrainerState:
        """Train the remaining epochs."""
        if self._is_finished() and not self._has_fallen():
            say(f"{self.label}: finished before, {count_of(self.state.epoch, 'epoch')}")
            self._log_early_end()
            return self.state
        if self.state != TrainerState():
            say(f"{self.label}: continues in epoch {self.state.epoch + 1}, step {self.state.step}")
        if self.processes.is_first:
            record_pattern(self.run.path, f"{self.run.board.name}/events.out.tfevents.*")
        choice = self._choose_threads()
        self.state = replace(self.state, threads=choice.threads)
        self.log.write(
            "start",
            epoch=self.state.epoch,
            step=self.state.step,
            threads=choice.threads,
            step_seconds=_rounded(choice),
        )
        total = self.settings.epochs * self.n_steps
        with (
            waiting_signals() as stop,
            step_board(self.run.board if self.processes.is_first else None) as self.board,
            progress_bar(self.label, total=total, unit="steps") as self.bar,
        ):
            self.bar(advance=self._steps_done)
            self._notify_start()
            while self._goes_on():
                if self._train_epoch(self.state.epoch, stop):
                    self._end_epoch(stop)
                elif not self._gave_up():
                    break
            self._log_early_end()
            self._warn_of_collapsed_end()
        if not self._is_finished():
            raise UserError(
                f"{self.label}: another process was asked to stop; the same command continues."
            )
        if self._gave_up():
            say(f"{self.label}: {self.state.waited} validations without a better one; ends")
        self._notify_end()
        return self.state

    def _notify_start(self) -> None:
        for callback in self.callbacks:
            callback.on_round_start(
                RoundStart(
                    round=self.which,
                    path=self.run.path,
                    settings=self.settings,
                    steps_per_epoch=self.n_steps,
                    steps_done=self._steps_done,
                )
            )

    def _notify_end(self) -> None:
        state = self.state
        for callback in self.callbacks:
            callback.on_round_end(
                RoundEnd(self.which, self.run.path, state.epoch, state.best_epoch, state.best)
            )

    @property
    def _ahead(self) -> int:
        """Batches that are read ahead: a few from disk or for a GPU, none that are in memory."""
        from_disk = isinstance(self.train.dataset.features, ImagesOnDemand)
        return _AHEAD if from_disk or self.train.device.type != "cpu" else 0

    def _choose_threads(self) -> ThreadChoice:
        """Take the user's number of threads, else that of the round so far, else measure."""
        if not self._may_choose_threads():
            return ThreadChoice(torch.get_num_threads())
        if self.state.threads:
            return ThreadChoice(self.state.threads)
        return self._measure_threads(self.settings.epochs - 1)

    def _may_choose_threads(self) -> bool:
        alone_on_cpu = self.processes.size == 1 and self.train.device.type == "cpu"
        return alone_on_cpu and not is_set_by_user()

    def _measure_threads(self, epoch: int) -> ThreadChoice:
        """Measure steps like those of an epoch, without an update; leave the model unchanged."""
        settings = self.settings
        pair_ids, loss = self._batches(epoch)[0], settings.loss_at(epoch)
        before = {name: value.clone() for name, value in self.model.state_dict().items()}

        def unit() -> None:
            batches = make_batches(
                self.train, pair_ids, settings=settings, sampler=self.sampler, epoch=epoch, step=0
            )
            self.optimizer.zero_grad(set_to_none=True)
            add_gradients(
                self.model,
                batches,
                loss,
                collectives=self.collectives,
                encode_at_once=settings.encode_at_once,
                logit_scale=self.logit_scale,
            )

        self.model.train()
        choice = choose_threads(unit, units=settings.epochs * self.n_steps - self._steps_done)
        self.model.load_state_dict(before)  # batch norm has counted
        self.optimizer.zero_grad(set_to_none=True)
        return choice

    def _watch_pace(self, seconds: float, epoch: int) -> None:
        """Measure again if steps have become slow, and change the number if another is faster."""
        if not self.pace.slows(seconds) or not self._may_choose_threads():
            return
        self.pace, choice = Pace(), self._measure_threads(epoch)
        if choice.beats(self.state.threads):
            say(
                f"{self.label}: steps have become slow; {count_of(choice.threads, 'thread')} "
                f"instead of {self.state.threads} from here on"
            )
            self.log.write(
                "threads",
                epoch=epoch + 1,
                step=self.state.step,
                threads=choice.threads,
                step_seconds=_rounded(choice),
            )
            self.state = replace(self.state, threads=choice.threads)

    def _log_early_end(self) -> None:
        """Log the early end once; a kill may have come between the last state and this line."""
        is_logged = any(line.get("event") == "stopped_early" for line in self.log.read())
        if self._gave_up() and not is_logged:
            self.log.write("stopped_early", epoch=self.state.epoch, waited=self.state.waited)

    def _warn_of_collapsed_end(self) -> None:
        """Repeat the warning at the end of a round, where it has not scrolled away."""
        if self._is_finished() and self.collapse.is_stuck:
            self.log.write("collapsed", epoch=self.state.epoch, step=self.n_steps)
            warn(
                f"{self.label}: ended on the plateau of the collapsed loss, with scores that are "
                "nearly alike; more epochs may leave it."
            )

    def _gave_up(self) -> bool:
        patience = self.settings.patience
        return patience is not None and self.state.waited >= patience

    def _is_finished(self) -> bool:
        return self._gave_up() or self.state.epoch >= self.settings.epochs

    def _end_epoch(self, stop: Stop) -> None:
        """Validate, save, and print the epoch."""
        epoch = self.state.epoch
        self._save()
        with stop.at_once():
            metrics, best = self._validate(epoch)
        self.state = replace(self.state, epoch=epoch + 1, step=0)
        if self.settings.fall_back_after is not None and epoch + 1 == self.settings.warmup_epochs:
            self._save(self.run.warm_up)
        self._save()
        epochs = f"{epoch + 1}/{self.settings.epochs}"
        note = self.settings.note_on(epoch, is_best=best)
        say_epoch(self.label, epochs, metrics.as_dict(), note=note)

    def _goes_on(self) -> bool:
        """Return whether steps are left, once a round that has fallen is back at its warm-up.

        A kill may come between the last state before the fall and this.
        """
        if self._has_fallen():
            self._fall_back()
        return not self._is_finished()

    def _has_fallen(self) -> bool:
        """Return whether no epoch after the warm-up is above it, and enough were given a chance."""
        state, settings = self.state, self.settings
        if settings.fall_back_after is None or not settings.warmup_epochs or state.fell_back:
            return False
        tried = (self._steps_done - settings.warmup_epochs * self.n_steps) / self.n_steps
        is_over = tried >= settings.fall_back_after or (tried > 0 and self._is_finished())
        return is_over and state.best_epoch <= settings.warmup_epochs

    def _fall_back(self) -> None:
        """Go back to the end of the warm-up, and go on with its loss as if there were no other."""
        warn(
            f"{self.label}: after the warm-up, dev is not above its {self.state.best:.1f}. The "
            "round goes back to the end of the warm-up and goes on with Eq. 1 (all negatives of "
            "the batch). The hardest negatives of these data may be right answers: docs/training.md"
            ", Right answers among the hardest negatives."
        )
        self.log.write("fell_back", epoch=self.state.epoch, best=self.state.best)
        threads, lost = self.state.threads, self._steps_done
        state = load_trainer(self.run.warm_up, self.model, self.optimizer, **self._also_kept)
        self.state = replace(state, threads=threads, fell_back=True)
        self.settings = self.settings.fallen_back()
        self.statistics, self.pace = StepStatistics(), Pace()
        self.bar(advance=self._steps_done - lost)
        self.processes.barrier()  # all have read the state
        self._save()

    def _batches(self, epoch: int) -> list[Ids]:
        """Draw the positive pairs of each step.

        An end of the epoch that is too short for two pairs in each part and process is left out.
        """
        pairs = self.train.dataset.positives.pairs
        if self.sampler is not None and self.settings.groups_at(epoch):
            from aoq.grouping import grouped_order  # compiles

            order = grouped_order(self.sampler, group_size=self.settings.group_size, epoch=epoch)
        else:
            order = epoch_order(len(pairs), seed=self.seed, epoch=epoch)
        size = self.settings.batch_size
        batches = [pairs[order[start : start + size]] for start in range(0, len(order), size)]
        smallest = 2 * self.settings.accumulate * self.processes.size
        return [batch for batch in batches if len(batch) >= smallest]

    def _train_epoch(self, epoch: int, stop: Stop) -> bool:
        """Take the remaining steps of an epoch; false if the round has to end before validation."""
        self._settle_lists(epoch, stop)
        self.model.train()
        if self.settings.loss_at(epoch) != self.settings.loss_at(max(0, epoch - 1)):
            self.pace = Pace()  # other steps, another pace
        batches = self._batches(epoch)
        title = f"{self.label}: epoch {epoch + 1}/{self.settings.epochs}"
        sums: defaultdict[str, float] = defaultdict(float)
        started, first = time.monotonic(), self.state.step
        self._validate_where_due(stop)  # a stop may have cut it off
        if self._gave_up():
            return False
        steps = range(first, len(batches))
        read = prefetch(partial(self._read, batches, epoch), steps, ahead=self._ahead)
        for step in steps:
            self.rates.set(epoch * self.n_steps + step)
            step_started = time.perf_counter()
            with using_threads(self.state.threads):
                terms = self._step(next(read), batches[step], epoch=epoch, step=step)
            step_seconds = time.perf_counter() - step_started
            for name, value in terms.items():
                sums[name] += value
            self.state = replace(self.state, step=step + 1)
            self._notify_step(terms)
            self._watch_pace(step_seconds, epoch)
            self.bar(title=title, note=_described(terms))
            self._between_steps(stop)
            if self._gave_up() or self.collectives.any(stop.is_asked):
                self._save()
                self.processes.barrier()  # torchrun terminates the others when one leaves
                return False
        n_steps = len(batches) - first  # none where a stop came between them and the validation
        self.log.write(
            "epoch",
            epoch=epoch + 1,
            learning_rate=self.rates.at((epoch + 1) * self.n_steps - 1),
            seconds=round(time.monotonic() - started, 2),
            steps=n_steps,
            loss={name: round(value / n_steps, 5) for name, value in sums.items()},
        )
        return True

    def _settle_lists(self, epoch: int, stop: Stop) -> None:
        """Draw from the lists of an epoch; mine them if they are to be mined and are not yet.

        The state of the round is saved: a stop does not wait for the mining.
        """
        if self.remining is None or self.sampler is None or self.state.fell_back:
            return
        if self.remining.is_missing(epoch):
            if self.state.step:
                raise UserError(
                    f"{self.remining.file_of(epoch)} is gone, and epoch {epoch + 1} began with it; "
                    "restore it, or start anew with --force."
                )
            sampler = self.remining.read(epoch - 1, self.sampler)
            with stop.at_once(), self._validated_weights():
                mined = self.remining.mine(self.model, epoch, sampler)
            if self.processes.is_first:
                say(f"{self.label}: {describe(mined)}")
            self.log.write("mined", **asdict(mined))
            for callback in self.callbacks:
                callback.on_mining(mined)
        self.sampler = self.remining.read(epoch, self.sampler)

    @contextmanager
    def _validated_weights(self) -> Iterator[None]:
        """Put what is validated into the model of every process: the state of the first.

        Weights are equal without it, but statistics of batch norms are those of each share.
        """
        if self.settings.ema is None and self.collectives.is_alone:
            yield
            return
        own = {name: value.clone() for name, value in self.model.state_dict().items()}
        with self.average.in_model() if self.average is not None else nullcontext():
            self.collectives.share_weights(self.model)
            yield
        if not self.processes.is_first:
            self.model.load_state_dict(own)

    def _notify_step(self, terms: dict[str, float]) -> None:
        for callback in self.callbacks:
            callback.on_step(
                StepEnd(
                    round=self.which,
                    epoch=self.state.epoch + 1,
                    step=self._steps_done,
                    learning_rate=self.rates.at(self._steps_done - 1),
                    terms=terms,
                )
            )

    def _read(self, batches: list[Ids], epoch: int, step: int) -> list[StepBatch]:
        """Read what a step learns from."""
        return make_batches(
            self.train,
            batches[step],
            settings=self.settings,
            sampler=self.sampler,
            epoch=epoch,
            step=step,
            seed=self.seed,
            processes=self.processes,
        )

    def _step(
        self, batches: list[StepBatch], pair_ids: Ids, *, epoch: int, step: int
    ) -> dict[str, float]:
        """Update the weights; return the terms of the loss."""
        seed_torch(self.seed, epoch=epoch + 1, step=step, process_rank=self.processes.rank)
        try:
            terms, outcomes = update(
                self.model,
                self.optimizer,
                batches,
                settings=self.settings,
                epoch=epoch,
                collectives=self.collectives,
                logit_scale=self.logit_scale,
            )
        except NotFiniteError as error:
            raise self._not_finite(error, pair_ids, epoch=epoch, step=step) from None
        if self.average is not None:
            self.average.add()
        self.statistics.add(terms, outcomes)
        if self.collapse.sees(outcomes):
            self.log.write("collapsed", epoch=epoch + 1, step=step + 1)
            warn(f"{self.label}: {COLLAPSED}")
        return terms

    def _not_finite(
        self, error: NotFiniteError, pair_ids: Ids, *, epoch: int, step: int
    ) -> UserError:
        """Name the step and its pairs, which are also kept in the log."""
        dataset = self.train.dataset
        images = [dataset.image_ids[image] for image in pair_ids[:, 0]]
        captions = [dataset.caption_ids[text] for text in pair_ids[:, 1]]
        self.log.write(
            "not_finite", epoch=epoch + 1, step=step + 1, images=images, captions=captions
        )
        return UserError(
            f"epoch {epoch + 1}, step {step + 1}, with the images {', '.join(images[:3])}, ... "
            f"(all in {self.run.events}): {error}"
        )

    @property
    def _steps_done(self) -> int:
        """Steps of the whole round."""
        return self.state.epoch * self.n_steps + self.state.step

    def _between_steps(self, stop: Stop) -> None:
        """Log, save and validate if due; the end of an epoch does all three."""
        is_last = self.state.step == self.n_steps
        if self._steps_done % self.settings.log_every == 0 or is_last:
            self._log_steps(self._steps_done)
        if self._steps_done % self.settings.checkpoint_every == 0 and not is_last:
            self._save()
        self._validate_where_due(stop)

    def _validate_where_due(self, stop: Stop) -> None:
        """Validate within an epoch, once; a stop does not wait for it: all is saved before."""
        every, steps = self.settings.validate_every, self._steps_done
        within = 0 < self.state.step < self.n_steps
        if every is None or steps % every or steps == self.state.validated or not within:
            return
        self._save()
        with stop.at_once():
            self._validate(self.state.epoch)
        self.state = replace(self.state, validated=steps)
        self._save()

    def _log_steps(self, steps: int) -> None:
        """Log the steps since the last such line."""
        summary = self.statistics.summary() | self.logit_scale.values()
        self.log.write("steps", epoch=self.state.epoch + 1, step=self.state.step, **summary)
        self.board.write(steps, summary, self.statistics.values())
        self.statistics = StepStatistics()

    def _validate(self, epoch: int) -> tuple[Metrics, bool]:
        """Judge the model on dev, and keep its weights if they are the best so far.

        Where there is an average of the weights, it stands in for them. Warm-up epochs never
        count as best, their weights are kept only until a later epoch; unless the round may go
        back to them.
        """
        with self.average.in_model() if self.average is not None else nullcontext():
            metrics, best = self._judge_weights(epoch)
        figures = metrics.as_dict()
        self.log.write("validation", epoch=epoch + 1, step=self.state.step, best=best, **figures)
        self.board.write_metrics(self._steps_done, figures)
        for callback in self.callbacks:
            callback.on_validation(
                Validation(self.which, epoch + 1, self._steps_done, metrics, is_best=best)
            )
        return metrics, best

    def _judge_weights(self, epoch: int) -> tuple[Metrics, bool]:
        judged = None
        if self.processes.is_first:
            judged = evaluate(self.model, self.dev, description=f"{self.label}: validate")
        metrics = self.collectives.from_first(judged)
        score = metrics.rsum if self.settings.select_by == "rsum" else metrics.r1_r5
        warming_up = self.settings.warming_up(epoch) and self.settings.fall_back_after is None
        if warming_up:
            score = -math.inf
        best = score > self.state.best or self.state.best_epoch < 0
        waited = 0 if best or warming_up else self.state.waited + 1
        self.state = replace(self.state, waited=waited)
        if best:
            self.state = replace(self.state, best=score, best_epoch=epoch + 1)
            if self.processes.is_first:
                save_weights(
                    self.run.model,
                    self.model,
                    feature_width=self.feature_width,
                    learned=self.logit_scale.values(),
                )
        return metrics, best

    def _save(self, path: Path | None = None) -> None:
        if self.processes.is_first:
            save_trainer(
                path or self.run.trainer, self.model, self.optimizer, self.state, **self._also_kept
            )

    @property
    def _also_kept(self) -> dict[str, HasState]:
        """What else the round continues, by its name in the trainer's state."""
        kept: dict[str, HasState | None] = {"average": self.average, "logit_scale": None}
        if self.logit_scale.values():
            kept["logit_scale"] = self.logit_scale
        return {name: part for name, part in kept.items() if part is not None}


def _described(terms: dict[str, float]) -> str:
    """Format the loss and its terms in one line, both anchors of a kind added up."""
    kinds: defaultdict[str, float] = defaultdict(float)
    for name, value in terms.items():
        kinds[name.removeprefix("i2t_").removeprefix("t2i_")] += value
    parts = ", ".join(f"{kind} {value:.1f}" for kind, value in kinds.items())
    return f"loss {sum(terms.values()):.1f} ({parts})"


def _rounded(choice: ThreadChoice) -> dict[str, float]:
    """Return the seconds of a step by the number of threads, for the log."""
    return {str(number): round(value, 4) for number, value in choice.seconds.items()}
