"""The doctor names everything that is wrong, once, with its place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aoq.data.check import check_dataset
from aoq.errors import UserError
from aoq.storage import hash_file


def write_precomp(folder: Path, split: str, *, images: int = 3, seed: int = 0) -> None:
    features = np.random.default_rng([seed, len(split), ord(split[0])]).random((images, 2, 4))
    np.save(folder / f"{split}_ims.npy", features.astype(np.float32))
    lines = [f"caption number {n} of {split}\n" for n in range(5 * images)]
    (folder / f"{split}_caps.txt").write_text("".join(lines))


def change_rows(folder: Path, split: str, changes: dict[int, object]) -> None:
    path = folder / f"{split}_ims.npy"
    features = np.load(path)
    for row, values in changes.items():
        features[row] = values
    np.save(path, features)


def change_captions(folder: Path, split: str, changes: dict[int, str]) -> None:
    path = folder / f"{split}_caps.txt"
    lines = path.read_text().splitlines()
    for line, caption in changes.items():
        lines[line] = caption
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "dev", "test"):
        write_precomp(tmp_path, split)
    return tmp_path


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A folder as `build_dataset` writes it, with an image in train and in test."""
    splits = {}
    for number, split in enumerate(("train", "test")):
        features, listing = tmp_path / f"{split}.features.npy", tmp_path / f"{split}.json"
        np.save(features, np.full((1, 2, 3), number, np.float16))
        value = {
            "images": [{"id": "x", "picture": "/x.png"}],
            "captions": [{"id": split, "text": "a red dog sleeps"}],
            "pairs": [[0, 0]],
        }
        listing.write_text(json.dumps(value))
        splits[split] = {"sha256": {file.name: hash_file(file) for file in (features, listing)}}
    manifest = {"version": 1, "name": "small", "splits": splits}
    (tmp_path / "dataset.json").write_text(json.dumps(manifest))
    return tmp_path


def test_a_sound_folder_has_counts_and_no_complaints(folder: Path) -> None:
    report = check_dataset(folder)
    assert (report.errors, report.warnings) == ((), ())
    assert report.facts["train images"] == 3
    assert report.facts["test captions"] == 15
    report.raise_for_errors()


def test_all_errors_come_in_one_report_and_nothing_is_written(folder: Path) -> None:
    change_rows(folder, "train", {1: np.nan, 2: np.inf})
    change_captions(folder, "dev", {3: ""})
    (folder / "test_ims.npy").write_bytes((folder / "test_ims.npy").read_bytes()[:-1])
    before = sorted(folder.iterdir())
    report = check_dataset(folder)
    assert len(report.errors) == 3
    text = "\n".join(report.errors)
    assert "dev_caps.txt, line 4: the caption is empty" in text
    assert "test_ims.npy cannot be read as a NumPy array: it is truncated" in text
    assert "train_ims.npy, image row 1: NaN or infinite features, 2 such rows" in text
    with pytest.raises(UserError, match="line 4"):
        report.raise_for_errors()
    assert sorted(folder.iterdir()) == before


def test_counts_that_do_not_fit_are_an_error(folder: Path) -> None:
    (folder / "dev_caps.txt").write_text("only one caption\n")
    assert "dev_caps.txt has 1 captions" in check_dataset(folder).errors[0]


def test_splits_of_different_width_are_an_error(folder: Path) -> None:
    np.save(folder / "dev_ims.npy", np.ones((3, 2, 7), np.float32))
    assert "dev_ims.npy has images of (2, 7)" in check_dataset(folder).errors[0]


def test_text_that_is_no_utf8_is_an_error_with_its_line(folder: Path) -> None:
    path = folder / "train_caps.txt"
    path.write_bytes(path.read_bytes().replace(b"number 6", b"number \xe9"))
    assert "train_caps.txt, line 7: byte 0xe9" in check_dataset(folder).errors[0]


def test_equal_features_in_two_splits_without_ids_are_one_image(folder: Path) -> None:
    change_rows(folder, "test", {2: np.load(folder / "train_ims.npy")[1]})
    (error,) = check_dataset(folder).errors
    assert "test_ims.npy, image row 2: the image test:2 is also in train, row 1" in error


