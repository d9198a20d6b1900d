"""Pictures of every kind become regions; what is no picture is refused by name."""

from __future__ import annotations

import builtins
import io
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from aoq.data import extract
from aoq.data.extract import EfficientNetLite, Pixels, cache_features, decode, write_features
from aoq.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AOQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class CountingExtractor:
    """Stands in for the network: the mean colour of the picture in every feature."""

    batches: ClassVar[list[int]] = []

    def __call__(self, pixels: list[Pixels]) -> np.ndarray[Any, Any]:
        CountingExtractor.batches.append(len(pixels))
        means = np.array([picture.mean() for picture in pixels], np.float16)
        return np.broadcast_to(means[:, None, None], (len(pixels), 36, 1280))

    @classmethod
    def seen(cls) -> int:
        return sum(cls.batches)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> type[CountingExtractor]:
    class WithShape(CountingExtractor):
        id, width = "counting", 1280

    CountingExtractor.batches.clear()
    monkeypatch.setattr(extract, "EfficientNetLite", WithShape)
    return CountingExtractor


def grey(path: Path, value: int) -> Path:
    Image.new("RGB", (30, 20), (value, value, value)).save(path)
    return path


def gradient(size: tuple[int, int] = (80, 60)) -> Image.Image:
    rows, columns = np.mgrid[: size[1], : size[0]]
    red, green = 255 * columns / size[0], 255 * rows / size[1]
    return Image.fromarray(np.stack([red, green, red], axis=-1).astype(np.uint8))


def test_the_folded_network_computes_what_the_packaged_one_does() -> None:
    import torch
    from torch.nn.functional import adaptive_avg_pool2d

    pixels = [np.asarray(gradient((224, 224))), np.asarray(gradient((224, 224)).rotate(90))]
    batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    with torch.inference_mode():
        cells = extract.load_network().extract_features((batch.float() - 127) / 128)
        expected = adaptive_avg_pool2d(cells, 6).numpy()
    regions = EfficientNetLite()(pixels)
    assert regions.shape == (2, 36, 1280)
    assert regions.dtype == np.float16
    by_rows = expected.reshape(2, 1280, 36).transpose(0, 2, 1)
    assert np.linalg.norm(regions - by_rows) < 1e-3 * np.linalg.norm(by_rows)


def test_features_stand_in_the_order_of_the_pictures(
    tmp_path: Path, counting: type[CountingExtractor]
) -> None:
    pictures = [grey(tmp_path / f"{value}.png", value) for value in (90, 10, 50, 70, 30)]
    write_features(cache_features([*pictures, pictures[1]]), tmp_path / "out.npy")
    features = np.load(tmp_path / "out.npy")
    assert features.shape == (6, 36, 1280)
    assert features.dtype == np.float16
    assert features[:, 0, 0].tolist() == [90, 10, 50, 70, 30, 10]
    assert counting.seen() == 5


def stored_cells(folder: Path) -> list[Path]:
    """Two pictures' regions as the cache keeps them, every number its own."""
    random = np.random.default_rng(0)
    places = [folder / "a.npy", folder / "b.npy"]
    for place in places:
        np.save(place, random.uniform(0, 6, size=(36, 1280)).astype(np.float16))
    return places


@pytest.mark.parametrize("grid", extract.GRIDS)
def test_a_region_of_a_coarser_grid_is_the_mean_of_its_neighbours(
    tmp_path: Path, grid: int
) -> None:
    stored = stored_cells(tmp_path)
    write_features(stored, tmp_path / "out.npy", grid=grid)
    features = np.load(tmp_path / "out.npy")
    assert features.shape == (2, grid * grid, 1280)
    assert features.dtype == np.float16
    side = 6 // grid
    for place, picture in zip(stored, features, strict=True):
        cells = np.load(place).astype(np.float64)
        for row, column in np.ndindex(grid, grid):
            members = [
                cells[6 * (side * row + down) + side * column + right]
                for down, right in np.ndindex(side, side)
            ]
            expected = np.mean(members, axis=0)
            # half a step of float16 between 4 and 8, and what single precision adds to it
            assert np.abs(picture[grid * row + column] - expected).max() <= 2**-9 + 1e-5


def test_coarser_grids_are_those_of_adaptive_pooling(tmp_path: Path) -> None:
    import torch
    from torch.nn.functional import adaptive_avg_pool2d

    place = stored_cells(tmp_path)[0]
    cells = torch.from_numpy(np.load(place)).float().mT.reshape(1, 1280, 6, 6)
    for grid in extract.GRIDS:
        expected = adaptive_avg_pool2d(cells, grid)[0].flatten(1).mT
        pooled = extract.pool_regions(np.load(place), grid)
        np.testing.assert_allclose(pooled, expected.numpy(), rtol=1e-3)


def test_the_kept_grid_is_written_as_it_is(tmp_path: Path) -> None:
    stored = stored_cells(tmp_path)
    write_features(stored, tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), [np.load(path) for path in stored])


def test_pooling_adds_up_in_single_precision() -> None:
    large = np.full((36, 2), 60_000, np.float16)  # two of them are more than float16 can hold
    assert (extract.pool_regions(large, 1) == large[0]).all()


def test_a_second_grid_extracts_nothing(tmp_path: Path, counting: type[CountingExtractor]) -> None:
    pictures = [grey(tmp_path / f"{value}.png", value) for value in (90, 10)]
    for grid in extract.GRIDS:
        write_features(cache_features(pictures), tmp_path / f"{grid}.npy", grid=grid)
        assert np.load(tmp_path / f"{grid}.npy")[:, -1, 0].tolist() == [90, 10]
    assert counting.seen() == 2


