"""Regions know what made them and where they lie, and single pictures are treated alike."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

from aoq.data.splits import dataset_boxes, region_source
from aoq.errors import UserError
from aoq.features.backbones import load_backbone
from aoq.features.extract import extract_pictures, load_regions
from aoq.features.pictures import decode
from aoq.features.regions import (
    GRIDS,
    PictureReader,
    RegionSource,
    grid_boxes,
    one_core_each,
    pool_regions,
)
from tests.features.cases import photos


def cells() -> np.ndarray[Any, Any]:
    """Regions of a picture as the cache keeps them, every number its own."""
    return np.random.default_rng(0).uniform(0, 6, size=(36, 1280)).astype(np.float16)


@pytest.mark.parametrize("grid", GRIDS)
def test_a_region_of_a_coarser_grid_is_the_mean_of_its_neighbours(grid: int) -> None:
    kept = cells()
    pooled = pool_regions(kept, grid)
    assert pooled.shape == (grid * grid, 1280)
    assert pooled.dtype == np.float16
    side = 6 // grid
    for row, column in np.ndindex(grid, grid):
        members = [
            kept[6 * (side * row + down) + side * column + right].astype(np.float64)
            for down, right in np.ndindex(side, side)
        ]
        # half a step of float16 between 4 and 8, and what single precision adds to it
        difference = np.abs(pooled[grid * row + column] - np.mean(members, axis=0))
        assert difference.max() <= 2**-9 + 1e-5


def test_coarser_grids_are_those_of_adaptive_pooling() -> None:
    from torch.nn.functional import adaptive_avg_pool2d

    kept = cells()
    as_map = torch.from_numpy(kept).float().mT.reshape(1, 1280, 6, 6)
    for grid in GRIDS:
        expected = adaptive_avg_pool2d(as_map, grid)[0].flatten(1).mT
        np.testing.assert_allclose(pool_regions(kept, grid), expected.numpy(), rtol=1e-3)


def test_the_kept_grid_stays_as_it_is() -> None:
    np.testing.assert_array_equal(pool_regions(cells(), 6), cells())


def test_pooling_adds_up_in_single_precision() -> None:
    large = np.full((36, 2), 60_000, np.float16)  # two of them are more than float16 can hold
    assert (pool_regions(large, 1) == large[0]).all()


@pytest.mark.parametrize("grid", [0, 4, 7, -1])
def test_a_grid_that_would_cut_cells_is_refused(grid: int) -> None:
    with pytest.raises(UserError, match=f"a grid of {grid} x {grid} regions.*expected 1, 2, 3 or"):
        RegionSource(grid=grid)


@pytest.mark.parametrize("grid", GRIDS)
def test_boxes_of_a_grid_tile_the_picture_row_by_row(grid: int) -> None:
    boxes = grid_boxes(grid)
    assert boxes.shape == (grid * grid, 4)
    assert boxes.dtype == np.float32
    for number, (left, top, right, bottom) in enumerate(boxes.tolist()):
        row, column = divmod(number, grid)
        assert (left, top) == pytest.approx((column / grid, row / grid))
        assert (right, bottom) == pytest.approx(((column + 1) / grid, (row + 1) / grid))


def manifest(folder: Path, **fields: Any) -> Path:
    """A built folder of four images with 36 regions, with these fields in its manifest."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "train.features.npy", np.zeros((4, 36, 2), np.float16))
    described = {"version": 1, "name": "made", "splits": {"train": {}}, **fields}
    (folder / "dataset.json").write_text(json.dumps(described))
    return folder


def test_a_data_set_says_what_made_its_regions(tmp_path: Path) -> None:
    earlier = manifest(tmp_path / "a", extractor="efficientnet-lite0-6x6", grid=6)
    assert region_source(earlier) == RegionSource()
    other = manifest(tmp_path / "b", backbone="some/model", extractor="model-abc-6x6", grid=6)
    source = region_source(other)
    assert source == RegionSource("some/model", "model-abc-6x6", 6)
    assert RegionSource.from_dict(json.loads(json.dumps(source.as_dict()))) == source


def test_regions_of_unknown_origin_have_no_source(tmp_path: Path, precomp: Path) -> None:
    assert region_source(precomp) is None
    assert region_source(manifest(tmp_path / "a")) is None
    assert region_source(manifest(tmp_path / "b", extractor="bottom-up")) is None


