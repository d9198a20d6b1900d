"""The paper's training: round one, mining with its model, round two from scratch.

Every stage writes its own folder of the run and is skipped when it is finished, so the same
command starts a run, continues it after a kill, and does nothing to a complete one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from aoq.config import Recipe, RoundConfig
from aoq.data.check import check_dataset
from aoq.data.collate import Collator
from aoq.data.dataset import open_dataset, training_captions
from aoq.data.vocabulary import Vocabulary
from aoq.errors import UserError
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.protocols import evaluate, first_texts
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.offline import mine
from aoq.models import build_model
from aoq.progress import EventLog, say, warn
from aoq.randomness import seed_torch
from aoq.recipes import load_recipe, save_recipe
from aoq.sampling import OfflineSampler
from aoq.scoring.blocks import encode_dataset
from aoq.storage import (
    EVENTS,
    RunDirectory,
    append_json_line,
    hash_file,
    read_json_lines,
    remove_leftovers,
)
from aoq.training.checkpoint import TrainerState, load_run
from aoq.training.round import Round

RoundName = Literal["one", "two"]
ROUND_ONE, ROUND_TWO = "round-one", "round-two"


@dataclass(frozen=True)
class TrainingData:
    """The splits and the vocabulary that every round of a run reads."""

    train: Collator
    dev: Collator
    vocabulary: Vocabulary

    @property
    def feature_width(self) -> int:
        return int(self.train.dataset.features.shape[2])


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def open_training_data(recipe: Recipe) -> TrainingData:
    """Check the data set and open what training reads; refuses bad data before any step."""
    if not recipe.data:
        raise UserError("no data set is named; add --data FOLDER (see `aoq data build --help`).")
    folder, device = Path(recipe.data), default_device()
    report = check_dataset(folder)
    report.raise_for_errors()
    for warning in report.warnings:
        warn(warning)
    vocabulary = Vocabulary.build(training_captions(folder), min_count=recipe.min_word_count)
    return TrainingData(
        train=_open_split(folder, "train", vocabulary, device=device),
        dev=_open_split(folder, "dev", vocabulary, device=device),
        vocabulary=vocabulary,
    )


def _open_split(folder: Path, split: str, vocabulary: Vocabulary, *, device: str) -> Collator:
    """One split as batches; says so where captions hold no word that the model will know."""
    collator = Collator(open_dataset(folder, split), vocabulary, device=device)
    unknown = collator.unknown_texts()
    if len(unknown):
        example = collator.dataset.captions[unknown[0]]
        warn(
            f"{folder}: {len(unknown):,} {split} captions are made of unknown words only, such as "
            f"{example!r}."
        )
    return collator


def prepare_run(path: Path, recipe: Recipe) -> RunDirectory:
    """A run directory for `recipe`: a fresh one, or one that was started with the same recipe."""
    run = RunDirectory(path)
    if run.config.is_file():
        if load_recipe(run.config) != recipe:
            raise UserError(
                f"{path} was started with other settings (see {run.config}); "
                "choose another folder, or add --force to start anew."
            )
    elif path.exists() and any(path.iterdir()):
        raise UserError(f"{path} exists and is no run; choose another folder, or add --force.")
    else:
        path.mkdir(parents=True, exist_ok=True)
        save_recipe(recipe, run.config)
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
) -> TrainerState:
    """Train one round into `path`, or what is left of it."""
    recipe = recipe.resolved()
    settings = recipe.round_one if which == "one" else recipe.round_two
    sampler = _make_sampler(recipe, settings, data, candidates)
    run = prepare_run(path, recipe)
    data.vocabulary.save(run.vocabulary)
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
    training.log.write(
        "start", round=which, data=data.train.dataset.fingerprint, state=vars(training.state)
    )
    return training.fit()


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


def mine_run(run: Path, out: Path, *, data: Path | None = None) -> CandidateLists:
    """Rank the training set with a trained model and store the lists."""
    trained = load_run(run, device=default_device())
    dataset = open_dataset(data or Path(trained.recipe.data), "train")
    trained.require_width(dataset.features.shape[2], source=dataset.name)
    collator = Collator(dataset, trained.vocabulary, device=default_device())
    started = time.monotonic()
    lists = mine(
        trained.model,
        encode_dataset(trained.model, collator, description="encode the training set"),
        dataset.positives,
        config=trained.recipe.mining,
        provenance=Provenance(teacher=hash_file(RunDirectory(run).model), data=dataset.fingerprint),
    )
    lists.save(out)
    seconds = time.monotonic() - started
    EventLog(out.parent / EVENTS).write(
        "mined", seconds=round(seconds, 2), i2t=lists.i2t.shape, t2i=lists.t2i.shape
    )
    say(
        f"mined {lists.depth_texts} texts for each of {len(lists.i2t):,} images and "
        f"{lists.depth_images} images for each of {len(lists.t2i):,} texts in {seconds:.1f} s"
    )
    return lists


def evaluate_run(
    run: Path, *, split: str = "test", data: Path | None = None, block_size: int = 1024
) -> Metrics:
    """Judge the best model of a run on one split, and note the result in the run."""
    trained = load_run(run, device=default_device())
    dataset = open_dataset(data or Path(trained.recipe.data), split)
    trained.require_width(dataset.features.shape[2], source=dataset.name)
    collator = Collator(dataset, trained.vocabulary, device=default_device())
    started = time.monotonic()
    metrics = evaluate(trained.model, collator, block_size=block_size)
    directory = RunDirectory(run)
    append_json_line(
        directory.results, {"split": split, "data": dataset.fingerprint, **metrics.as_dict()}
    )
    seconds = round(time.monotonic() - started, 2)
    EventLog(directory.events).write("evaluated", split=split, seconds=seconds)
    return metrics


def stored_result(run: Path, *, split: str) -> dict[str, Any] | None:
    """The last result of a run on a split, if there is one."""
    lines = read_json_lines(RunDirectory(run).results)
    found = [line for line in lines if line["split"] == split]
    return found[-1] if found else None


def run_recipe(path: Path, recipe: Recipe) -> dict[str, Any]:
    """Round one, mining, round two and the test result, or what is left of them."""
    data = open_training_data(recipe)
    run = prepare_run(path, recipe.resolved())
    train_round(path / ROUND_ONE, recipe, data, which="one")
    if not run.candidates.exists():
        mine_run(path / ROUND_ONE, run.candidates)
    train_round(path / ROUND_TWO, recipe, data, which="two", candidates=run.candidates)
    if stored_result(path / ROUND_TWO, split="test") is None:
        evaluate_run(path / ROUND_TWO)
    result = stored_result(path / ROUND_TWO, split="test")
    assert result is not None
    return result
