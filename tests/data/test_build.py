"""Data set folders: complete and readable, or not there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aoq.data.build import build_dataset, build_from_regions, build_scenes
from aoq.data.checks.dataset import check_dataset
from aoq.data.sources.records import Record
from aoq.data.splits import dataset_boxes, open_dataset, region_source, splits_of, training_captions
from aoq.errors import UserError
from aoq.features.bottom_up import BottomUpFile
from aoq.features.extract import extract_pictures
from aoq.features.regions import DEFAULT_SOURCE, RegionSource, grid_boxes
from aoq.features.tables import KeptRegions, RegionFolder, region_folder, write_folder
from aoq.manifest import NAME
from aoq.storage import EVENTS
from tests.commands import aoq
from tests.features.cases import bottom_up_line

pytestmark = pytest.mark.usefixtures("mean_colour")


@pytest.fixture
def records(tmp_path: Path) -> list[Record]:
    (tmp_path / "pictures").mkdir()
    made = []
    for number, split in enumerate(("train", "test", "train", "dev")):
        picture = tmp_path / "pictures" / f"{number}.png"
        Image.new("RGB", (8, 8), (number * 10,) * 3).save(picture)
        captions = tuple(f"caption {k} of image {number}" for k in range(number + 1))
        ids = tuple(f"{number}#{k}" for k in range(number + 1))
        made.append(Record(f"image {number}", picture, split, captions, ids))
    return made


def contents(folder: Path) -> list[Path]:
    """Everything in a folder; the feature cache may grow."""
    return sorted(path for path in folder.rglob("*") if "cache" not in path.parts)


def test_a_built_data_set_opens_with_all_that_went_in(
    tmp_path: Path, records: list[Record]
) -> None:
    folder = tmp_path / "built"
    build_dataset(records, folder, name="mine")
    assert splits_of(folder) == ("train", "dev", "test")
    train = open_dataset(folder, "train")
    assert train.name == "mine"
    assert train.image_ids == ("image 0", "image 2")
    assert np.asarray(train.features)[:, 0, 0].tolist() == [0, 20]
    assert train.captions == records[0].captions + records[2].captions
    assert train.caption_ids == ("0#0", "2#0", "2#1", "2#2")
    assert train.positives.texts_of(1).tolist() == [1, 2, 3]
    assert train.pictures == (records[0].picture, records[2].picture)
    assert len(training_captions(folder)) == 1 + 3 + 4
    report = check_dataset(folder)
    assert report.errors == ()
    assert report.splits[0].captions == 4


def test_the_manifest_says_what_made_the_features(tmp_path: Path, records: list[Record]) -> None:
    build_dataset(records, tmp_path / "built", name="mine")
    manifest = json.loads((tmp_path / "built" / "dataset.json").read_text())
    assert manifest["extractor"] == "efficientnet-lite0-6x6"
    assert manifest["backbone"] == "efficientnet-lite0"
    assert (manifest["grid"], manifest["regions"], manifest["width"]) == (6, 36, 1280)
    assert manifest["splits"]["train"]["images"] == 2
    assert set(manifest["splits"]["dev"]["sha256"]) == {"dev.json", "dev.features.npy"}


@pytest.mark.parametrize("grid", [1, 2, 3])
def test_a_coarser_grid_gives_fewer_regions_and_the_manifest_says_so(
    tmp_path: Path, records: list[Record], grid: int
) -> None:
    source = RegionSource(grid=grid)
    build_dataset(records, tmp_path / "mine", name="mine", source=source)
    build_scenes(tmp_path / "scenes", size="tiny", source=source)
    for folder in (tmp_path / "mine", tmp_path / "scenes"):
        manifest = json.loads((folder / "dataset.json").read_text())
        assert (manifest["grid"], manifest["regions"]) == (grid, grid * grid)
        assert region_source(folder) == source
        for split in splits_of(folder):
            assert open_dataset(folder, split).features.shape[1:] == (grid * grid, 1280)
        assert check_dataset(folder).errors == ()
    assert np.asarray(open_dataset(tmp_path / "mine", "train").features)[:, -1, -1].tolist() == [
        0,
        20,
    ]


def test_the_same_records_give_the_same_files(tmp_path: Path, records: list[Record]) -> None:
    for name in ("a", "b"):
        build_dataset(records, tmp_path / name, name="mine")
    files = [path for path in (tmp_path / "a").iterdir() if path.name not in (EVENTS, NAME)]
    assert len(files) == 7
    for path in files:
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_what_exists_stays_unless_forced(tmp_path: Path, records: list[Record]) -> None:
    build_dataset(records, tmp_path / "built", name="mine")
    before = contents(tmp_path)
    with pytest.raises(UserError, match="built exists already"):
        build_dataset(records, tmp_path / "built", name="other")
    assert contents(tmp_path) == before
    build_dataset(records, tmp_path / "built", name="other", force=True)
    assert open_dataset(tmp_path / "built", "train").name == "other"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    "files",
    [
        {"thesis.tex": "years of work"},
        {"dataset.json": '{"dataset": "flickr8k", "images": []}', "a.jpg": "a picture"},
        {"dataset.json": "not a JSON"},
        {"config.toml": "[model]"},
    ],
)
def test_a_folder_that_is_not_a_data_set_is_never_replaced(
    tmp_path: Path, records: list[Record], files: dict[str, str], force: bool
) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    for name, text in files.items():
        (taken / name).write_text(text)
    before = contents(tmp_path)
    sentence = "taken exists and aoq did not write it"
    with pytest.raises(UserError, match=sentence):
        build_dataset(records, taken, name="mine", force=force)
    with pytest.raises(UserError, match=sentence):
        build_scenes(taken, size="tiny", force=force)
    assert contents(tmp_path) == before
    assert {path.name: path.read_text() for path in taken.iterdir()} == files


def test_a_file_in_the_way_is_never_replaced(tmp_path: Path, records: list[Record]) -> None:
    (tmp_path / "taken").write_text("years of work")
    with pytest.raises(UserError, match="taken exists and aoq did not write it"):
        build_dataset(records, tmp_path / "taken", name="mine", force=True)
    assert (tmp_path / "taken").read_text() == "years of work"


@pytest.mark.parametrize("force", [False, True])
def test_an_empty_folder_is_filled(tmp_path: Path, records: list[Record], force: bool) -> None:
    (tmp_path / "built").mkdir()
    build_dataset(records, tmp_path / "built", name="mine", force=force)
    assert open_dataset(tmp_path / "built", "train").name == "mine"


def test_a_forced_build_that_fails_leaves_the_earlier_one(
    tmp_path: Path, records: list[Record]
) -> None:
    build_dataset(records, tmp_path / "built", name="mine")
    records[1].picture.write_text("no picture")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"1\.png is not a picture"):
        build_dataset(records, tmp_path / "built", name="other", force=True)
    assert contents(tmp_path) == before
    assert open_dataset(tmp_path / "built", "train").name == "mine"


def test_bad_pictures_of_all_splits_come_in_one_report_and_nothing_is_written(
    tmp_path: Path, records: list[Record]
) -> None:
    for record in records[1:]:
        record.picture.write_text(f"no picture {record.image_id}")
    before = contents(tmp_path)
    with pytest.raises(UserError) as caught:
        build_dataset(records, tmp_path / "built", name="mine")
    assert len(caught.value.problems) == 3
    assert contents(tmp_path) == before


def test_records_that_are_not_a_data_set_are_refused(tmp_path: Path, records: list[Record]) -> None:
    first = records[0]
    cases: dict[str, list[Record]] = {
        "There are no records": [],
        "image 0 is in 'validation'": [replace(first, split="validation")],
        "image 0 is in train and in dev": [first, replace(first, split="dev", caption_ids=("x",))],
        "image 0 has no caption": [replace(first, captions=(), caption_ids=())],
        "no caption or an empty one": [replace(first, captions=(" ",))],
        "image 0 has 1 captions and 2 ids": [replace(first, caption_ids=("a", "b"))],
        "image 0 has no picture at": [replace(first, picture=tmp_path / "none.png")],
        "The caption id 0#0 occurs twice": [first, replace(records[1], caption_ids=("0#0", "x"))],
        "The image id image 0 occurs twice": [first, replace(first, caption_ids=("x",))],
    }
    before = contents(tmp_path)
    for sentence, bad in cases.items():
        with pytest.raises(UserError, match=sentence):
            build_dataset(bad, tmp_path / "built", name="mine")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("spelling", ["built", "pictures/../built", "link"])
def test_a_data_set_that_holds_the_pictures_is_never_replaced(
    tmp_path: Path, records: list[Record], spelling: str
) -> None:
    build_dataset(records, tmp_path / "built", name="mine")
    (tmp_path / "link").symlink_to(tmp_path / "built")
    inside = tmp_path / "built" / "0.png"
    records[0].picture.rename(inside)
    for picture in (inside, tmp_path / "link" / "0.png", tmp_path / "pictures" / "0.png"):
        if picture.parent.name == "pictures":
            picture.symlink_to(inside)
        moved = [replace(records[0], picture=picture), *records[1:]]
        with pytest.raises(UserError, match=rf"{spelling} holds .*0\.png, which is an input"):
            build_dataset(moved, tmp_path / spelling, name="mine", force=True)
        assert inside.is_file()


def test_a_picture_that_is_a_link_in_the_data_set_is_kept_too(
    tmp_path: Path, records: list[Record]
) -> None:
    build_dataset(records, tmp_path / "built", name="mine")
    link = tmp_path / "built" / "0.png"
    link.symlink_to(records[0].picture)
    with pytest.raises(UserError, match=r"built holds .*0\.png, which is an input"):
        build_dataset([replace(records[0], picture=link)], tmp_path / "built", name="m", force=True)
    assert link.is_symlink()


def test_generated_scenes_carry_their_pictures_with_them(tmp_path: Path) -> None:
    build_scenes(tmp_path / "scenes", size="tiny", seed=3)
    (tmp_path / "scenes").rename(tmp_path / "moved")
    dataset = open_dataset(tmp_path / "moved", "train")
    assert dataset.name == "scenes-tiny"
    assert all(path is not None and path.is_file() for path in dataset.pictures)
    assert dataset.pictures[0] is not None
    assert dataset.pictures[0].is_relative_to(tmp_path / "moved" / "source" / "pictures")
    assert check_dataset(tmp_path / "moved").errors == ()


def test_scenes_of_an_unknown_size_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="of the size 'huge'"):
        build_scenes(tmp_path / "scenes", size="huge")
    assert contents(tmp_path) == []


# Regions that are there already


def region_folder_of(records: list[Record], folder: Path, *, without: str = "") -> RegionFolder:
    """What `aoq extract` makes of the records' pictures."""
    pictures = [record.picture for record in records if record.image_id != without]
    stored = extract_pictures(pictures, DEFAULT_SOURCE).stored
    with region_folder(folder, force=False) as temporary:
        names = [picture.name for picture in pictures]
        write_folder(KeptRegions(names, pictures, stored, DEFAULT_SOURCE), temporary)
    return RegionFolder.open(folder)


