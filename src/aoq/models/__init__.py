"""Models: encoders and their scorer, one file per model, in one explicit registry.

`encoders` has the parts that several models share, `captioner` the caption model of VSRN.
"""

from __future__ import annotations

from typing import Protocol

from aoq.config import ModelConfig, ModelName
from aoq.data.inputs import Inputs
from aoq.errors import UserError
from aoq.features.regions import RegionSource
from aoq.models.bfan import BFAN
from aoq.models.bow import BOW
from aoq.models.cca import CCA
from aoq.models.scan import SCAN
from aoq.models.towers import Towers, tower_inputs, word_states
from aoq.models.vse import VSE
from aoq.models.vsrn import VSRN
from aoq.scoring.protocol import TrainableModel
from aoq.types import require_count


class Maker(Protocol):
    def __call__(
        self, config: ModelConfig, *, feature_width: int, vocabulary_size: int, text_width: int
    ) -> TrainableModel: ...


MODELS: dict[ModelName, Maker] = {
    "vsrn": VSRN,
    "scan": SCAN,
    "bfan": BFAN,
    "vse": VSE,
    "bow": BOW,
    "cca": CCA,
    "towers": Towers,
}


def build_model(
    config: ModelConfig, *, feature_width: int, vocabulary_size: int, text_width: int = 0
) -> TrainableModel:
    """Build the model that `config` names, with fresh weights from torch's random state.

    `text_width` is that of a frozen text tower, for models that read its vectors or states.
    """
    require_count("feature_width", feature_width)
    require_count("vocabulary_size", vocabulary_size)
    make = find_maker(config.name)
    return make(
        config,
        feature_width=feature_width,
        vocabulary_size=vocabulary_size,
        text_width=text_width,
    )


def find_inputs(config: ModelConfig, kept: RegionSource | None = None) -> Inputs:
    """Return the frozen networks by which a model reads images and texts, if it has any.

    `kept` is how the features of the data set were made.
    """
    if config.name == "towers":
        return tower_inputs(config, kept)
    return Inputs() if config.words == "gru" else Inputs(texts=word_states(config.words))


def find_maker(name: ModelName) -> Maker:
    """Return the function that builds one of the library's models."""
    if name not in MODELS:
        raise UserError(
            f"a model named {name!r} is built by your own program: call "
            f"aoq.run_recipe with make_model; here it has to be one of {', '.join(MODELS)}."
        )
    return MODELS[name]


def count_parameters(model: TrainableModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
