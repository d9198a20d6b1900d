"""The log of a round, and what it reports about a loss that goes wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from aoq.errors import UserError
from aoq.runs.summary import RunSummary
from aoq.training.inputs import open_training_data
from aoq.training.statistics import CollapseWatch
from aoq.training.two_rounds import run_recipe, train_round
from aoq.types import Encoding
from tests.training.cases import events, small_recipe, with_round_two


def test_the_log_has_terms_active_hinges_scores_and_weights(tmp_path, precomp):
    recipe = with_round_two(small_recipe(precomp), log_every=2)
    run_recipe(tmp_path / "run", recipe)
    lines = events(tmp_path / "run" / "round-two", "steps")
    assert [line["step"] for line in lines[:2]] == [2, 4]
    for line in lines:
        terms = {f"{side}_{kind}" for side in ("i2t", "t2i") for kind in ("online", "derived")}
        assert terms <= set(line["loss"])
        assert terms <= set(line["active"])
        assert set(line["scores"]) == {"positive", "online", "offline"}
        assert 0 <= line["weights"]["below_zero"] <= 1
    assert "weights" not in events(tmp_path / "run" / "round-one", "steps")[0]


def test_a_collapsed_loss_is_reported_once_with_what_to_do_and_at_the_end(
    tmp_path, precomp, monkeypatch, capsys
):
    monkeypatch.setattr(
        CollapseWatch,
        "for_epochs_of",
        classmethod(lambda cls, n_steps, *, margin: cls(margin, patience=3)),
    )
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_one, learning_rate=1e-12)
    model = replace(recipe.model, name="own")

    class Constant(nn.Module):
        """Scores everything alike."""

        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.zeros(1))

        def encode_images(self, regions):
            return Encoding(torch.ones(len(regions), 2) + self.value)

        def encode_texts(self, texts):
            return Encoding(torch.ones(len(texts.tokens), 2) + self.value)

        def score_matrix(self, images, texts):
            return images.vectors @ texts.vectors.T

        def score_pairs(self, images, texts):
            return (images.vectors * texts.vectors).sum(dim=1)

    recipe = replace(recipe, round_one=settings, model=model)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one", make_model=Constant)
    assert len(events(tmp_path / "run", "collapsed")) == 2  # when it is seen, and at the end
    message = " ".join(capsys.readouterr().err.split())
    assert message.count("2 x batch x margin") == 1
    assert message.count("ended on the plateau") == 1
    assert RunSummary.read(tmp_path / "run").collapsed
    assert "warmup-epochs" in message


def test_the_images_of_a_batch_that_breaks_the_loss_are_named(tmp_path, precomp):
    features = np.load(precomp / "train_ims.npy")
    recipe = replace(small_recipe(precomp), rounds="one")
    data = open_training_data(recipe)
    features[3] = np.nan  # after the check
    broken = replace(data.train.dataset, features=features)
    data = replace(data, train=data.train.with_dataset(broken))
    with pytest.raises(UserError, match="no longer finite") as error:
        train_round(tmp_path / "run", recipe, data, which="one")
    (line,) = events(tmp_path / "run", "not_finite")
    assert len(line["images"]) == len(line["captions"]) == recipe.round_one.batch_size
    assert broken.image_ids[3] in line["images"]
    assert line["images"][0] in str(error.value)


def test_a_round_without_a_single_step_is_refused(tmp_path, precomp):
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_one, batch_size=400, accumulate=100)
    recipe = replace(recipe, round_one=settings)
    with pytest.raises(UserError, match="fewer than 2 pairs"):
        train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