def test_a_folder_of_regions_gives_the_data_set_that_its_pictures_give(
    tmp_path: Path, records: list[Record]
) -> None:
    build_dataset(records, tmp_path / "pictures-built", name="mine")
    table = region_folder_of(records[::-1], tmp_path / "regions")
    build_from_regions(records, tmp_path / "regions-built", name="mine", regions=table)
    for path in (tmp_path / "pictures-built").iterdir():
        if path.name not in (EVENTS, NAME):
            assert path.read_bytes() == (tmp_path / "regions-built" / path.name).read_bytes()


def test_pictures_need_not_be_there_where_regions_are(
    tmp_path: Path, records: list[Record]
) -> None:
    table = region_folder_of(records, tmp_path / "regions")
    records[0].picture.unlink()
    build_from_regions(records, tmp_path / "built", name="mine", regions=table)
    train = open_dataset(tmp_path / "built", "train")
    assert train.pictures == (None, records[2].picture)
    assert np.asarray(train.features)[:, 0, 0].tolist() == [0, 20]


def test_images_without_regions_are_named_together(tmp_path: Path, records: list[Record]) -> None:
    table = region_folder_of(records, tmp_path / "regions", without="image 1")
    elsewhere = replace(records[3], picture=tmp_path / "unknown.png")
    with pytest.raises(UserError) as caught:
        build_from_regions([*records[:3], elsewhere], tmp_path / "b", name="m", regions=table)
    assert [problem.split(" has no regions in ")[0] for problem in caught.value.problems] == [
        "image 1",
        "image 3",
    ]
    assert not (tmp_path / "b").exists()


