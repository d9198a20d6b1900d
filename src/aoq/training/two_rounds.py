"""The paper's training: round one, mining with its model, round two from scratch.

Every stage writes its own folder of the run and is skipped when it is finished, so the same
command starts a run, continues it after a kill, and does nothing to a complete one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from aoq.config import Recipe, RoundConfig
from aoq.data.collate import Collator
from aoq.data.dataset import splits_of
from aoq.errors import UserError
from aoq.evaluation.protocols import first_texts
from aoq.mining.candidates import CandidateLists
from aoq.models import build_model
from aoq.randomness import seed_torch
from aoq.recipes import load_recipe, save_recipe
from aoq.sampling import OfflineSampler
from aoq.storage import RunDirectory, hash_file, is_vacant, remove_leftovers, write_json
from aoq.training.checkpoint import TrainerState
from aoq.training.inputs import TrainingData, open_training_data
from aoq.training.round import Round
from aoq.training.trained import judge_on_test, mine_run

RoundName = Literal["one", "two"]
ROUND_ONE, ROUND_TWO = "round-one", "round-two"


def prepare_run(
    path: Path, recipe: Recipe, *, force: bool = False, reads: Sequence[Path] = ()
) -> RunDirectory:
    """A run directory for `recipe`: a fresh one, or one that was started with the same recipe.

    With `force` a run that is there goes first, unless it holds something that this one `reads`.
    """
    run = RunDirectory(path)
    if force and run.config.is_file():
        for needed in reads:
            if needed.absolute().is_relative_to(path.absolute()):
                raise UserError(f"{path} holds {needed}, which this run reads; choose another out.")
        shutil.rmtree(path)
    if run.config.is_file():
        if load_recipe(run.config) != recipe:
            raise UserError(
                f"{path} was started with other settings (see {run.config}); "
                "choose another folder, or add --force to start anew."
            )
    elif is_vacant(path):
        path.mkdir(parents=True, exist_ok=True)
        save_recipe(recipe, run.config)
    else:
        raise UserError(f"{path} exists and is no run; choose another folder.")
    remove_leftovers(path)
    return run


def train_round(
    path: Path,
    recipe: Recipe,
    data: TrainingData,
    *,
    which: RoundName,
    candidates: Path | None = None,
    label: str | None = None,
    force: bool = False,
) -> TrainerState:
    """Train one round into `path`, or what is left of it."""
    recipe = recipe.resolved()
    settings = recipe.round_one if which == "one" else recipe.round_two
    sampler = _make_sampler(recipe, settings, data, candidates)
    reads = [Path(recipe.data), *([candidates] if candidates is not None else [])]
    run = prepare_run(path, recipe, force=force, reads=reads)
    _settle_origin(run, data, which=which, lists=candidates if sampler is not None else None)
    seed_torch(recipe.seed)
    model = build_model(
        recipe.model, feature_width=data.feature_width, vocabulary_size=len(data.vocabulary)
    ).to(data.train.device)
    dev = data.dev
    if settings.validation_texts is not None:
        subset = first_texts(dev.dataset, settings.validation_texts)
        dev = Collator(subset, data.vocabulary, device=dev.device)
    training = Round(
        run,
        settings,
        model=model,
        train=data.train,
        dev=dev,
        sampler=sampler,
        seed=recipe.seed,
        label=label or f"round {which} ({settings.loss.name})",
    )
    training.log.write("start", epoch=training.state.epoch, step=training.state.step)
    return training.fit()


def _settle_origin(
    run: RunDirectory, data: TrainingData, *, which: RoundName, lists: Path | None
) -> None:
    """Note what a round starts from; refuse to continue one that started from something else."""
    origin = {
        "round": which,
        "data": data.train.dataset.fingerprint,
        "dev": data.dev.dataset.fingerprint,
        "candidates": None if lists is None else hash_file(lists),
    }
    if not run.origin.is_file():
        data.vocabulary.save(run.vocabulary)
        write_json(run.origin, origin)
        return
    stored = json.loads(run.origin.read_text(encoding="utf-8"))
    other = [name for name, value in origin.items() if stored.get(name) != value]
    if other:
        raise UserError(
            f"{run.path} was started with another {' and another '.join(other)}; "
            "choose another folder, or add --force to start anew."
        )


def _make_sampler(
    recipe: Recipe, settings: RoundConfig, data: TrainingData, candidates: Path | None
) -> OfflineSampler | None:
    if not settings.loss.needs_candidates:
        return None
    if candidates is None:
        raise UserError(
            f"the loss {settings.loss.name} draws offline negatives; mine them with `aoq mine` "
            "and name the file with --candidates."
        )
    lists = CandidateLists.load(candidates)
    lists.require_fit(data.train.dataset, source=candidates)
    positives = data.train.dataset.positives
    return OfflineSampler(lists, positives, config=recipe.sampling, seed=recipe.seed)


def round_one_and_lists(path: Path, recipe: Recipe, data: TrainingData) -> Path:
    """Train round one of a run and mine with its model, or what is left; the lists' place."""
    train_round(path / ROUND_ONE, recipe, data, which="one")
    candidates = RunDirectory(path).candidates
    if not candidates.exists():
        mine_run(path / ROUND_ONE, candidates)
    return candidates


def run_recipe(path: Path, recipe: Recipe, *, force: bool = False) -> dict[str, Any]:
    """Round one, mining, round two and the test result, or what is left of them."""
    recipe = recipe.resolved()
    data = open_training_data(recipe)
    if "test" not in splits_of(Path(recipe.data)):
        raise UserError(f"{recipe.data} has no split 'test' to judge on; use `aoq train` instead.")
    prepare_run(path, recipe, force=force, reads=[Path(recipe.data)])
    candidates = round_one_and_lists(path, recipe, data)
    train_round(path / ROUND_TWO, recipe, data, which="two", candidates=candidates)
    return judge_on_test(path / ROUND_TWO)
