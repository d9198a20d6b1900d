"""The text files of precomp folders: captions in words or numbers, and ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aoq.data.precomp import read_captions, read_ids
from aoq.data.splits import open_dataset, splits_of, training_captions
from aoq.data.vocabulary import Vocabulary
from aoq.errors import UserError

CAPTIONS = [
    "Two dogs, a man's hat.",
    "A dog can't swim!",
    'He says "go" and runs.',
    "A dog. It sleeps.",
    "the zebra sleeps",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One image with the five captions in numbers, as BFAN has them; `zebra` is unknown."""
    folder = tmp_path / "f30k_precomp"
    folder.mkdir()
    np.save(folder / "train_ims.npy", np.ones((1, 2, 3), np.float32))
    vocabulary = Vocabulary.build([*CAPTIONS[:4], "the"], min_count=1)
    vocabulary.save(folder / "f30k_vocab.json")
    lines = [",".join(map(str, vocabulary.encode(caption))) for caption in CAPTIONS]
    (folder / "train_precaps.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_captions_in_numbers_mean_what_the_words_meant(folder: Path) -> None:
    vocabulary = Vocabulary.load(folder / "f30k_vocab.json")
    captions = read_captions(folder, "train")
    assert captions[0] == "two dogs , a man 's hat ."
    assert captions[4] == "the unk sleeps"
    assert list(map(vocabulary.encode, captions)) == list(map(vocabulary.encode, CAPTIONS))


def test_a_folder_with_captions_in_numbers_only_is_a_data_set(folder: Path) -> None:
    assert splits_of(folder) == ("train",)
    dataset = open_dataset(folder, "train")
    assert dataset.captions == training_captions(folder)
    assert dataset.positives.texts_of(0).tolist() == [0, 1, 2, 3, 4]


def test_words_are_read_where_both_are_there(folder: Path) -> None:
    (folder / "train_caps.txt").write_text("\n".join(CAPTIONS) + "\n")
    assert open_dataset(folder, "train").captions == tuple(CAPTIONS)


def test_the_vocabulary_may_lie_where_scan_keeps_it(folder: Path) -> None:
    (folder.parent / "vocab").mkdir()
    (folder / "f30k_vocab.json").rename(folder.parent / "vocab" / "f30k_precomp_vocab.json")
    assert read_captions(folder, "train")[3] == "a dog . it sleeps ."


def test_numbers_without_a_vocabulary_are_refused_with_what_to_do(folder: Path) -> None:
    (folder / "f30k_vocab.json").unlink()
    with pytest.raises(UserError, match=r"no vocabulary; copy .* f30k_precomp_vocab"):
        open_dataset(folder, "train")


@pytest.mark.parametrize("line", ["1,x,2", "1,99999,2", "1,-4,2", "1,,2", "1,2", "1 4 2"])
def test_what_is_not_a_word_of_the_vocabulary_is_refused_with_its_line(
    folder: Path, line: str
) -> None:
    path = folder / "train_precaps.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n")
    with pytest.raises(UserError, match=r"precaps.txt, line 3: .*expected word numbers"):
        open_dataset(folder, "train")


def write_ids(folder: Path, ids: list[str]) -> None:
    (folder / "dev_ids.txt").write_text("\n".join(ids) + "\n")


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["x", "y"], ("x", "y")),
        (["x"] * 5 + ["y"] * 5, ("x", "y")),
        ([str(number) for number in range(10)], ("0", "5")),  # those of the captions
    ],
)
def test_ids_are_given_once_an_image_or_once_a_caption(
    tmp_path: Path, ids: list[str], expected: tuple[str, str]
) -> None:
    write_ids(tmp_path, ids)
    assert read_ids(tmp_path, "dev", n_images=2) == expected


def test_ids_that_are_not_in_the_order_of_the_captions_are_refused(tmp_path: Path) -> None:
    write_ids(tmp_path, ["x"] * 5 + ["y"] * 4 + ["z"] + ["z"] * 4 + ["y"])
    with pytest.raises(UserError, match=r"dev_ids.txt, lines 6 to 10: .*, 2 such"):
        read_ids(tmp_path, "dev", n_images=3)


def test_another_number_of_ids_is_refused(tmp_path: Path) -> None:
    write_ids(tmp_path, ["x", "y", "z"])
    with pytest.raises(UserError, match="has 3 ids; expected 2, one per image, or 10"):
        read_ids(tmp_path, "dev", n_images=2)


def test_tags_are_left_alone(folder: Path) -> None:
    (folder / "train_tags.txt").write_bytes(b"\xff\x00 anything")
    assert len(open_dataset(folder, "train")) == 1