@pytest.mark.parametrize("fields", [{"grid": "6"}, {"grid": True}, {"grid": 5}, {"backbone": 3}])
def test_a_damaged_source_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    sound = {"extractor": "efficientnet-lite0-6x6", "grid": 6}
    folder = manifest(tmp_path / "a", **{**sound, **fields})
    with pytest.raises(UserError, match=r"is not a source of regions|cannot be pooled"):
        region_source(folder)


def test_boxes_are_those_of_the_grid_of_the_detector_or_unknown(
    tmp_path: Path, precomp: Path
) -> None:
    of_grid = dataset_boxes(
        manifest(tmp_path / "a", extractor="efficientnet-lite0-6x6", grid=6), "train"
    )
    assert of_grid is not None
    np.testing.assert_array_equal(of_grid, np.broadcast_to(grid_boxes(6), (4, 36, 4)))
    detected = manifest(tmp_path / "b", extractor="bottom-up")
    assert dataset_boxes(detected, "train") is None
    boxes = np.random.default_rng(0).random((4, 36, 4)).astype(np.float32)
    np.save(detected / "train.boxes.npy", boxes)
    np.testing.assert_array_equal(dataset_boxes(detected, "train"), boxes)
    assert dataset_boxes(precomp, "train") is None


def test_boxes_that_do_not_fit_the_features_are_refused(tmp_path: Path) -> None:
    wrong_grid = manifest(tmp_path / "a", extractor="efficientnet-lite0-6x6", grid=3)
    with pytest.raises(UserError, match=r"shape \(9, 4\); expected \(4, 36"):
        dataset_boxes(wrong_grid, "train")


@pytest.mark.parametrize("name", ["efficientnet-lite0", "vit"])
def test_a_single_picture_is_treated_like_those_of_a_build(
    tmp_path: Path, own_cache: Path, tiny_models: Path, name: str
) -> None:
    """To the last bit, as a file, its content or its pixels, from any thread, on any cores."""
    backbone = name if name == "efficientnet-lite0" else str(tiny_models / name)
    pictures = photos(tmp_path / "photos", 5)
    source = RegionSource.of_backbone(backbone, grid=3)
    stored = extract_pictures(pictures, source).stored
    torch.set_num_threads(2)
    try:
        reader = PictureReader(source)
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(4) as pool:
            as_files = list(pool.map(reader.regions, pictures))
            contents = [picture.read_bytes() for picture in pictures]
            as_bytes = list(pool.map(reader.regions, contents))
            as_pixels = [reader.regions(decode(picture, reader.canvas)) for picture in contents]
    finally:
        torch.set_num_threads(1)
    for picture, *read in zip(pictures, as_files, as_bytes, as_pixels, strict=True):
        expected = load_regions(stored[picture], source)
        for regions in read:
            np.testing.assert_array_equal(regions, expected)


def test_threads_of_the_network_leave_others_their_cores() -> None:
    torch.set_num_threads(2)
    try:
        with one_core_each() as cores, ThreadPoolExecutor(1) as others:
            assert {cores.submit(torch.get_num_threads).result() for _ in range(8)} == {1}
            assert others.submit(torch.get_num_threads).result() == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_a_reader_has_as_many_threads_as_it_is_given() -> None:
    """Where torch may use one core only, as in a thread of a server."""
    with one_core_each(3) as cores:
        together = Barrier(3)
        places = list(cores.map(lambda _: together.wait(timeout=10), range(3)))
    assert sorted(places) == [0, 1, 2]


def test_hostile_bytes_are_refused_with_a_sentence() -> None:
    reader = PictureReader(RegionSource())
    for bad in (b"", b"/etc/hostname"):
        with pytest.raises(UserError, match=r"The picture .*not a picture"):
            reader.regions(bad)


def test_other_weights_than_those_of_the_data_are_refused(
    tmp_path: Path, tiny_models: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_models / "vit", folder)
    source = RegionSource.of_backbone(str(folder))
    shutil.copytree(tiny_models / "siglip", folder, dirs_exist_ok=True)
    load_backbone.cache_clear()  # another process
    with pytest.raises(UserError, match=f"is not the network that made the features.*{source.id}"):
        PictureReader(source)


def test_a_backbone_in_a_folder_is_found_from_anywhere(
    tiny_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_models)
    assert Path(RegionSource.of_backbone("vit").backbone) == (tiny_models / "vit").resolve()
