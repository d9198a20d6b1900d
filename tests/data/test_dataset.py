"""Opening data sets in place: built folders and the precomp folders of the field."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset, splits_of, training_captions
from aoq.errors import UserError
from aoq.evaluation.protocols import first_texts
from aoq.types import Ids

RANDOM = np.random.default_rng(0)


def features(*shape: int) -> npt.NDArray[np.float32]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def write_precomp(
    folder: Path, split: str, array: npt.NDArray[np.float32], *, n_captions: int
) -> None:
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{split}_ims.npy", array)
    lines = [f"caption {n} of {split}\n" for n in range(n_captions)]
    (folder / f"{split}_caps.txt").write_text("".join(lines))


def write_built(folder: Path, listing: dict[str, object], *, rows: int = 2) -> None:
    folder.mkdir(exist_ok=True)
    manifest = {"version": 1, "name": "small", "splits": {"train": {}}}
    (folder / "dataset.json").write_text(json.dumps(manifest))
    (folder / "train.json").write_text(json.dumps(listing))
    np.save(folder / "train.features.npy", features(rows, 2, 3).astype(np.float16))


def listing(*, texts: tuple[str, ...] = ("a", "b", "c")) -> dict[str, object]:
    return {
        "images": [{"id": "x", "picture": "source/x.png"}, {"id": "y", "picture": "/y.png"}],
        "captions": [{"id": f"t{n}", "text": text} for n, text in enumerate(texts)],
        "pairs": [[0, 0], [1, 1], [1, 2]],
    }


def refusal(folder: Path, split: str) -> str:
    with pytest.raises(UserError) as caught:
        open_dataset(folder, split)
    return str(caught.value)


def test_a_precomp_folder_is_mapped_in_place(tmp_path: Path) -> None:
    array = features(3, 4, 5)
    write_precomp(tmp_path, "dev", array, n_captions=15)
    dataset = open_dataset(tmp_path, "dev")
    assert isinstance(dataset.features, np.memmap)
    np.testing.assert_array_equal(dataset.features, array)
    assert (len(dataset), dataset.n_texts) == (3, 15)
    assert dataset.positives.texts_of(1).tolist() == [5, 6, 7, 8, 9]
    assert dataset.image_ids[2] == "dev:2"
    assert dataset.caption_ids[11] == "dev:2#1"
    assert dataset.pictures == (None, None, None)


def test_rows_that_repeat_for_every_caption_are_skipped_without_loading(tmp_path: Path) -> None:
    array = features(3, 6)
    write_precomp(tmp_path, "testall", np.repeat(array, 5, axis=0), n_captions=15)
    dataset = open_dataset(tmp_path, "testall")
    assert isinstance(dataset.features, np.memmap)
    np.testing.assert_array_equal(dataset.features, array[:, None])


@pytest.mark.parametrize("times", [1, 5])
def test_ids_are_read_once_an_image_or_once_a_caption(tmp_path: Path, times: int) -> None:
    write_precomp(tmp_path, "test", features(2, 1, 2), n_captions=10)
    (tmp_path / "test_ids.txt").write_text("".join(f"{n}\n" * times for n in (17, 4)))
    assert open_dataset(tmp_path, "test").image_ids == ("17", "4")


def test_a_built_folder_keeps_uneven_captions_and_finds_its_pictures(tmp_path: Path) -> None:
    write_built(tmp_path, listing())
    dataset = open_dataset(tmp_path, "train")
    assert dataset.name == "small"
    assert dataset.features.shape == (2, 2, 3)
    assert dataset.positives.texts_per_image().tolist() == [1, 2]
    assert dataset.pictures == (tmp_path / "source" / "x.png", Path("/y.png"))
    assert dataset.caption_ids == ("t0", "t1", "t2")


def test_the_vocabulary_sees_train_and_dev_and_never_test(tmp_path: Path) -> None:
    for split in ("train", "dev", "test", "testall"):
        write_precomp(tmp_path, split, features(1, 1, 2), n_captions=5)
    assert splits_of(tmp_path) == ("train", "dev", "test", "testall")
    captions = training_captions(tmp_path)
    assert len(captions) == 10
    assert not any("test" in caption for caption in captions)


def test_the_vocabulary_of_a_built_folder_needs_no_features(tmp_path: Path) -> None:
    write_built(tmp_path, listing())
    (tmp_path / "train.features.npy").unlink()
    assert training_captions(tmp_path) == ("a", "b", "c")


def test_the_fingerprint_follows_content_and_nothing_else(tmp_path: Path) -> None:
    def fingerprint(folder: str, array: npt.NDArray[np.float32], caption: str = "") -> str:
        write_precomp(tmp_path / folder, "dev", array, n_captions=10)
        if caption:
            path = tmp_path / folder / "dev_caps.txt"
            path.write_text(path.read_text().replace("caption 3", caption))
        return open_dataset(tmp_path / folder, "dev").fingerprint

    array = features(2, 3, 4)
    same = fingerprint("a", array)
    assert fingerprint("b", array) == same
    assert fingerprint("c", array + 1) != same
    assert fingerprint("d", array.reshape(2, 4, 3)) != same
    assert fingerprint("e", array, "words") != same


def test_rows_and_captions_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_precomp(tmp_path, "dev", features(3, 4, 5), n_captions=14)
    report = refusal(tmp_path, "dev")
    assert "dev_caps.txt has 14 captions" in report
    assert "dev_ims.npy 3 rows; expected 15 captions" in report
    assert "write them as JSON lines of image and caption" in report


def test_a_row_a_caption_that_does_not_repeat_is_refused(tmp_path: Path) -> None:
    write_precomp(tmp_path, "dev", features(10, 4), n_captions=10)
    assert "dev_ims.npy, rows 0 to 4: they differ" in refusal(tmp_path, "dev")


def test_a_row_a_caption_in_no_fives_is_refused(tmp_path: Path) -> None:
    write_precomp(tmp_path, "dev", features(7, 4), n_captions=7)
    report = refusal(tmp_path, "dev")
    assert "dev_ims.npy has a row per caption, 7" in report
    assert "`aoq data build captions.jsonl --features REGIONS`" in report


@pytest.mark.parametrize("size", [0, 50, 200])
def test_a_truncated_array_is_refused(tmp_path: Path, size: int) -> None:
    write_precomp(tmp_path, "dev", features(3, 4, 5), n_captions=15)
    path = tmp_path / "dev_ims.npy"
    path.write_bytes(path.read_bytes()[:size])
    report = refusal(tmp_path, "dev")
    assert "dev_ims.npy cannot be read" in report
    assert f"truncated or damaged at {size} bytes" in report


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 30 + ", 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3)}",
        "(" * 900,
        "[" * 20_000,
    ],
)
def test_an_array_with_a_hostile_header_is_refused(tmp_path: Path, header: str) -> None:
    write_precomp(tmp_path, "dev", features(3, 4, 5), n_captions=15)
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    (tmp_path / "dev_ims.npy").write_bytes(content)
    report = refusal(tmp_path, "dev")
    assert "dev_ims.npy cannot be read as a NumPy array" in report
    assert "\n" not in report


def test_an_archive_is_refused(tmp_path: Path) -> None:
    write_precomp(tmp_path, "dev", features(3, 4, 5), n_captions=15)
    with (tmp_path / "dev_ims.npy").open("wb") as file:
        np.savez(file, features(3, 4, 5))
    assert "dev_ims.npy cannot be read as a NumPy array" in refusal(tmp_path, "dev")


def test_an_array_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_precomp(tmp_path, "dev", features(3, 4, 5), n_captions=15)
    np.save(tmp_path / "dev_ims.npy", np.zeros((3, 4, 5)))
    assert "dev_ims.npy holds float64; expected" in refusal(tmp_path, "dev")
    np.save(tmp_path / "dev_ims.npy", np.zeros((3, 0, 5), np.float32))
    assert "dev_ims.npy has the shape (3, 0, 5)" in refusal(tmp_path, "dev")


def test_an_empty_caption_and_no_utf8_are_refused_with_their_line(tmp_path: Path) -> None:
    write_precomp(tmp_path, "dev", features(1, 2, 3), n_captions=5)
    captions = tmp_path / "dev_caps.txt"
    captions.write_bytes(b"one\n\nthree\nfour\nfive\n")
    assert "dev_caps.txt, line 2: the caption is empty" in refusal(tmp_path, "dev")
    captions.write_bytes(b"one\ntwo\nthr\xff\nfour\nfive\n")
    assert "dev_caps.txt, line 3: byte 0xff is not UTF-8" in refusal(tmp_path, "dev")


def test_ids_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_precomp(tmp_path, "dev", features(2, 2, 3), n_captions=10)
    (tmp_path / "dev_ids.txt").write_text("1\n2\n3\n")
    assert "dev_ids.txt has 3 ids; expected 2" in refusal(tmp_path, "dev")


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write_precomp(tmp_path, "dev", features(1, 2, 3), n_captions=5)
    (tmp_path / "dev_ims.npy").unlink()
    assert "dev_ims.npy is missing" in refusal(tmp_path, "dev")


def test_the_error_for_another_folder_says_what_a_data_set_holds(tmp_path: Path) -> None:
    assert "dataset.json nor files like train_ims.npy" in refusal(tmp_path, "train")
    moved = refusal(tmp_path / "none", "train")
    assert "none is not a folder" in moved
    assert "--data FOLDER" in moved
    write_precomp(tmp_path, "dev", features(1, 2, 3), n_captions=5)
    assert "has no split 'test'; it holds dev" in refusal(tmp_path, "test")
    with pytest.raises(UserError, match="no split 'train' to take words from"):
        training_captions(tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"pairs": [[0, 0], [1, 9]]}, "train.json, pairs[1]: [1, 9] is not a pair"),
        ({"pairs": [[0, 0], [-1, 1]]}, "train.json, pairs[1]: [-1, 1] is not a pair"),
        ({"pairs": [[0, 10**90]]}, "train.json, pairs[0]: [0, 1000"),
        ({"pairs": [[0, 0.5]]}, "train.json, pairs[0]: [0, 0.5] is not a pair"),
        ({"pairs": [[0, 1, 2]]}, "train.json, pairs[0]: [0, 1, 2] is not a pair"),
        ({"pairs": None}, "train.json: pairs is None; expected a list; build the data set again"),
        ({"pairs": [[0, 0], [1, 1]]}, "train.json, captions[2]: t2 has no image"),
        ({"captions": [{"id": "t0"}]}, "train.json, captions[0]: text is None; expected words"),
        ({"captions": [{"id": 3, "text": "a"}]}, "train.json, captions[0]: id is 3; expected text"),
        ({"captions": ["a"]}, "train.json, captions[0]: 'a' is not a JSON object"),
        ({"images": {}}, "train.json: images is {}; expected a list"),
        ({"images": [{"id": None, "picture": "x"}]}, "train.json, images[0]: id is None"),
        ({"images": [{"id": "x", "picture": 4}]}, "train.json, images[0]: picture is 4"),
        ({"pairs": [[0, 0], [0, 1], [0, 2]]}, "train.json, images[1]: y has no caption"),
        ({"captions": listing(texts=("a", " ", "c"))["captions"]}, "train.json, captions[1]"),
    ],
)
def test_a_damaged_listing_is_refused(
    tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    write_built(tmp_path, listing() | change)
    assert sentence in refusal(tmp_path, "train")


@pytest.mark.parametrize("text", ['{"captions": [null]}', "[]", "[" * 100_000, "\ufeff{", "\0"])
def test_words_are_not_taken_from_a_damaged_listing(tmp_path: Path, text: str) -> None:
    write_built(tmp_path, listing())
    (tmp_path / "train.json").write_text(text)
    with pytest.raises(UserError, match=r"train\.json"):
        training_captions(tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"splits": {}}, "dataset.json: splits is {}; expected train, dev, test"),
        ({"splits": {"../train": {}}}, "dataset.json: splits is {'../train': {}}"),
        ({"splits": ["train"]}, "dataset.json: splits is ['train']"),
        ({"name": None}, "dataset.json: name is None; expected words"),
    ],
)
def test_a_damaged_manifest_is_refused(
    tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    write_built(tmp_path, listing())
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert sentence in refusal(tmp_path, "train")


def test_a_built_folder_with_other_rows_or_another_version_is_refused(tmp_path: Path) -> None:
    write_built(tmp_path, listing(), rows=5)
    assert "train.features.npy has 5 rows" in refusal(tmp_path, "train")
    (tmp_path / "dataset.json").write_text('{"version": 99}')
    assert "dataset.json is not of version 1" in refusal(tmp_path, "train")
    (tmp_path / "dataset.json").write_text('{"version"')
    assert "dataset.json, line 1: not valid JSON" in refusal(tmp_path, "train")


def test_opening_a_data_set_needs_neither_torch_nor_pillow() -> None:
    code = "import sys, aoq.data.dataset; sys.exit('torch' in sys.modules or 'PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert PairDataset.__dataclass_params__.frozen  # type: ignore[attr-defined]


class Reader:
    """Images that are read when asked, and a note of which."""

    def __init__(self, images: npt.NDArray[np.float32]) -> None:
        self.images = images
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, ids: Ids) -> npt.NDArray[np.float32]:
        self.asked += ids.tolist()
        return self.images[ids]


CAPTIONS, PAIRS = ["one", "two", "three"], [(0, 0), (1, 1), (1, 2)]


def test_a_data_set_made_in_python_is_what_it_was_made_of() -> None:
    images = features(2, 3, 4, 4)
    dataset = PairDataset.of(images, CAPTIONS, PAIRS, name="mine", image_ids=["x", "y"])
    assert (dataset.name, dataset.split, len(dataset), dataset.n_texts) == ("mine", "train", 2, 3)
    assert dataset.features is images
    assert dataset.image_ids == ("x", "y")
    assert dataset.caption_ids == ("train#0", "train#1", "train#2")
    assert dataset.positives.pairs.tolist() == [[0, 0], [1, 1], [1, 2]]


def test_images_read_on_demand_are_the_same_data_set_as_their_array() -> None:
    images = features(2, 3, 4, 4)
    array, read = (PairDataset.of(given, CAPTIONS, PAIRS) for given in (images, Reader(images)))
    assert (read.features.shape, read.features.dtype) == ((2, 3, 4, 4), np.float32)
    assert read.fingerprint == array.fingerprint
    assert PairDataset.of(Reader(images + 1), CAPTIONS, PAIRS).fingerprint != array.fingerprint


def test_a_part_of_images_read_on_demand_is_not_read() -> None:
    reader = Reader(features(3, 5))
    dataset = PairDataset.of(reader, CAPTIONS, [(0, 0), (1, 1), (2, 2)])
    reader.asked.clear()
    part = first_texts(dataset, 2)
    assert reader.asked == []
    assert part.features.shape == (2, 5)
    np.testing.assert_array_equal(part.features[np.array([1])], reader.images[[1]])
    assert reader.asked == [1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"images": features(3, 2, 2)}, "images[2]: train:2 has no caption"),
        ({"images": features(2)}, "images is an array of float32 of the shape (2,)"),
        ({"images": np.array([["a"], ["b"]])}, "images is an array of <U1"),
        ({"images": np.zeros((0, 2, 2))}, "the shape (0, 2, 2)"),
        ({"images": Reader(features(0, 2))}, "images is empty"),
        ({"captions": ["one", " ", "three"]}, "captions[1]: ' ' is not a caption"),
        ({"captions": ["one", None, "three"]}, "captions[1]: None is not a caption"),
        ({"captions": [*CAPTIONS, "four"]}, "captions[3]: train#3 has no image"),
        ({"pairs": [*PAIRS, (2, 0)]}, "pairs[3]: [2, 0] is not a pair; expected the number of"),
        ({"pairs": [*PAIRS, (0, -1)]}, "pairs[3]: [0, -1] is not a pair"),
        ({"pairs": [(0, 0), (1,)]}, "expected rows of two numbers"),
        ({"pairs": [(0, 0.5)]}, "expected rows of two numbers"),
        ({"pairs": []}, "pairs is []; expected rows of two numbers"),
        ({"image_ids": ["x"]}, "image_ids has 1 entries; expected 2"),
        ({"caption_ids": ["x"]}, "caption_ids has 1 entries; expected 3"),
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict[str, object], sentence: str) -> None:
    given: dict[str, Any] = {"images": features(2, 2, 2), "captions": CAPTIONS, "pairs": PAIRS}
    with pytest.raises(UserError) as caught:
        PairDataset.of(**given | change)
    assert sentence in str(caught.value)


def test_a_reader_that_gives_one_image_instead_of_rows_is_refused() -> None:
    class OneAtATime(Reader):
        def __getitem__(self, ids: Ids) -> npt.NDArray[np.float32]:
            return self.images[int(ids[0])]

    with pytest.raises(UserError, match=r"images\[ids\] has the shape \(3, 4\) for 1 ids"):
        PairDataset.of(OneAtATime(features(2, 3, 4)), CAPTIONS, PAIRS)


class Unsteady:
    """Images that depend on when they are read, or on what they are read with."""

    def __init__(self, change):
        self.change = change
        self.reads = 0

    def __len__(self):
        return 5

    def __getitem__(self, ids):
        self.reads += 1
        images = np.repeat(np.asarray(ids, np.float32)[:, None], 3, axis=1)
        return images + self.change(ids, self.reads)


@pytest.mark.parametrize(
    "change",
    [
        lambda ids, reads: reads,
        lambda ids, reads: len(ids),
        lambda ids, reads: 1e-7 * max(ids) * reads,
    ],
)
def test_a_reader_that_returns_something_else_the_second_time_is_refused(change):
    captions, pairs = ["a cat"] * 5, [(n, n) for n in range(5)]
    assert len(PairDataset.of(Unsteady(lambda ids, reads: 0), captions, pairs)) == 5
    with pytest.raises(UserError, match="not the same when it is read again"):
        PairDataset.of(Unsteady(change), captions, pairs)
