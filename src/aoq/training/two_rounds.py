"""The paper's training: round one, mining with its model, round two from scratch.

Every stage writes its own folder of the run and is skipped when it is finished, so the same
command starts a run, continues it after a kill, and does nothing to a complete one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from aoq.config import Recipe, RoundConfig, RoundName
from aoq.data.inputs import Inputs
from aoq.data.vocabulary import Vocabulary
from aoq.disk import require_writable
from aoq.distributed import ALONE, Processes, alone_in
from aoq.errors import UserError
from aoq.evaluation.protocols import first_texts
from aoq.folders import check_output_folder
from aoq.manifest import create_manifest
from aoq.mining.candidates import CandidateLists
from aoq.randomness import seed_torch
from aoq.recipes import load_recipe, save_recipe, settings_that_matter
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import (
    MakeModel,
    TrainerState,
    hash_model,
    load_own_model,
    load_run,
    load_weights,
)
from aoq.runs.custom_model import fingerprint_model, require_same_model
from aoq.runs.directory import ROUND_ONE, ROUND_TWO, ROUNDS, RunDirectory
from aoq.runs.encodings import ScoredSplit
from aoq.runs.judge import judge_once, result_on
from aoq.runs.mine import mine_split
from aoq.sampling import OfflineSampler
from aoq.scoring.protocol import FitsInClosedForm, TrainableModel
from aoq.storage import hash_file, is_vacant, locked, read_json, remove_folder, write_json
from aoq.training.callbacks import Callback
from aoq.training.closed_form import ClosedFormRound
from aoq.training.inputs import TrainingData, open_training_data
from aoq.training.optimizers import MakeOptimizer
from aoq.training.preflight import (
    require_mining_memory,
    require_rounds_fit,
    require_settings_fit,
)
from aoq.training.round import Round


def prepare_run(
    path: Path,
    recipe: Recipe,
    *,
    is_round: bool = False,
    force: bool = False,
    reads: Sequence[Path] = (),
) -> RunDirectory:
    """Make a run directory for `recipe`, or open one that was started with the same recipe.

    With `force` an existing run is removed first, unless it holds something that this one `reads`.
    A whole recipe cannot change between mined and given lists, since its stages depend on it.
    """
    run = RunDirectory(path)
    if force and not is_vacant(path):
        check_output_folder(path, what="run", force=True, sources=reads)
        with locked(path):
            remove_folder(path)
    if run.config.is_file():
        _require_same_kind(run, is_round=is_round)
        begun = load_recipe(run.config)
        started, wanted = settings_that_matter(begun), settings_that_matter(recipe)
        other = [name for name in wanted if started[name] != wanted[name]]
        if not is_round and bool(begun.candidates) != bool(recipe.candidates):
            other.append("candidates")
        if other:
            raise UserError(
                f"{path} was started with other settings ({', '.join(other)}; see {run.config}); "
                "choose another folder, or add --force to start anew."
            )
    elif is_vacant(path):
        require_writable(path)
        path.mkdir(parents=True, exist_ok=True)
        create_manifest(path, "run")
        save_recipe(recipe, run.config)
    else:
        check_output_folder(path, what="run", force=False)
    return run


def _require_same_kind(run: RunDirectory, *, is_round: bool) -> None:
    """Refuse to mix a round and a whole recipe: opening such a folder would be ambiguous."""
    remedy = "choose another folder, or add --force to start anew."
    has_rounds = any((run.path / name).exists() for name in ROUNDS.values())
    if run.origin.is_file() and not is_round:
        raise UserError(f"{run.path} holds a single round, not a run of a whole recipe; {remedy}")
    if has_rounds and not run.origin.is_file() and is_round:
        raise UserError(f"{run.path} holds a run of a whole recipe, not a single round; {remedy}")


def _keep_recipe(run: RunDirectory, recipe: Recipe) -> None:
    """Store settings that may change, such as the place of the data, for later commands."""
    if load_recipe(run.config) != recipe:
        save_recipe(recipe, run.config)


def train_round(
    path: Path | str,
    recipe: Recipe,
    data: TrainingData,
    *,
    which: RoundName,
    candidates: Path | str | None = None,
    start: Path | str | None = None,
    make_model: MakeModel | None = None,
    make_optimizer: MakeOptimizer | None = None,
    callbacks: Sequence[Callback] = (),
    label: str | None = None,
    force: bool = False,
    processes: Processes = ALONE,
) -> TrainerState:
    """Train one round into `path`, or the rest of it.

    Offline negatives come from `candidates`, or from the lists that the recipe names. `start` is
    the run whose weights the round starts from, unless it starts from scratch. `make_optimizer`
    and `callbacks` are described at `run_recipe`. Several processes may call this.
    """
    path, recipe = Path(path), data.settle(recipe.resolved())
    settings = recipe.settings_of(which)
    named = candidates or recipe.candidates
    lists = Path(named) if named and settings.needs_candidates else None
    sampler = _make_sampler(recipe, settings, data, lists)
    weights = _weights_to_start_from(settings, None if start is None else Path(start))
    build = make_model or data.builder(recipe.model)
    run = RunDirectory(path)
    seed_torch(recipe.seed)
    model = build()
    require_settings_fit(model, settings)
    own_model = None if make_model is None else model

    def prepare() -> None:
        reads = (file for file in (*recipe.files, lists, weights) if file is not None)
        prepare_run(path, recipe, is_round=True, force=force, reads=list(reads))
        _settle_origin(run, data, own_model, which=which, lists=lists, weights=weights)
        _keep_recipe(run, recipe)

    processes.first_does(prepare)
    model = model.to(data.train.device)
    if weights is not None:
        load_weights(weights, model)
    dev = data.dev
    if settings.validation_texts is not None:
        dev = dev.with_dataset(first_texts(dev.dataset, settings.validation_texts))
    with alone_in(path, processes):
        kind = ClosedFormRound if isinstance(model, FitsInClosedForm) else Round
        state = kind(
            run,
            settings,
            model=model,
            train=data.train,
            dev=dev,
            sampler=sampler,
            seed=recipe.seed,
            label=label or f"round {which} ({settings.loss.name})",
            which=which,
            feature_width=data.feature_width,
            mining=recipe.mining,
            make_optimizer=make_optimizer,
            callbacks=callbacks,
            processes=processes,
        ).fit()
    processes.barrier()  # all can read what was written
    return state


def _weights_to_start_from(settings: RoundConfig, start: Path | None) -> Path | None:
    if settings.start_from == "scratch":
        return None
    if start is None:
        raise UserError(
            "this round starts from round one's weights (start_from); use `aoq run`, or name the "
            "run that has them with --start."
        )
    return RunDirectory(best_round(start).path).require_trained().model


def _settle_origin(
    run: RunDirectory,
    data: TrainingData,
    own_model: TrainableModel | None,
    *,
    which: RoundName,
    lists: Path | None,
    weights: Path | None,
) -> None:
    """Store what a round starts from; refuse to continue one that started from something else."""
    origin = {
        "round": which,
        "data": data.train.dataset.fingerprint,
        "dev": data.dev.dataset.fingerprint,
        "candidates": None if lists is None else hash_file(lists),
        "weights": None if weights is None else hash_file(weights),
    }
    if not run.origin.is_file():
        if data.vocabulary is not None:
            data.vocabulary.save(run.vocabulary)
        if data.inputs != Inputs():
            write_json(run.inputs, data.inputs.as_dict())
        own = {} if own_model is None else {"model": fingerprint_model(own_model)}
        write_json(run.origin, origin | own)
        return
    stored = read_json(run.origin)
    other = [name for name, value in origin.items() if stored.get(name) != value]
    if run.inputs.is_file() and Inputs.from_dict(read_json(run.inputs)) != data.inputs:
        other.append("pretrained tower")
    if data.vocabulary is not None and data.vocabulary != Vocabulary.load(run.vocabulary):
        other.append("vocabulary")
    if other:
        raise UserError(
            f"{run.path} was started with another {' and another '.join(other)}; "
            "choose another folder, or add --force to start anew."
        )
    if own_model is not None:
        require_same_model(run, own_model)


def _make_sampler(
    recipe: Recipe, settings: RoundConfig, data: TrainingData, candidates: Path | None
) -> OfflineSampler | None:
    if not settings.needs_candidates:
        return None
    if candidates is None:
        raise UserError(
            f"{settings.drawn_from_lists} are drawn from mined lists; mine them with `aoq mine` "
            "and name the file with --candidates."
        )
    lists = CandidateLists.load(candidates).require_fit(data.train.dataset, source=candidates)
    positives = data.train.dataset.positives
    sampler = OfflineSampler(lists, positives, config=recipe.sampling, seed=recipe.seed)
    if settings.loss.reads_matches:
        sampler.require_matches("loss.weigh_matches")
    return sampler


@dataclass(frozen=True)
class TwoRounds:
    """The stages of a recipe in a folder.

    A finished stage is skipped, one that was begun is continued.
    """

    path: Path
    recipe: Recipe
    data: TrainingData
    make_model: MakeModel | None = None
    make_optimizer: MakeOptimizer | None = None
    callbacks: Sequence[Callback] = ()
    processes: Processes = ALONE

    @property
    def round_one(self) -> Path:
        return self.path / ROUND_ONE

    @property
    def last_round(self) -> Path:
        """Folder of the model that the recipe is about."""
        return self.path / ROUNDS[self.recipe.last_round]

    def train_round_one(self) -> None:
        train_round(
            self.round_one,
            self.recipe,
            self.data,
            which="one",
            make_model=self.make_model,
            make_optimizer=self.make_optimizer,
            callbacks=self.callbacks,
            processes=self.processes,
        )

    def mine(self) -> Path:
        """Rank the training set with round one's model; return the path of the lists."""
        lists = RunDirectory(self.path).candidates
        is_there = lists.exists()
        self.processes.barrier()
        if not is_there:
            teacher = ScoredSplit.encode(
                self.round_one,
                self.load(self.round_one),
                self.data.train,
                model_hash=hash_model(self.round_one),
                on_disk=self.processes,
            )
            mine_split(teacher, lists, config=self.recipe.mining, processes=self.processes)
        return lists

    def train_round_two(self, candidates: Path | None) -> None:
        train_round(
            self.path / ROUND_TWO,
            self.recipe,
            self.data,
            which="two",
            candidates=candidates,
            start=self.round_one,
            make_model=self.make_model,
            make_optimizer=self.make_optimizer,
            callbacks=self.callbacks,
            processes=self.processes,
        )

    def judge(self) -> dict[str, Any]:
        """Judge the last round on test, or on dev if the data set has no test split."""
        split, run = self.data.test or self.data.dev, self.last_round
        if self.processes.is_first:
            judge_once(run, split, lambda: self.load(run))
        self.processes.barrier()
        result = result_on(run, split.dataset)
        assert result is not None
        return result

    def load(self, run: Path) -> TrainableModel:
        """Load the best model of a round."""
        device = self.data.train.device
        if self.make_model is not None:
            return load_own_model(run, self.make_model, device=device)
        return load_run(run, device=device).model


