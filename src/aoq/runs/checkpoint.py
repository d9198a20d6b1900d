"""Weights of a run, and the state from which a stopped round continues.

Weights are safetensors; the trainer's state is read with torch's `weights_only`, which builds
tensors and plain containers and cannot run code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from aoq.config import (
    LATER_SETTINGS,
    MIN_WORD_COUNT,
    TOWER_NAMES,
    ModelConfig,
    Recipe,
    RoundName,
)
from aoq.data.checks.captions import TrainedVocabulary
from aoq.data.collate import Collator, read_texts
from aoq.data.dataset import PairDataset
from aoq.data.inputs import Inputs
from aoq.data.vocabulary import Vocabulary
from aoq.distributed import ALONE, Processes
from aoq.errors import UserError
from aoq.features.outputs import Output
from aoq.features.regions import RegionSource
from aoq.features.tokenizers import Tokenizer
from aoq.features.traced_texts import traced
from aoq.manifest import check_file, read_checked
from aoq.models import build_model
from aoq.recipes import load_recipe
from aoq.runs.best_round import best_round
from aoq.runs.custom_model import require_model, require_same_structure
from aoq.runs.data_facts import DataFacts
from aoq.runs.directory import ROUND_ONE, ROUND_TWO, RunDirectory
from aoq.runs.query_reader import (
    OwnPictures,
    PictureSource,
    QueryReader,
    pictures_of,
    query_reader_of,
    tokenizer_of,
)
from aoq.scoring.logits import Logits
from aoq.scoring.protocol import TrainableModel
from aoq.storage import atomic_file, hash_file, hash_parts, read_json
from aoq.types import Texts


@dataclass(frozen=True)
class TrainerState:
    """How far a round has come."""

    epoch: int = 0
    "Epochs finished."
    step: int = 0
    "Steps finished in the epoch under way."
    best: float = float("-inf")
    "Best validation figure so far."
    best_epoch: int = -1
    waited: int = 0
    "Validations since the best one."
    validated: int = 0
    "Steps of the whole round before the last validation within an epoch."
    threads: int = 0
    "Number of torch's threads for the steps of the round; 0 before the first."
    fell_back: bool = False
    "Whether the round went back to the end of its warm-up and goes on with Eq. 1."


MakeModel = Callable[[], TrainableModel]


def save_weights(
    path: Path,
    model: TrainableModel,
    *,
    feature_width: int | None,
    learned: Mapping[str, float] | None = None,
) -> None:
    """Save the weights, shared ones once, and the width of the features they were trained on.

    `learned` is what the loss has learned beside them, such as its temperature.
    """
    with atomic_file(path) as temporary:
        metadata = {} if feature_width is None else {"feature_width": str(feature_width)}
        metadata |= {name: str(value) for name, value in (learned or {}).items()}
        save_model(cast("nn.Module", model), str(temporary), metadata=metadata)


def load_weights(path: Path, model: TrainableModel) -> None:
    """Put the weights of a file into a model that they fit."""
    check_file(path)
    try:
        load_model(cast("nn.Module", model), path)
    except SafetensorError:
        raise _damaged(path) from None
    except RuntimeError:
        raise UserError(
            f"{path} does not hold the weights of this model: names or shapes differ; restore the "
            "file or the run's config.toml, or train the run anew."
        ) from None


def _damaged(path: Path) -> UserError:
    return UserError(
        f"{path} is damaged or not a model of a run ({path.stat().st_size:,} bytes); restore it "
        "from a copy, or train the run anew with --force."
    )


class HasState(Protocol):
    """Anything else that a round has to continue."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...


def save_trainer(
    path: Path,
    model: TrainableModel,
    optimizer: torch.optim.Optimizer,
    state: TrainerState,
    **also: HasState,
) -> None:
    """Save all that a round needs to continue, `also` parts of its own by their names."""
    content = {
        "state": asdict(state),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "optimizer_kind": type(optimizer).__name__,
    }
    content |= {name: part.state_dict() for name, part in also.items()}
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        torch.save(content, file)  # given a path, it hides why it could not write


def load_trainer(
    path: Path,
    model: TrainableModel,
    optimizer: torch.optim.Optimizer,
    **also: HasState,
) -> TrainerState:
    """Restore a saved state; return a fresh one if nothing was saved."""
    if not path.is_file():
        return TrainerState()
    path.open("rb").close()  # errors of the system are passed on
    kind = type(optimizer).__name__
    try:
        content: dict[str, Any] = torch.load(
            BytesIO(read_checked(path)), map_location="cpu", weights_only=True
        )
        saved_kind = content.get("optimizer_kind", kind)
        if saved_kind == kind:
            model.load_state_dict(content["model"])
            optimizer.load_state_dict(content["optimizer"])
            for name, part in also.items():
                part.load_state_dict(content[name])
            return TrainerState(**content["state"])
    except Exception:  # damaged files make torch raise almost anything, OSError too
        raise UserError(
            f"{path} is damaged or not a trainer state of this run ({path.stat().st_size:,} "
            "bytes); restore it from a copy, or remove it to start the round anew."
        ) from None
    raise UserError(
        f"{path} was saved with the optimizer {saved_kind}, and this round has {kind}; pass the "
        "make_optimizer that the round was started with, or remove the file to start it anew."
    )


