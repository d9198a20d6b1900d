"""The paper's training: round one, mining with its model, round two from scratch.

Every stage writes its own folder of the run and is skipped when it is finished, so the same
command starts a run, continues it after a kill, and does nothing to a complete one.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from aoq.config import BLOCK_SIZE, MiningConfig, Recipe, RoundConfig
from aoq.data.check import check_dataset
from aoq.data.collate import Collator
from aoq.data.dataset import open_dataset, splits_of, training_captions
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
    RunDirectory,
    append_json_line,
    hash_file,
    is_vacant,
    read_json_lines,
    remove_leftovers,
    write_json,
)
from aoq.training.checkpoint import TrainedRun, TrainerState, load_run
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


def open_training_data(recipe: Recipe, *, checked: bool = False) -> TrainingData:
    """Check the data set, unless that has been done, and open what training reads."""
    if not recipe.data:
        raise UserError("no data set is named; add --data FOLDER (see `aoq data build --help`).")
    folder, device = Path(recipe.data), default_device()
    if not checked:
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


def _open_trained(run: Path, *, split: str, data: Path | None) -> tuple[TrainedRun, Collator]:
    """A trained model and the split it is to read, its own data set's unless told otherwise."""
    trained = load_run(run, device=default_device())
    dataset = open_dataset(data or Path(trained.recipe.data), split)
    trained.require_width(dataset.features.shape[2], source=dataset.name)
    return trained, Collator(dataset, trained.vocabulary, device=default_device())


def mine_run(
    run: Path, out: Path, *, data: Path | None = None, config: MiningConfig | None = None
) -> CandidateLists:
    """Rank the training set with a trained model and store the lists."""
    trained, collator = _open_trained(run, split="train", data=data)
    started = time.monotonic()
    lists = mine(
        trained.model,
        encode_dataset(trained.model, collator, description="encode the training set"),
        collator.dataset.positives,
        config=config or trained.recipe.mining,
        provenance=Provenance(
            teacher=hash_file(RunDirectory(run).model), data=collator.dataset.fingerprint
        ),
    )
    lists.save(out)
    seconds = time.monotonic() - started
    EventLog(RunDirectory(run).events).write(
        "mined", seconds=round(seconds, 2), i2t=lists.i2t.shape, t2i=lists.t2i.shape
    )
    say(
        f"mined {lists.depth_texts} texts for each of {len(lists.i2t):,} images and "
        f"{lists.depth_images} images for each of {len(lists.t2i):,} texts in {seconds:.1f} s"
    )
    return lists


def evaluate_run(
    run: Path, *, split: str = "test", data: Path | None = None, block_size: int = BLOCK_SIZE
) -> Metrics:
    """Judge the best model of a run on one split, and note the result in the run."""
    trained, collator = _open_trained(run, split=split, data=data)
    started = time.monotonic()
    metrics = evaluate(trained.model, collator, block_size=block_size)
    directory = RunDirectory(run)
    append_json_line(
        directory.results,
        {
            "split": split,
            "model": hash_file(directory.model),
            "data": collator.dataset.fingerprint,
            **metrics.as_dict(),
        },
    )
    seconds = round(time.monotonic() - started, 2)
    EventLog(directory.events).write("evaluated", split=split, seconds=seconds)
    return metrics


def stored_result(run: Path, *, split: str) -> dict[str, Any] | None:
    """The result of a run's model, as it is, on its own data set, if there is one."""
    directory = RunDirectory(run).require_trained()
    dataset = open_dataset(Path(load_recipe(directory.config).data), split)
    wanted = (split, hash_file(directory.model), dataset.fingerprint)
    lines = read_json_lines(directory.results)
    fitting = [line for line in lines if (line["split"], line["model"], line["data"]) == wanted]
    return fitting[-1] if fitting else None


def judge_on_test(run: Path) -> dict[str, Any]:
    """The result of a run on its test split, judged now if it has not been."""
    if stored_result(run, split="test") is None:
        evaluate_run(run)
    result = stored_result(run, split="test")
    assert result is not None
    return result


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
