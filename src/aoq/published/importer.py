"""Turns files of the published programs into a run directory, like one that was trained here.

Everything is read and checked before anything is written, and the run appears whole or not at
all. `origin.json` records that it was imported, and the hashes of the original files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from aoq.config import LossConfig, ModelConfig, ModelName, Recipe, RoundConfig
from aoq.data.checks.dataset import byte_string_captions
from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset, splits_of
from aoq.data.vocabulary import Vocabulary
from aoq.errors import UserError
from aoq.folders import check_output_folder
from aoq.mining.candidates import CandidateLists
from aoq.models import build_model
from aoq.progress import EventLog, count_of, say, warn
from aoq.published.lists import read_published_lists
from aoq.published.models import PublishedModel, translate
from aoq.published.pickles import Checkpoint, read_checkpoint
from aoq.published.vocabularies import byte_string_words, read_vocabulary
from aoq.recipes import save_recipe
from aoq.runs.checkpoint import save_weights
from aoq.runs.directory import RunDirectory
from aoq.storage import hash_file, is_vacant, locked, replacing_folder, write_json

# Options of the published programs that correspond to a setting of a round.
_ROUND_OPTIONS = {
    "num_epochs": "epochs",
    "batch_size": "batch_size",
    "learning_rate": "learning_rate",
    "lr_update": "decay_after",
    "grad_clip": "clip_norm",
}


@dataclass(frozen=True, kw_only=True)
class PublishedFiles:
    """The files of a published program that belong together."""

    checkpoint: Path
    vocabulary: Path
    i2t: Path | None = None
    t2i: Path | None = None

    def given(self) -> dict[str, Path]:
        return {name: path for name, path in vars(self).items() if path is not None}


def import_run(
    out: Path,
    files: PublishedFiles,
    *,
    data: Path | None = None,
    model: ModelName | None = None,
    force: bool = False,
) -> RunDirectory:
    """Write a run from published files into `out`, and print what they hold."""
    if (files.i2t is None) != (files.t2i is None):
        raise UserError("candidate lists go together; name both --i2t and --t2i, or neither.")
    if files.i2t is not None and data is None:
        raise UserError("candidate lists are checked against their data set; add --data FOLDER.")
    reads = [*files.given().values(), *([data] if data is not None else [])]
    require_free(out, reads=reads, force=force)
    vocabulary = read_vocabulary(files.vocabulary)
    checkpoint = read_checkpoint(files.checkpoint)
    translated = translate(checkpoint, source=files.checkpoint, name=model)
    if translated.vocabulary_size != len(vocabulary):
        raise UserError(
            f"{files.vocabulary} has {len(vocabulary):,} words and the model of "
            f"{files.checkpoint} {translated.vocabulary_size:,}; name the vocabulary that the "
            "model was trained with."
        )
    dataset = None if data is None else _open_data(data, translated, lists=files.i2t is not None)
    lists = None
    if files.i2t is not None and files.t2i is not None and dataset is not None:
        lists = read_published_lists(files.i2t, files.t2i, dataset)
    recipe = Recipe(
        data="" if data is None else str(data.absolute()),
        model=translated.config,
        round_one=_round_of(checkpoint.options),
    )
    check = partial(require_free, out, reads=reads, force=force)
    with replacing_folder(out, what="run", check=check) as temporary:
        run = RunDirectory(temporary)
        _fill(run, recipe, translated, vocabulary=vocabulary, lists=lists)
        origin = {
            "imported": {
                name: {"file": path.name, "sha256": hash_file(path)}
                for name, path in files.given().items()
            },
            "data": None if dataset is None else dataset.fingerprint,
            "epoch": checkpoint.epoch,
            "best_rsum": checkpoint.best_rsum,
        }
        write_json(run.origin, origin)
        EventLog(run.events).write("imported", epoch=checkpoint.epoch)
    _describe(checkpoint, translated, vocabulary=vocabulary, lists=lists)
    _warn_about(files, translated, vocabulary)
    return RunDirectory(out)


def _open_data(data: Path, model: PublishedModel, *, lists: bool) -> PairDataset:
    """Open the split that lists are checked against, or any split to check the features."""
    dataset = open_dataset(data, "train" if lists else splits_of(data)[0])
    width = dataset.features.shape[2]
    if width != model.feature_width:
        raise UserError(
            f"{data} has features of width {width}; the model was trained on width "
            f"{model.feature_width}: name a data set with features of that width."
        )
    for problem in byte_string_captions(data, dataset):
        warn(problem)
    return dataset


def _round_of(options: Mapping[str, Any]) -> RoundConfig:
    """Return the settings of the training, as far as the options state them."""
    settings = RoundConfig()
    for option, ours in _ROUND_OPTIONS.items():
        value = options.get(option)
        kind = type(getattr(settings, ours))
        if isinstance(value, (int, float)) and kind(value) == value:
            try:
                settings = replace(settings, **{ours: kind(value)})
            except UserError:
                continue  # such as a gradient norm of 0, which disables clipping there
    margin = options.get("margin")
    return replace(
        settings,
        loss=LossConfig(
            name="online" if options.get("max_violation", True) else "standard",
            margin_online=float(margin) if isinstance(margin, (int, float)) else 0.2,
        ),
    )


def require_free(out: Path, *, reads: list[Path], force: bool) -> None:
    """Raise a `UserError` if `out` is taken, or is a run that another process trains."""
    check_output_folder(out, what="run", force=force, sources=reads)
    if not is_vacant(out):
        with locked(out):
            pass


def _fill(
    run: RunDirectory,
    recipe: Recipe,
    translated: PublishedModel,
    *,
    vocabulary: Vocabulary,
    lists: CandidateLists | None,
) -> None:
    with torch.device("meta"):  # do not initialise weights that are replaced at once
        model = build_model(
            recipe.model,
            feature_width=translated.feature_width,
            vocabulary_size=translated.vocabulary_size,
        )
    cast("nn.Module", model).load_state_dict(translated.weights, assign=True)
    save_recipe(recipe, run.config)
    vocabulary.save(run.vocabulary)
    save_weights(run.model, model, feature_width=translated.feature_width)
    if lists is not None:
        lists.save(run.candidates)


def _describe(
    checkpoint: Checkpoint,
    translated: PublishedModel,
    *,
    vocabulary: Vocabulary,
    lists: CandidateLists | None,
) -> None:
    config = translated.config
    say(
        f"{_kind(config)}: regions of width {translated.feature_width}, joint space of width "
        f"{config.joint_width}, {len(vocabulary):,} words of width {config.word_width}"
    )
    if checkpoint.epoch is not None:
        best = checkpoint.best_rsum
        rsum = "" if best is None else f", best_rsum {best:.1f} on its own validation"
        say(f"saved at its epoch {checkpoint.epoch}{rsum}")
    if lists is not None:
        say(
            f"lists of {count_of(lists.depth_texts, 'text')} for each of "
            f"{count_of(len(lists.i2t), 'image')} and {count_of(lists.depth_images, 'image')} for "
            f"each of {count_of(len(lists.t2i), 'text')}"
        )


def _kind(config: ModelConfig) -> str:
    """Describe the model and its variant."""
    if config.name == "scan":
        ways = "both ways" if config.bidirectional else "one way"
        return f"scan, {config.direction}, {config.aggregate}, words read {ways}"
    if config.name == "bfan":
        return f"bfan, {config.focal}"
    if config.name == "vsrn":
        captions = "with its" if config.caption_weight else "without a"
        return f"vsrn, {config.variant}, {captions} caption model"
    return config.name


def _warn_about(files: PublishedFiles, translated: PublishedModel, vocabulary: Vocabulary) -> None:
    if translated.assumed:
        warn(
            f"{files.checkpoint} does not state {', '.join(translated.assumed)}; the defaults are "
            "used: see [model] in config.toml, and correct them there if necessary."
        )
    words = byte_string_words(vocabulary)
    if words:
        warn(
            f"{files.vocabulary}: {len(words):,} of {len(vocabulary):,} words are like "
            f"{words[0]!r}: the program that made it read captions as byte strings, so its model "
            "learned words that start with b', and never the plain first words of captions. The "
            "model works, but worse than it should; see docs/published-files.md."
        )