@pytest.mark.parametrize("grid", [0, 4, 7, -1])
def test_a_grid_that_would_cut_cells_is_refused(grid: int) -> None:
    with pytest.raises(UserError, match=f"a grid of {grid} x {grid} regions.*expected 1, 2, 3 or"):
        extract.require_grid(grid)


def test_an_interrupted_extraction_goes_on_where_it_stopped(
    tmp_path: Path, counting: type[CountingExtractor], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    pictures = [grey(tmp_path / f"{value}.png", value) for value in range(10)]
    store, places = extract._store, []

    def interrupted(rows: Any, place: Path) -> None:
        places.append(place)
        if len(places) > extract.BATCH:
            raise KeyboardInterrupt
        store(rows, place)

    monkeypatch.setattr(extract, "_store", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache_features(pictures)
    kept = [path for path in cache.rglob("*") if path.is_file()]
    assert sorted(kept) == sorted(places[: extract.BATCH])
    monkeypatch.setattr(extract, "_store", store)
    counting.batches.clear()
    cache_features(pictures)
    assert counting.seen() == len(pictures) - extract.BATCH


def test_the_cache_knows_a_picture_by_its_content(
    tmp_path: Path, counting: type[CountingExtractor], cache: Path
) -> None:
    picture = grey(tmp_path / "a.png", 40)
    cache_features([picture])
    cache_features([picture.rename(tmp_path / "moved.png")])
    assert counting.seen() == 1
    (stored,) = cache.rglob("*.npy")
    assert stored.parent.parent == cache / "features" / "counting"
    assert stored.name.startswith(stored.parent.name)
    cache_features([grey(tmp_path / "moved.png", 41)])
    assert counting.seen() == 2


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AOQ_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert extract.cache_folder() == Path("/elsewhere/aoq")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert extract.cache_folder() == Path.home() / ".cache" / "aoq"


def test_greyscale_cmyk_and_palettes_are_converted(tmp_path: Path) -> None:
    flat = Image.new("RGB", (40, 40), (120, 120, 120))
    for mode, suffix in (
        ("L", "png"),
        ("1", "png"),
        ("P", "gif"),
        ("CMYK", "jpg"),
        ("RGB", "webp"),
    ):
        path = tmp_path / f"{mode}.{suffix}"
        flat.convert(mode).save(path)
        assert decode(path).shape == (224, 224, 3)
        if mode != "1":
            assert abs(float(decode(path).mean()) - 120) < 5


def test_sixteen_bit_greyscale_keeps_its_brightness(tmp_path: Path) -> None:
    Image.fromarray(np.full((20, 20), 120 << 8, np.uint16)).save(tmp_path / "deep.png")
    assert (decode(tmp_path / "deep.png") == 120).all()


def test_transparency_becomes_white(tmp_path: Path) -> None:
    Image.new("RGBA", (20, 20), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (decode(tmp_path / "clear.png") == 255).all()


def test_the_camera_orientation_is_followed(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    gradient().save(tmp_path / "turned.jpg", exif=exif, quality=95)
    gradient().rotate(-90, expand=True).save(tmp_path / "upright.jpg", quality=95)
    difference = np.abs(
        decode(tmp_path / "turned.jpg").astype(int) - decode(tmp_path / "upright.jpg")
    )
    assert difference.mean() < 3


def test_an_animation_is_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    assert decode(tmp_path / "moving.gif")[0, 0].tolist() == [255, 0, 0]


def damaged(folder: Path) -> list[Path]:
    """A file that is no picture, an empty one, and one cut in half."""
    (folder / "text.jpg").write_text("no picture")
    (folder / "empty.png").write_bytes(b"")
    buffer = io.BytesIO()
    gradient((300, 300)).save(buffer, "JPEG")
    (folder / "cut.jpg").write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    return [folder / "text.jpg", folder / "empty.png", folder / "cut.jpg"]


def test_what_is_no_picture_is_refused_together_before_anything_is_computed(
    tmp_path: Path, counting: type[CountingExtractor], cache: Path
) -> None:
    text, empty, cut = damaged(tmp_path)
    with pytest.raises(UserError) as caught:
        cache_features([grey(tmp_path / "a.png", 1), text, empty, cut])
    assert [problem.split()[0] for problem in caught.value.problems] == [str(text), str(empty)]
    assert "is no picture" in str(caught.value)
    assert counting.seen() == 0
    assert not cache.exists()


def test_truncated_pictures_are_refused_and_the_others_are_kept(
    tmp_path: Path, counting: type[CountingExtractor], cache: Path
) -> None:
    *_, cut = damaged(tmp_path)
    with pytest.raises(UserError, match=f"{cut} is damaged or truncated"):
        cache_features([cut, grey(tmp_path / "a.png", 1)])
    assert len(list(cache.rglob("*.npy"))) == counting.seen() == 1


@pytest.mark.parametrize("side", [10_001, 14_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path: Path, side: int) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (side, side)).save(path)
    problem = extract.find_problem(path)
    assert problem == f"{path} has more than 100,000,000 pixels; make the picture smaller."


def test_a_missing_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.png cannot be read \(No such file"):
        cache_features([tmp_path / "none.png"])


def test_missing_packages_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("efficientnet"):
            raise ImportError("not there", name=name)
        return original(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r'efficientnet.*pip install "aoq\[extract\]"'):
        EfficientNetLite()