@dataclass(frozen=True)
class TrainedRun:
    """A trained model, with what it needs to read data."""

    recipe: Recipe
    model: TrainableModel
    tokenizer: Tokenizer
    feature_width: int | None
    "Of region features (N, R, F); none where images of other shapes were learned."
    model_hash: str
    inputs: Inputs
    pictures: PictureSource | None = None
    "How a model of a user's own reads pictures, or a run that has no data set, if they say so."
    logits: Logits | None = None
    "What its cosines mean, of a pretrained dual encoder that was imported."

    def view(self, dataset: PairDataset, *, processes: Processes = ALONE) -> PairDataset:
        """Return a data set as the model sees it, if it can read its images.

        Several processes share the work of a frozen network, if all of them call this.
        """
        seen = dataset
        shape = dataset.features.shape
        if self.feature_width is not None:
            seen = self.inputs.view(dataset, processes=processes)
            if len(seen):
                self.require_width(seen.features.shape[-1], source=dataset.name)
        elif isinstance(self.pictures, OwnPictures) and len(shape) == 3:
            seen = self.pictures.view(dataset)
        elif isinstance(self.pictures, RegionSource) and len(shape) == 3:
            seen = Inputs(images=self.pictures).view(dataset, processes=processes)
        elif len(shape) == 3 and len(dataset):
            raise UserError(
                f"{dataset.name} has region features of the shape {tuple(shape[1:])}, and the "
                "model was trained on other images; give it a query_reader with read_picture, "
                "which then reads the photos of the data set."
            )
        return seen

    def collator(
        self,
        dataset: PairDataset,
        *,
        device: str | torch.device = "cpu",
        processes: Processes = ALONE,
    ) -> Collator:
        """Make a reader of a data set for the model, if it can read its images."""
        seen = self.view(dataset, processes=processes)
        read = Collator(seen, self.tokenizer, device=device, texts_from=self.inputs.texts)
        read.read_in_shares(processes)
        return read

    def read_texts(self, texts: Sequence[str]) -> Texts:
        """Read sentences as the captions of a data set are read."""
        return read_texts(texts, self.tokenizer, self.inputs.texts)

    def require_width(self, width: int, *, source: str) -> None:
        """Refuse features of another width than those of the training."""
        if self.feature_width not in (None, width):
            raise UserError(
                f"{source} has features of width {width}; the model was trained on width "
                f"{self.feature_width}: extract features with the extractor of the training data."
            )


def load_run(
    path: Path | str,
    *,
    device: str | torch.device = "cpu",
    round: RoundName | None = None,  # noqa: A002
    make_model: MakeModel | None = None,
    for_queries: bool = False,
) -> TrainedRun:
    """Load the best model of a run, in evaluation mode; `round` names one of two rounds instead.

    `make_model` builds a model of your own, as in training; the library's models do not need it.
    `for_queries` loads a text tower in the form that starts fastest, if it is kept.
    """
    path = best_round(path, round).path
    run = RunDirectory(path).require_trained()
    recipe = load_recipe(run.config)
    is_own = recipe.model.name == "own"
    if is_own and make_model is None:
        raise UserError(
            f"{path} holds a model of your own, which your code has to build; name the function "
            "that makes it with --model MODULE:FUNCTION, in Python with make_model=...."
        )
    config, inputs = _settle_towers(run, recipe.model)
    if for_queries and inputs.texts is not None:
        inputs = replace(inputs, texts=traced(inputs.texts))
    kept, text_width = _kept_tokenizer(run, inputs, is_own=is_own)
    before = run.model.stat()
    feature_width = _read_feature_width(run, is_own=is_own)
    reader = QueryReader()
    if is_own and make_model is not None:
        model = _build_own(run, make_model)
        reader = query_reader_of(model)
    else:
        assert kept is not None
        assert feature_width is not None
        model = build_model(
            config,
            feature_width=feature_width,
            vocabulary_size=len(kept),
            text_width=text_width,
        )
    load_weights(run.model, model)
    model_hash = hash_model(path)
    after = run.model.stat()
    if (after.st_ino, after.st_mtime_ns) != (before.st_ino, before.st_mtime_ns):
        # The round is under way, and has better weights.
        return load_run(path, device=device, make_model=make_model, for_queries=for_queries)
    return TrainedRun(
        recipe,
        model.to(device).eval(),
        tokenizer_of(reader, kept),
        feature_width,
        model_hash,
        inputs,
        pictures_of(reader, model_hash) or _kept_source(run),
        _kept_logits(run),
    )