def test_ids_say_which_image_is_in_two_splits(folder: Path) -> None:
    for split, ids in (("train", "1 2 3"), ("dev", "4 5 6"), ("test", "7 2 9")):
        (folder / f"{split}_ids.txt").write_text(ids.replace(" ", "\n") + "\n")
    (error,) = check_dataset(folder).errors
    assert "test_ims.npy, image row 1: the image 2 is also in train, row 1" in error


def test_the_test_set_may_be_part_of_testall(folder: Path) -> None:
    write_precomp(folder, "testall", images=4)
    change_rows(folder, "testall", dict(enumerate(np.load(folder / "test_ims.npy"))))
    assert check_dataset(folder).errors == ()
    change_rows(folder, "testall", {3: np.load(folder / "train_ims.npy")[0]})
    assert "testall_ims.npy, image row 3" in check_dataset(folder).errors[0]


def test_an_image_in_two_splits_of_a_built_folder_is_an_error(built: Path) -> None:
    (error,) = check_dataset(built).errors
    assert "test.features.npy, image row 0: the image x is also in train" in error


def test_a_file_that_changed_since_it_was_built_is_an_error(built: Path) -> None:
    path = built / "train.json"
    path.write_text(path.read_text().replace("red", "blue"))
    assert f"{path} is not what was built" in check_dataset(built).errors[0]


@pytest.mark.parametrize(
    ("described", "sentence"),
    [
        ({}, "sha256 of train is None; expected the hashes of train.features.npy and train.json"),
        (3, "sha256 of train is None"),
        ({"sha256": ["train.json"]}, "sha256 of train is ['train.json']"),
        ({"sha256": {}}, "sha256 of train is {}"),
    ],
)
def test_a_manifest_without_hashes_is_an_error(
    built: Path, described: object, sentence: str
) -> None:
    path = built / "dataset.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["train"] = described
    path.write_text(json.dumps(manifest))
    assert f"{path}: {sentence}" in check_dataset(built).errors[0]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gone.npy", "dataset.json names 'gone.npy', which cannot be read"),
        ("nul\0", "dataset.json names 'nul\\x00', which cannot be read"),
        ("../dataset.json", "dataset.json: '../dataset.json' is no file of the data set"),
    ],
)
def test_a_file_that_only_the_manifest_knows_is_an_error(
    built: Path, name: str, sentence: str
) -> None:
    path = built / "dataset.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["train"]["sha256"][name] = "0"
    path.write_text(json.dumps(manifest))
    assert sentence in check_dataset(built).errors[0]


def test_captions_that_are_byte_strings_are_one_error_with_the_first_place(folder: Path) -> None:
    change_captions(
        folder, "dev", {2: "b'a dog sleeps'", 3: 'b"a dog\'s hat"', 4: "b' is a letter"}
    )
    (error,) = check_dataset(folder).errors
    assert "dev_caps.txt, line 3: the caption \"b'a dog sleeps'\" is a byte string" in error
    assert "2 such captions in all" in error
    assert "caption.decode()" in error


def test_byte_strings_in_a_built_folder_are_an_error(built: Path) -> None:
    path = built / "test.json"
    path.write_text(path.read_text().replace("a red dog sleeps", "b'a red dog sleeps'"))
    assert any(
        "test.json, captions[0]: the caption \"b'a red" in e for e in check_dataset(built).errors
    )


def test_odd_things_are_one_warning_each_with_count_and_example(folder: Path) -> None:
    change_rows(folder, "train", {2: np.load(folder / "train_ims.npy")[0]})
    change_captions(
        folder,
        "dev",
        {0: "A dog sleeps", 1: "a dog sleeps", 7: "a dog sleeps", 8: "dog", 9: "so " * 61},
    )
    report = check_dataset(folder)
    assert report.errors == ()
    twice, repeated, short, long = report.warnings
    assert twice == (
        "1 pictures are there twice (equal features), "
        "the first is train:2 in train and train:0 in train."
    )
    assert "1 captions are also those of another image" in repeated
    assert "'a dog sleeps' of dev:1 in dev" in repeated
    assert "1 captions have fewer than 3 words, the first is 'dog' of dev:1" in short
    assert "1 captions have more than 60 words" in long
