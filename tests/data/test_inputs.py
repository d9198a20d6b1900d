"""A model with a tower of its own sees the photos of any data set through it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aoq.config import ModelConfig, TowerPrecision
from aoq.data.build import build_dataset
from aoq.data.dataset import ImagesOnDemand
from aoq.data.inputs import Inputs
from aoq.data.splits import open_dataset
from aoq.errors import UserError
from aoq.features.outputs import Output
from aoq.features.pictures import decode
from aoq.features.regions import RegionSource
from aoq.features.text_models import TextSource
from aoq.models import find_inputs
from tests.conftest import write_precomp
from tests.retrieval.conftest import photo_records
from tests.towers import SIDE, TinyModels


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, towers: TinyModels) -> Path:
    """A data set that was built with another network's vectors."""
    root = tmp_path_factory.mktemp("seen")
    source = RegionSource.of_backbone(str(towers.vit), output=Output("cls"))
    build_dataset(photo_records(root / "photos"), root / "data", name="squares", source=source)
    return root / "data"


def images_by(folder: Path, output: str) -> Inputs:
    return Inputs(images=RegionSource.of_backbone(str(folder), output=Output.parse(output)))


@pytest.mark.parametrize(
    ("output", "shape"), [("pooled", (1, 16)), ("block-2", (17, 32)), ("input", (3, SIDE, SIDE))]
)
def test_photos_are_seen_as_the_network_returns_them(
    data: Path, towers: TinyModels, output: str, shape: tuple[int, ...]
) -> None:
    dataset, inputs = open_dataset(data, "dev"), images_by(towers.clip, output)
    seen = inputs.view(dataset)
    assert seen.features.shape == (5, *shape)
    assert inputs.images is not None
    backbone = inputs.images.load()
    assert dataset.pictures[3] is not None
    alone = inputs.images.finish(backbone([decode(dataset.pictures[3], backbone.canvas)])[0])
    np.testing.assert_array_equal(seen.features[np.array([3])][0], alone)


def test_a_view_is_the_same_data_set(data: Path, towers: TinyModels) -> None:
    dataset, inputs = open_dataset(data, "dev"), images_by(towers.clip, "pooled")
    seen = inputs.view(dataset)
    assert (seen.fingerprint, seen.contents) == (dataset.fingerprint, dataset.contents)
    again = images_by(towers.clip, "cls").view(seen)
    assert again.fingerprint == dataset.fingerprint
    assert inputs.view(seen) is seen


def test_a_data_set_of_the_same_vectors_needs_no_photos(
    data: Path, towers: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(data, "dev")
    lost = replace(dataset, pictures=(None,) * len(dataset))
    assert images_by(towers.vit, "cls").view(lost) is lost


def test_lost_photos_are_named(data: Path, towers: TinyModels) -> None:
    dataset = open_dataset(data, "dev")
    pictures = (data / "gone.png", *dataset.pictures[1:])
    with pytest.raises(UserError, match=r"lacks 1 of its 5 photos, such as .*gone\.png"):
        images_by(towers.clip, "pooled").view(replace(dataset, pictures=pictures))


def test_features_of_others_are_not_photos(tmp_path: Path, towers: TinyModels) -> None:
    dataset = open_dataset(write_precomp(tmp_path / "precomp"), "train")
    with pytest.raises(UserError, match="lacks 12 of its 12 photos"):
        images_by(towers.clip, "pooled").view(dataset)


def test_many_features_stay_on_disk(
    data: Path, towers: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, dataset = images_by(towers.clip, "block-1"), open_dataset(data, "dev")
    held = inputs.view(dataset).features
    assert isinstance(held, np.ndarray)
    monkeypatch.setattr("aoq.data.inputs._HELD", 0)
    on_disk = inputs.view(dataset).features
    assert isinstance(on_disk, ImagesOnDemand)
    np.testing.assert_array_equal(on_disk[np.arange(5)], held)


def test_inputs_are_read_back(towers: TinyModels) -> None:
    inputs = replace(
        images_by(towers.clip, "pooled"),
        texts=TextSource.of_tower(str(towers.bert), Output("mean"), prompt="a photo of {}"),
    )
    assert Inputs.from_dict(inputs.as_dict()) == inputs
    for damaged in ({"images": 3, "texts": None}, {"images": {}, "texts": None}):
        with pytest.raises(UserError):
            Inputs.from_dict(damaged)


@pytest.mark.parametrize(
    ("kept", "wanted", "read"),
    [
        ("cls-bfloat16", "auto", "cls-bfloat16"),
        ("cls-bfloat16", "float32", "cls"),
        ("cls", "bfloat16", "cls-bfloat16"),
        ("pooled-bfloat16", "auto", "cls"),
    ],
)
def test_vectors_of_the_tower_are_used_in_the_precision_they_have(
    towers: TinyModels, kept: str, wanted: TowerPrecision, read: str
) -> None:
    config = ModelConfig(
        name="towers",
        image=str(towers.vit),
        text=str(towers.bert),
        image_pooling="cls",
        image_precision=wanted,
    )
    images = find_inputs(config, images_by(towers.vit, kept).images).images
    assert images is not None
    assert images.output == read
    assert images.load().id == images.id
