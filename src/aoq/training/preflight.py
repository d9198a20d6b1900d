"""Checks of later stages, made before the first one starts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aoq.config import Recipe, RoundConfig
from aoq.distributed import ALONE, Processes
from aoq.errors import UserError
from aoq.mining.plan import lists_nbytes
from aoq.runs.checkpoint import MakeModel
from aoq.scoring.blocks import block_size_for
from aoq.scoring.encoded import EncodedDataset, evaluation_mode
from aoq.scoring.protocol import (
    FitsInClosedForm,
    HasPretrained,
    SeparatesImageSets,
    TrainableModel,
)
from aoq.training.inputs import TrainingData
from aoq.types import Encoding


@dataclass(frozen=True)
class _Rows:
    """The sizes of encodings on disk, of which memory holds where each begins."""

    count: int
    row_nbytes: int
    nbytes: int

    @classmethod
    def like(cls, row: Encoding, count: int) -> _Rows:
        held = 8 if row.mask is None else 16  # where each row begins, and its length
        return cls(count, row.vectors.nbytes, held * count)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: object) -> Encoding:
        raise NotImplementedError("these are sizes only")


def require_rounds_fit(recipe: Recipe, make_model: MakeModel) -> None:
    """Refuse settings of a round that the model cannot follow, before the first round starts."""
    rounds = [recipe.round_one] if recipe.needs_round_one else []
    rounds += [recipe.round_two] if recipe.rounds == "both" else []
    if any(each.encode_at_once or each.tower_learning_rate or each.ema for each in rounds):
        model = make_model()
        for settings in rounds:
            require_settings_fit(model, settings)


def require_settings_fit(model: TrainableModel, settings: RoundConfig) -> None:
    """Refuse settings that the model cannot follow."""
    if settings.encode_at_once is not None and isinstance(model, SeparatesImageSets):
        raise UserError(
            f"encode_at_once is {settings.encode_at_once}, and batch norm in the model "
            f"({type(model).__name__}) needs all images of a batch at once; leave it out, and "
            "raise accumulate or lower batch_size to save memory."
        )
    if settings.tower_learning_rate is not None and not isinstance(model, HasPretrained):
        raise UserError(
            f"tower_learning_rate is {settings.tower_learning_rate}, and the model "
            f"({type(model).__name__}) has no pretrained towers; set learning_rate alone."
        )
    if isinstance(model, FitsInClosedForm) and (settings.ema or settings.needs_candidates):
        what = "ema is" if settings.ema else f"{settings.drawn_from_lists} are"
        raise UserError(
            f"{what} for steps, and the model ({type(model).__name__}) is computed without any; "
            "leave it out, and train round one alone."
        )


def require_mining_memory(
    recipe: Recipe, data: TrainingData, make_model: MakeModel, *, processes: Processes = ALONE
) -> None:
    """Refuse a budget that is too small for mining: round one may take days before."""
    if recipe.mines and recipe.mining.memory is not None:
        model = make_model().to(data.train.device)
        require_memory_for(model, recipe, data, processes=processes)


def require_memory_for(
    model: TrainableModel, recipe: Recipe, data: TrainingData, *, processes: Processes = ALONE
) -> None:
    """Refuse a budget that mining with this model, trained or not, does not fit in."""
    dataset, longest = data.train.dataset, np.array([np.argmax(data.train.text_lengths)])
    with evaluation_mode(model):
        image = model.encode_images(data.train.regions(np.zeros(1, np.int64))).without_context()
        text = model.encode_texts(data.train.texts(longest)).without_context()
    encoded = EncodedDataset(
        images=_Rows.like(image, len(dataset)), texts=_Rows.like(text, dataset.n_texts)
    )
    share = processes.share(len(dataset))
    beside = lists_nbytes(recipe.mining, dataset.positives, n_images=share.stop - share.start)
    block_size_for(recipe.mining.memory, encoded, beside=beside)
