"""Small recipes, and what trained runs are compared by."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import torch
from safetensors.torch import load_file

from aoq.config import (
    LossConfig,
    ModelConfig,
    Recipe,
    RoundConfig,
    SamplingConfig,
)
from aoq.data.vocabulary import SPECIAL_WORDS, Vocabulary
from aoq.published.importer import PublishedFiles
from aoq.runs.directory import RunDirectory
from aoq.storage import read_json_lines
from tests.conftest import WORDS
from tests.published.cases import content, write

ROUND = RoundConfig(epochs=3, batch_size=16, learning_rate=1e-3, decay_after=2, checkpoint_every=1)
REGULARISED = {
    "standardise": True,
    "feature_dropout": 0.2,
    "word_dropout": 0.2,
    "drop_regions": 0.3,
    "drop_words": 0.3,
}
GROUPED = {"loss": LossConfig(name="online"), "batches": "grouped", "group_size": 4}


def small_recipe(data, **changes) -> Recipe:
    recipe = Recipe(
        data=str(data),
        min_word_count=1,
        model=ModelConfig(joint_width=8, word_width=5, caption_width=6),
        round_one=ROUND,
        round_two=replace(ROUND, loss=LossConfig(name="adap_off_quin")),
        sampling=SamplingConfig(depth_texts=10, depth_images=4),
    )
    return replace(recipe, **changes)


def regularised(precomp, name, **changes):
    recipe = small_recipe(precomp, rounds="one")
    model = replace(recipe.model, name=name, head_width=7, **REGULARISED)
    return replace(recipe, model=model, round_one=replace(recipe.round_one, **changes))


def cca_recipe(precomp, **changes) -> Recipe:
    return Recipe(
        data=str(precomp),
        rounds="one",
        min_word_count=1,
        model=ModelConfig(name="cca", joint_width=4),
        round_one=RoundConfig(epochs=3, **changes),
    )


def with_round_two(recipe, **changes):
    return replace(recipe, round_two=replace(recipe.round_two, **changes))


def weights(path):
    return load_file(RunDirectory(path).model)


def assert_same_weights(first, second):
    one, two = weights(first), weights(second)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def events(path, kind):
    """Read the events of a kind from the log of a run."""
    lines = read_json_lines(RunDirectory(path).events)
    return [line for line in lines if line["event"] == kind]


def validations(path):
    return [
        {key: value for key, value in line.items() if key not in ("time", "event")}
        for line in events(path, "validation")
    ]


VOCABULARY = Vocabulary((*SPECIAL_WORDS, *WORDS))


def published(folder, kind="scan", *, vocabulary=VOCABULARY, value=None, **lists):
    """The files of a program, in a folder of their own."""
    folder.mkdir(exist_ok=True)
    checkpoint = value or content(kind, words=len(vocabulary))
    write(folder / "model_best.pth.tar", checkpoint)
    if kind.startswith("vsrn"):
        words = folder / "vocab.pkl"
        words.write_bytes(pickle.dumps({"word2idx": vocabulary.ids}, 2))
    else:
        words = folder / "vocab.json"
        vocabulary.save(words)
    places = {name: folder / f"{name}_x_precomp.npy" for name in lists}
    for name, place in places.items():
        np.save(place, lists[name])
    return PublishedFiles(checkpoint=folder / "model_best.pth.tar", vocabulary=words, **places)
