"""Fresh models start from the published distributions."""

import math

import pytest
import torch

from aoq.config import ModelConfig
from aoq.models import build_model

REGION_WIDTH, WIDTH, WORDS, CAPTION_WIDTH = 200, 100, 300, 60


def fresh(name):
    torch.manual_seed(0)
    config = ModelConfig(name=name, joint_width=WIDTH, word_width=50, caption_width=CAPTION_WIDTH)
    model = build_model(config, feature_width=REGION_WIDTH, vocabulary_size=WORDS)
    return model.state_dict()


def assert_uniform(values, bound):
    assert 0.98 * bound < float(values.abs().max()) <= bound
    assert float(values.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("name", ["vsrn", "scan", "bfan", "vse"])
def test_regions_and_words_start_uniform(name):
    weights = fresh(name)
    projection = "projection" if name == "vse" else "image_encoder.projection"
    assert_uniform(weights[f"{projection}.weight"], math.sqrt(6 / (REGION_WIDTH + WIDTH)))
    assert not weights[f"{projection}.bias"].any()
    assert_uniform(weights["text_encoder.embedding.weight"], 0.1)


def test_the_caption_model_starts_xavier_normal():
    weights = fresh("vsrn")
    for name, fans in (("projection", WIDTH + CAPTION_WIDTH), ("output", WORDS + CAPTION_WIDTH)):
        values = weights[f"captioner.{name}.weight"]
        assert float(values.std()) == pytest.approx(math.sqrt(2 / fans), rel=0.05)
        assert float(values.abs().max()) > 2.5 * math.sqrt(2 / fans)  # not uniform