def test_two_images_never_share_regions(tmp_path: Path, records: list[Record]) -> None:
    table = region_folder_of(records, tmp_path / "regions")
    namesake = replace(records[1], picture=tmp_path / "other" / "0.png")
    with pytest.raises(UserError, match=r"image 1 and image 0 are both the image 0"):
        build_from_regions([records[0], namesake], tmp_path / "b", name="m", regions=table)


def test_boxes_of_a_detector_are_kept_with_the_data_set(
    tmp_path: Path, records: list[Record]
) -> None:
    lines = [bottom_up_line(str(number), seed=number, boxes=5) for number in range(len(records))]
    (tmp_path / "detected.tsv").write_bytes(b"".join(lines))
    table = BottomUpFile.open(tmp_path / "detected.tsv")
    folder = tmp_path / "built"
    build_from_regions(records, folder, name="mine", regions=table)
    assert region_source(folder) is None
    boxes = dataset_boxes(folder, "train")
    assert boxes is not None
    for row, number in enumerate((0, 2)):
        features, expected = table.read(number)
        np.testing.assert_array_equal(boxes[row], expected)
        np.testing.assert_array_equal(open_dataset(folder, "train").features[row], features)
    assert check_dataset(folder).errors == ()
    manifest = json.loads((folder / "dataset.json").read_text())
    assert "train.boxes.npy" in manifest["splits"]["train"]["sha256"]
    assert manifest["extractor"] == "bottom-up"


