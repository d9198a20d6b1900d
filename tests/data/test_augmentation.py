"""Random views of training photos: repeatable, and mirrored only where captions allow it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aoq.config import RoundConfig
from aoq.data.augmentation import apply_views, draw_views, mirrorable
from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.scoring.encoded import encode_dataset
from aoq.training.step import make_batches
from aoq.types import Encoding

IDS = np.array([4, 0, 2])
NEVER = np.zeros(3, dtype=bool)


def test_the_whole_photo_is_a_view_of_itself() -> None:
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    whole = np.tile(np.eye(2, 3, dtype=np.float32), (2, 1, 1))
    assert torch.equal(apply_views(pixels, whole), pixels)
    whole[1, 0, 0] = -1.0
    assert torch.equal(apply_views(pixels, whole)[1], pixels[1].flip(2))


def test_a_view_depends_on_the_image_and_the_step_alone() -> None:
    views = draw_views(IDS, NEVER, seed=0, epoch=1, step=2)
    alone = draw_views(IDS[2:], NEVER[2:], seed=0, epoch=1, step=2)
    np.testing.assert_array_equal(alone[0], views[2])
    assert not np.array_equal(draw_views(IDS, NEVER, seed=0, epoch=1, step=3), views)
    assert not np.array_equal(draw_views(IDS, NEVER, seed=1, epoch=1, step=2), views)


def test_views_lie_inside_the_photo_and_show_most_of_it() -> None:
    ids = np.arange(300)
    views = draw_views(ids, np.ones(300, dtype=bool), seed=0, epoch=0, step=0)
    sizes = np.abs(views[:, [0, 1], [0, 1]])
    assert (sizes <= 1.0).all()
    assert (np.abs(views[:, :, 2]) + sizes <= 1.0 + 1e-6).all()
    areas = sizes.prod(axis=1)
    assert areas.min() > 0.5
    assert areas.max() > 0.95
    mirrored = (views[:, 0, 0] < 0).mean()
    assert 0.4 < mirrored < 0.6
    assert not (
        draw_views(ids, np.zeros(300, dtype=bool), seed=0, epoch=0, step=0)[:, 0, 0] < 0
    ).any()


def test_photos_whose_captions_speak_of_sides_are_not_mirrored() -> None:
    captions = ["a dog", "the Left paw of a dog", "two cats", "the rightmost cat", "a bright cup"]
    pairs = [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4)]
    dataset = PairDataset.of(np.zeros((4, 3, 8, 8), np.uint8), captions, pairs)
    assert mirrorable(dataset).tolist() == [False, True, False, True]


@pytest.fixture
def pixels() -> Collator:
    """Reads photos as pixels, as a tower that learns as a whole does."""
    photos = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
    pairs = [(number, number) for number in range(4)]
    dataset = PairDataset.of(photos, ["a dog", "two cats", "a cup", "a red ball"], pairs)
    collator = Collator(dataset, lambda caption: [len(word) for word in caption.split()])
    collator.__dict__["is_augmented"] = True
    return collator


def regions_of_step(collator: Collator, *, augment: bool = True, step: int = 0) -> torch.Tensor:
    pairs = collator.dataset.positives.pairs
    settings = RoundConfig(batch_size=4, augment=augment)
    (batch,) = make_batches(collator, pairs, settings=settings, sampler=None, epoch=1, step=step)
    return batch.regions


def test_a_step_that_is_taken_again_sees_the_same_views(pixels: Collator) -> None:
    views = regions_of_step(pixels)
    assert not views.equal(pixels.regions(np.arange(4)))
    assert not views.equal(regions_of_step(pixels, step=1))
    assert views.equal(regions_of_step(pixels))
    assert regions_of_step(pixels, augment=False).equal(pixels.regions(np.arange(4)))


def test_evaluation_and_mining_see_photos_as_they_are(pixels: Collator) -> None:
    """Both encode a data set whole."""
    seen = []

    class Model(torch.nn.Module):
        def encode_images(self, regions: torch.Tensor) -> Encoding:
            seen.append(regions)
            return Encoding(regions.float().flatten(1))

        def encode_texts(self, texts: object) -> Encoding:
            return Encoding(torch.ones(4, 192))

    encode_dataset(Model(), pixels, description="test")  # type: ignore[arg-type]
    assert torch.cat(seen).equal(pixels.regions(np.arange(4)))
