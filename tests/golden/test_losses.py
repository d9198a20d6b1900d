"""Losses and their gradients against the published program."""

from __future__ import annotations

import pytest

from aoq.config import LossConfig
from aoq.losses import BatchScores, OfflineScores, adaptive_weights, compute_loss
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding
from tests.golden.conftest import close

CONSTANTS = {
    "default": LossConfig(name="adap_off_quin"),
    "alt": LossConfig(
        name="adap_off_quin", margin_online=0.1, margin_offline=0.05, alpha=0.5, beta=2.0
    ),
}
INPUTS = ["im", "s", "im_off", "s_off", "im_off2", "s_off2"]


def batch_scores(inputs):
    scorer, encoded = InnerProduct(), {name: Encoding(value) for name, value in inputs.items()}
    offline = OfflineScores(
        i2t=scorer.score_pairs(encoded["im"], encoded["s_off"]),
        t2i=scorer.score_pairs(encoded["im_off"], encoded["s"]),
        derived=scorer.score_pairs(encoded["im_off"], encoded["s_off"]),
        partners=scorer.score_pairs(encoded["im_off2"], encoded["s_off2"]),
    )
    return BatchScores(scorer.score_matrix(encoded["im"], encoded["s"]), offline=offline)


@pytest.mark.parametrize("constants", CONSTANTS)
def test_adaptive_quintuplet_loss_and_gradients_are_the_published_ones(golden, constants):
    arrays = golden("vsrn_loss")
    inputs = {name: arrays[f"in.{name}"].requires_grad_() for name in INPUTS}
    loss = compute_loss(batch_scores(inputs), CONSTANTS[constants]).total
    close(loss, arrays[f"aoq.{constants}.max.loss"])
    loss.backward()
    for name, value in inputs.items():
        close(value.grad, arrays[f"aoq.{constants}.max.grad_{name}"])


@pytest.mark.parametrize(("ours", "theirs"), [("online", "max"), ("standard", "sum")])
def test_triplet_losses_and_gradients_are_the_published_ones(golden, ours, theirs):
    arrays = golden("vsrn_loss")
    inputs = {name: arrays[f"in.{name}"].requires_grad_() for name in INPUTS}
    loss = compute_loss(batch_scores(inputs), LossConfig(name=ours)).total
    close(loss, arrays[f"triplet.{theirs}.loss"])
    loss.backward()
    for name in ("im", "s"):
        close(inputs[name].grad, arrays[f"triplet.{theirs}.grad_{name}"])


def test_the_parts_of_the_adaptive_loss_are_the_published_ones(golden):
    arrays = golden("vsrn_loss")
    scores = batch_scores({name: arrays[f"in.{name}"] for name in INPUTS})
    close(scores.matrix, arrays["part.scores"])
    close(scores.i2t_online, arrays["part.i2t_on"])
    close(scores.t2i_online, arrays["part.t2i_on"])
    i2t_weight, t2i_weight = adaptive_weights(scores, CONSTANTS["default"])
    close(i2t_weight, arrays["part.cweight"])
    close(t2i_weight, arrays["part.iweight"])