def test_boxes_of_a_grid_take_no_memory(tmp_path: Path, records: list[Record]) -> None:
    build_dataset(records, tmp_path / "built", name="mine", source=RegionSource(grid=3))
    boxes = dataset_boxes(tmp_path / "built", "train")
    assert boxes is not None
    assert boxes.shape == (2, 9, 4)
    assert boxes.strides[0] == 0
    np.testing.assert_array_equal(boxes[1], grid_boxes(3))


def test_bad_items_are_skipped_and_listed_if_asked_for(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        Image.new("RGB", (8, 8), (ord(name),) * 3).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    lines = ["image,caption", *(f"{name}.png,a picture of {name}" for name in "abcd")]
    lines += ["a.png,", "missing.png,nothing to see", "broken.png,half a picture"]
    captions = tmp_path / "captions.csv"
    captions.write_text("\n".join(lines))
    refused = aoq("data", "build", captions, "--out", tmp_path / "built")
    assert refused.returncode == 2
    assert "is empty" in refused.stderr
    assert "missing.png is not in" in refused.stderr
    assert "--skip-bad" in refused.stderr
    done = aoq("data", "build", captions, "--out", tmp_path / "built", "--skip-bad")
    assert "3 unusable items left out" in done.stderr
    kept = [
        json.loads(line) for line in (tmp_path / "built" / "skipped.jsonl").read_text().splitlines()
    ]
    assert len(kept) == 3
    for name, line in zip(("a.png", "missing.png", "broken.png"), kept, strict=True):
        assert name in line["problem"]
    images = {
        i
        for split in splits_of(tmp_path / "built")
        for i in open_dataset(tmp_path / "built", split).image_ids
    }
    assert images == {"a.png", "b.png", "c.png", "d.png"}


def test_a_folder_needs_a_captions_file(tmp_path: Path) -> None:
    refused = aoq("data", "build", tmp_path, "--out", tmp_path / "built")
    assert refused.returncode == 2
    assert "expected a captions file" in refused.stderr
    assert "--add" in refused.stderr
