"""The PyTorch data set of pairs and offline negatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import aoq
from tests.conftest import uneven_dataset

DATASET = uneven_dataset(images=8)
POSITIVES = DATASET.positives


def wrong_ones(relation: aoq.Positives, depth: int) -> np.ndarray:
    """The first texts that do not belong to each image."""
    rows = [
        [text for text in range(relation.n_texts) if text not in relation.texts_of(image)][:depth]
        for image in range(relation.n_images)
    ]
    return np.array(rows, np.int32)


@pytest.fixture
def sampler():
    i2t, t2i = wrong_ones(POSITIVES, 6), wrong_ones(POSITIVES.swapped, 6)
    lists = aoq.CandidateLists(
        i2t,
        np.zeros(i2t.shape, np.float32),
        t2i,
        np.zeros(t2i.shape, np.float32),
        aoq.Provenance("none", "none"),
    )
    config = aoq.SamplingConfig(depth_texts=6, depth_images=6)
    return aoq.OfflineSampler(lists, POSITIVES, config=config, seed=3)


def test_an_item_is_a_pair_with_negatives_of_its_lists_and_their_partners(sampler):
    pairs = aoq.OfflineDataset(sampler)
    assert len(pairs) == len(POSITIVES.pairs)
    for number, (image, text) in enumerate(POSITIVES.pairs):
        item = pairs[number]
        assert (item["image"], item["text"]) == (item["image_id"], item["text_id"]) == (image, text)
        assert item["text_off"] in sampler.texts[image]
        assert item["image_off"] in sampler.images[text]
        assert POSITIVES.contains(item["partner_image"], item["text_off"])
        assert POSITIVES.contains(item["image_off"], item["partner_text"])
        derived = POSITIVES.contains(item["image_off"], item["text_off"])
        partners = POSITIVES.contains(item["partner_image"], item["partner_text"])
        assert item["derived_mask"] == (not derived and not partners)


def test_images_and_texts_are_what_is_read_of_their_numbers(sampler):
    plain = aoq.OfflineDataset(sampler)
    read = aoq.OfflineDataset(sampler, image=lambda n: f"p{n}", text=DATASET.captions.__getitem__)
    for numbers, item in zip(plain, read, strict=True):
        for name in ("image", "image_off", "partner_image"):
            assert item[name] == f"p{numbers[name]}"
        for name in ("text", "text_off", "partner_text"):
            assert item[name] == DATASET.captions[numbers[name]]


@pytest.mark.parametrize("workers", [0, 2])
def test_draws_depend_on_the_epoch_but_not_on_batches_and_workers(sampler, workers):
    pairs = aoq.OfflineDataset(sampler)
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(pairs, batch_size=5, **options)
    drawn = []
    for epoch in range(2):
        pairs.set_epoch(epoch)
        batches = list(loader)
        drawn.append(torch.cat([batch["text_off"] for batch in batches]).tolist())
        assert drawn[epoch] == [item["text_off"] for item in pairs]
    assert drawn[0] != drawn[1]


def test_an_epoch_below_zero_is_refused(sampler):
    with pytest.raises(aoq.UserError, match="epoch is -1"):
        aoq.OfflineDataset(sampler).set_epoch(-1)