def run_recipe(
    path: Path | str,
    recipe: Recipe,
    *,
    data: TrainingData | None = None,
    make_model: MakeModel | None = None,
    make_optimizer: MakeOptimizer | None = None,
    callbacks: Sequence[Callback] = (),
    force: bool = False,
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """Train round one, mine, train round two and judge on test, or do what is left of it.

    `make_model` builds a model of your own, once a round, and `data` may hold anything that it
    reads. `make_optimizer` replaces the optimizer of the settings; the schedule still scales the
    learning rate of each of its groups. `callbacks` receive steps and validations. Stages that
    the recipe does not need are left out: round one if it names a teacher's lists, round two if it
    is an online baseline. Returns the result of the last round.
    """
    path = Path(path)
    if make_model is not None:
        recipe = replace(recipe, model=replace(recipe.model, name="own"))
    recipe = recipe.resolved()
    data = data or open_training_data(recipe, processes=processes)
    recipe = data.settle(recipe)
    builder = make_model or data.builder(recipe.model)
    # Refuse what can be refused before anything is removed.
    require_rounds_fit(recipe, builder)
    if force or not RunDirectory(path).candidates.is_file():
        require_mining_memory(recipe, data, builder, processes=processes)
    if recipe.candidates:
        lists = Path(recipe.candidates)
        CandidateLists.load(lists).require_fit(data.train.dataset, source=lists)
    processes.first_does(partial(prepare_run, path, recipe, force=force, reads=recipe.files))
    stages = TwoRounds(
        path,
        recipe,
        data,
        make_model=make_model,
        make_optimizer=make_optimizer,
        callbacks=callbacks,
        processes=processes,
    )
    with alone_in(path, processes):
        if recipe.needs_round_one:
            stages.train_round_one()
        if recipe.rounds == "both":
            stages.train_round_two(stages.mine() if recipe.mines else None)
        if processes.is_first:  # the rounds have checked that the data are the same
            _keep_recipe(RunDirectory(path), recipe)
        return stages.judge()