def _kept_source(run: RunDirectory) -> RegionSource | None:
    """Return how the photos of a run's data were read, if the run was separated from them."""
    return DataFacts.of_run(run).source if run.data_facts.is_file() else None


def _kept_logits(run: RunDirectory) -> Logits | None:
    kept = run.read_origin().get("logits")
    return None if kept is None else Logits.from_dict(kept)


def _kept_tokenizer(
    run: RunDirectory, inputs: Inputs, *, is_own: bool
) -> tuple[Tokenizer | None, int]:
    """Load the tokenizer of a run, and the width of its text tower; an own model may have none."""
    if inputs.texts is not None:
        tower = inputs.texts.load()
        return tower.tokenizer, tower.width
    if is_own and not run.vocabulary.is_file():
        return None, 0
    return Vocabulary.load(run.vocabulary), 0


def _read_feature_width(run: RunDirectory, *, is_own: bool) -> int | None:
    """Read the width of the features that weights were trained on; an own model may have none."""
    try:
        with safe_open(run.model, framework="pt") as file:
            metadata = file.metadata() or {}
            if is_own and "feature_width" not in metadata:
                return None
            return int(metadata["feature_width"])
    except (SafetensorError, KeyError, TypeError, ValueError):
        raise _damaged(run.model) from None


def _settle_towers(run: RunDirectory, config: ModelConfig) -> tuple[ModelConfig, Inputs]:
    """Return settings and inputs that name the towers where they are."""
    if not run.inputs.is_file():
        return config, Inputs()
    inputs = Inputs.from_dict(read_json(run.inputs)).at(run.place_of)
    config = config.at(run.place_of)
    if run.pretrained.is_dir():  # a run that holds its towers can move
        config = replace(config, image=str(run.pretrained), text="")
        inputs = inputs.of_towers(run.pretrained)
    if inputs.images is not None and not Output.parse(inputs.images.output).is_vector:
        inputs.images.load()  # the model goes on from this network: refuse another one
    return config, inputs


def hash_model(path: Path | str) -> str:
    """Hash all that a model's scores depend on: weights, vocabulary if it has one, settings."""
    run = RunDirectory(Path(path)).require_trained()
    files = [hash_file(file) for file in (run.model, run.vocabulary) if file.is_file()]
    described: list[Any] = [files, settings_of_model(load_recipe(run.config).model)]
    if run.inputs.is_file():
        described.append(Inputs.from_dict(read_json(run.inputs)).ids)
    return hash_parts(json.dumps(described).encode())


def settings_of_model(config: ModelConfig) -> dict[str, Any]:
    """Return what a model's scores depend on; towers are identified by their hashes instead.

    Settings that other models do not have count only where they are set: hashes of runs that know
    nothing of them stay valid.
    """
    default = asdict(ModelConfig())
    return {
        name: value
        for name, value in asdict(config).items()
        if name not in LATER_SETTINGS or (name not in TOWER_NAMES and value != default[name])
    }


def hash_models(runs: Sequence[Path]) -> str:
    """Hash one run, or the members of an ensemble in order, joined by a plus."""
    return "+".join(map(hash_model, runs))


def load_own_model(
    path: Path | str,
    make_model: MakeModel,
    *,
    device: str | torch.device = "cpu",
    round: RoundName | None = None,  # noqa: A002
) -> TrainableModel:
    """Load the best weights of a run into the model that `make_model` builds, in evaluation mode.

    A model of another structure than the trained one is refused.
    """
    run = RunDirectory(best_round(path, round).path).require_trained()
    model = _build_own(run, make_model)
    load_weights(run.model, model)
    return model.to(device).eval()


def _build_own(run: RunDirectory, make_model: MakeModel) -> TrainableModel:
    """Build the model of a user's program; refuse one that the run was not trained with."""
    model = require_model(make_model())
    require_same_structure(run, model)
    return model


def trained_vocabulary(run: Path) -> TrainedVocabulary:
    """Find the vocabulary of a folder: its own, or that of its last round."""
    for directory in (RunDirectory(run / name) for name in ("", ROUND_TWO, ROUND_ONE)):
        if directory.vocabulary.is_file():
            min_count = load_recipe(directory.config).min_word_count or MIN_WORD_COUNT
            return TrainedVocabulary(directory.vocabulary, min_count)
    raise UserError(f"{run} holds no vocabulary.json; name the folder of a trained run.")
