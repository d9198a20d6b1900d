"""The doctor names everything that is wrong, once, with its place."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from aoq.cli import app
from aoq.cli.findings import show_report
from aoq.config import Recipe
from aoq.data.checks import dataset as check
from aoq.data.checks.dataset import check_dataset
from aoq.data.checks.findings import Finding, Report
from aoq.data.splits import open_dataset, training_captions
from aoq.data.vocabulary import Vocabulary
from aoq.errors import UserError
from aoq.recipes import save_recipe
from aoq.runs.checkpoint import trained_vocabulary
from aoq.runs.directory import RunDirectory
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


FEW_IMAGES = check.FEW_IMAGES


@pytest.fixture(autouse=True)
def one_image_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small folders show what else is odd."""
    monkeypatch.setattr(check, "FEW_IMAGES", 1)


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
    assert [(facts.split, facts.images, facts.captions) for facts in report.splits] == [
        ("train", 3, 15),
        ("dev", 3, 15),
        ("test", 3, 15),
    ]
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
    assert "test_ims.npy cannot be read as a NumPy array" in text
    assert f"NaN or infinite features: {folder}/train_ims.npy, image row 1 (2 in all)" in text
    with pytest.raises(UserError, match="line 4"):
        report.raise_for_errors()
    assert sorted(folder.iterdir()) == before


def test_counts_that_do_not_fit_are_an_error(folder: Path) -> None:
    (folder / "dev_caps.txt").write_text("only one caption\n")
    assert "dev_caps.txt has 1 captions" in check_dataset(folder).errors[0]


def test_splits_of_different_width_are_an_error(folder: Path) -> None:
    np.save(folder / "dev_ims.npy", np.ones((3, 2, 7), np.float32))
    assert "dev_ims.npy has images of (2, 7)" in check_dataset(folder).errors[0]


def test_text_that_is_not_utf8_is_an_error_with_its_line(folder: Path) -> None:
    path = folder / "train_caps.txt"
    path.write_bytes(path.read_bytes().replace(b"number 6", b"number \xe9"))
    assert "train_caps.txt, line 7: byte 0xe9" in check_dataset(folder).errors[0]


def test_equal_features_in_two_splits_without_ids_are_one_image(folder: Path) -> None:
    change_rows(folder, "test", {2: np.load(folder / "train_ims.npy")[1]})
    (error,) = check_dataset(folder).errors
    assert "the image test:2 is also in train, row 1" in error


def test_ids_say_which_image_is_in_two_splits(folder: Path) -> None:
    for split, ids in (("train", "1 2 3"), ("dev", "4 5 6"), ("test", "7 2 9")):
        (folder / f"{split}_ids.txt").write_text(ids.replace(" ", "\n") + "\n")
    change_rows(folder, "test", {1: np.load(folder / "train_ims.npy")[1]})
    (finding,) = check_dataset(folder).findings
    assert (finding.title, finding.is_error) == ("Images in two splits", True)
    (place,) = finding.places
    assert place.endswith("row 1: the image 2 is also in train, row 1")


def test_an_id_of_different_features_names_no_one_image(folder: Path) -> None:
    for split, ids in (("train", "1 2 3"), ("dev", "4 5 6"), ("test", "7 2 9")):
        (folder / f"{split}_ids.txt").write_text(ids.replace(" ", "\n") + "\n")
    (finding,) = check_dataset(folder).findings
    assert finding.title == "Ids in two splits that do not name the same image"
    assert finding.is_error
    assert "row 1: the image 2 is also in train, row 1" in finding.places[0]


def test_ids_of_one_split_do_not_hide_what_two_others_share(folder: Path) -> None:
    (folder / "dev_ids.txt").write_text("4\n5\n6\n")
    image = np.load(folder / "train_ims.npy")[1]
    change_rows(folder, "test", {2: image})
    change_rows(folder, "dev", {0: image})
    (finding,) = check_dataset(folder).findings
    assert finding.title == "Images in two splits"
    assert [place.split(": ")[1] for place in finding.places] == [
        "the image 4 is also in train, row 1",
        "the image test:2 is also in train, row 1",
    ]


def test_the_test_set_may_be_part_of_testall(folder: Path) -> None:
    write_precomp(folder, "testall", images=4)
    change_rows(folder, "testall", dict(enumerate(np.load(folder / "test_ims.npy"))))
    assert check_dataset(folder).errors == ()
    change_rows(folder, "testall", {3: np.load(folder / "train_ims.npy")[0]})
    assert "testall_ims.npy, image row 3" in check_dataset(folder).errors[0]


def test_an_image_in_two_splits_of_a_built_folder_is_an_error(built: Path) -> None:
    (error,) = check_dataset(built).errors
    assert "row 0: the image x is also in train" in error


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
        ("../dataset.json", "dataset.json: '../dataset.json' is not a file of the data set"),
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


def found(report: Report, title: str) -> Finding:
    (finding,) = (finding for finding in report.findings if finding.title == title)
    return finding


def titles(report: Report) -> list[str]:
    return [finding.title for finding in report.findings]


def test_odd_things_are_one_warning_each_with_count_and_places(folder: Path) -> None:
    change_rows(folder, "train", {2: np.load(folder / "train_ims.npy")[0]})
    change_captions(
        folder,
        "dev",
        {0: "A dog sleeps", 1: "a dog sleeps", 7: "a dog sleeps", 8: "dog", 9: "so " * 61},
    )
    change_captions(folder, "test", {2: "A DOG sleeps"})
    report = check_dataset(folder)
    assert report.errors == ()
    assert [(finding.title, finding.count, finding.places[0]) for finding in report.findings] == [
        (
            "Pictures that occur twice",
            1,
            "train:2 and train:0 in train have equal features",
        ),
        (
            "Captions that an image has twice",
            1,
            "'a dog sleeps' of dev_caps.txt, line 2 and dev_caps.txt, line 1",
        ),
        (
            "Captions of several images",
            1,
            "'a dog sleeps' of dev_caps.txt, line 8 and dev_caps.txt, line 1",
        ),
        (
            "Captions of two splits",
            1,
            "'A DOG sleeps' of test_caps.txt, line 3 and dev_caps.txt, line 1",
        ),
        ("Captions of fewer than 3 words", 1, "'dog' of dev_caps.txt, line 9"),
        ("Captions of more than 60 words", 1, report.findings[-1].places[0]),
    ]
    assert report.warnings[1].endswith("line 1; one of them is enough.")


def test_features_are_looked_at_where_the_captions_are_damaged(folder: Path) -> None:
    change_captions(folder, "dev", {3: ""})
    change_rows(folder, "dev", {1: np.nan})
    report = check_dataset(folder)
    assert titles(report)[:2] == ["What does not fit together", "NaN or infinite features"]
    assert found(report, "NaN or infinite features").places == (
        f"{folder}/dev_ims.npy, image row 1",
    )


def test_damaged_captions_and_features_of_one_split_are_both_reported(folder: Path) -> None:
    change_captions(folder, "dev", dict.fromkeys(range(15), ""))
    (folder / "dev_ims.npy").write_bytes(b"nothing")
    finding = found(check_dataset(folder), "What does not fit together")
    assert finding.count == 16
    assert "dev_caps.txt, line 1: the caption is empty" in finding.places[0]
    assert "dev_ims.npy cannot be read" in finding.places[15]


def test_a_folder_of_which_nothing_can_be_opened_is_still_reported(folder: Path) -> None:
    for split in ("train", "dev", "test"):
        (folder / f"{split}_ims.npy").write_bytes(b"nothing")
    report = check_dataset(folder, thorough=True)
    assert report.splits == ()
    assert found(report, "What does not fit together").count == 3


def test_the_json_report_has_every_place_and_the_terminal_the_first(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_precomp(folder, "train", images=30)
    change_rows(folder, "train", dict.fromkeys(range(30), np.nan))
    for options in ([], ["--json"]):
        with pytest.raises(UserError, match="cannot be used as it is"):
            run_check(folder, *options)
    shown, told = capsys.readouterr().out.rstrip().rsplit("\n", 1)
    assert "NaN or infinite features: 30" in shown
    assert "and 20 more" in shown
    (finding,) = json.loads(told)["errors"]
    assert finding["count"] == 30
    assert finding["places"][29] == f"{folder}/train_ims.npy, image row 29"


def test_equal_pictures_under_different_ids_are_a_leak_to_judge(folder: Path) -> None:
    for split, ids in (("train", "1 2 3"), ("dev", "4 5 6"), ("test", "7 8 9")):
        (folder / f"{split}_ids.txt").write_text(ids.replace(" ", "\n") + "\n")
    change_rows(folder, "test", {0: np.load(folder / "train_ims.npy")[1]})
    report = check_dataset(folder)
    assert report.errors == ()
    finding = found(report, "Pictures in two splits under different ids")
    assert finding.places == ("7 in test and 2 in train have equal features",)


def test_an_id_of_two_rows_is_warned_about(folder: Path) -> None:
    (folder / "train_ids.txt").write_text("1\n2\n1\n")
    finding = found(check_dataset(folder), "Ids that several images have")
    assert finding.places == ("1 in train, rows 0 and 2",)


def test_ids_of_test_in_another_order_than_in_testall_are_an_error(folder: Path) -> None:
    write_precomp(folder, "testall", images=4)
    change_rows(folder, "testall", dict(enumerate(np.load(folder / "test_ims.npy"))))
    (folder / "testall_ids.txt").write_text("7\n8\n9\n10\n")
    (folder / "test_ids.txt").write_text("7\n8\n9\n")
    assert check_dataset(folder).errors == ()
    (folder / "test_ids.txt").write_text("8\n7\n9\n")
    finding = found(check_dataset(folder), "Ids of test that name another image in testall")
    assert finding.is_error
    assert finding.places[0] == "8, row 0 of test and row 1 of testall"
    assert finding.count == 2


def test_a_row_a_caption_is_compared_throughout_by_a_thorough_look(folder: Path) -> None:
    rows = np.repeat(np.random.default_rng(0).random((200, 2, 4), np.float32), 5, axis=0)
    rows[7, 0, 0] += 1  # not among the images that opening samples
    np.save(folder / "train_ims.npy", rows)
    lines = [f"{n} is the number of this caption" for n in range(1000)]
    (folder / "train_caps.txt").write_text("\n".join(lines) + "\n")
    assert check_dataset(folder).errors == ()
    finding = found(check_dataset(folder, thorough=True), "Rows of one image that differ")
    assert finding.places == (f"{folder}/train_ims.npy, rows 5 to 9",)


def test_captions_that_differ_in_a_word_are_found_by_a_thorough_look(folder: Path) -> None:
    change_captions(folder, "train", {0: "a man rides a red bike", 5: "A man rides a bike."})
    change_captions(folder, "test", {3: "two men ride bikes uphill", 9: "the man rides a red bike"})
    change_captions(folder, "dev", {4: "Two men ride bikes uphill, fast"})
    near = "Captions of several images but for a word", "Captions of two splits but for a word"
    assert not set(near) & set(titles(check_dataset(folder)))
    report = check_dataset(folder, thorough=True)
    within = found(report, near[0]).places
    assert any("of train_caps.txt, line 1 and 'A man" in p for p in within)
    assert (
        "'two men ride bikes uphill' of test_caps.txt, line 4 and "
        "'Two men ride bikes uphill, fast' of dev_caps.txt, line 5"
    ) in found(report, near[1]).places


def test_punctuation_makes_no_other_caption_and_hides_none(folder: Path) -> None:
    """The equal ones are told as equal, and the near one beside them as near."""
    captions = {
        0: "a brown dog in the snow",
        5: "A brown dog in the snow .",
        10: "a dog in the snow",
    }
    change_captions(folder, "train", captions)
    report = check_dataset(folder, thorough=True)
    assert found(report, "Captions of several images").places == (
        "'A brown dog in the snow .' of train_caps.txt, line 6 and train_caps.txt, line 1",
    )
    near = [
        p for p in found(report, "Captions of several images but for a word").places if "dog" in p
    ]
    assert [place.partition(" and ")[0] for place in near] == [
        "'a brown dog in the snow' of train_caps.txt, line 1",
        "'A brown dog in the snow .' of train_caps.txt, line 6",
    ]  # each pair once
    assert all("'a dog in the snow'" in place for place in near)


def test_a_copy_of_a_picture_in_another_split_is_found_by_a_thorough_look(folder: Path) -> None:
    random = np.random.default_rng(0)
    for split in ("train", "dev", "test"):
        write_precomp(folder, split, images=60)
        np.save(folder / f"{split}_ims.npy", random.random((60, 3, 128), np.float32))
    assert "Pictures that are nearly in two splits" not in titles(
        check_dataset(folder, thorough=True)
    )
    copy = np.load(folder / "train_ims.npy")[9] + random.normal(0, 0.02, (3, 128))
    change_rows(folder, "test", {30: copy, 31: np.load(folder / "test_ims.npy")[30]})
    finding = found(check_dataset(folder, thorough=True), "Pictures that are nearly in two splits")
    assert finding.places == ("test:30 in test is much like train:9 in train",)


def test_pictures_that_moved_are_a_warning(built: Path) -> None:
    finding = found(
        check_dataset(built, thorough=True), "Pictures that are no longer where they were"
    )
    assert (finding.count, finding.is_error) == (2, False)


def test_splits_too_small_to_judge_by_are_one_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "FEW_IMAGES", FEW_IMAGES)
    write_precomp(folder, "dev", images=49)
    report = check_dataset(folder)
    assert report.errors == ()
    assert report.warnings == (
        f"Splits of fewer than 50 images: 49 in dev of {folder} (2 in all); "
        "R@10 says little among so few; evaluate on more pictures.",
    )
    assert report.findings[0].places[1] == f"3 in test of {folder}"
    for split in ("dev", "test"):
        write_precomp(folder, split, images=50)
    assert check_dataset(folder).findings == ()


def test_numbers_of_another_count_than_the_words_are_warned_about(folder: Path) -> None:
    (folder / "dev_precaps.txt").write_text("1,4,2\n")
    finding = found(check_dataset(folder), "Captions in numbers that do not fit those in words")
    assert finding.places == (f"{folder}/dev_precaps.txt has 1 lines for 15 captions",)


# Vocabulary


def write_run(folder: Path, captions: Iterable[str], *, min_count: int) -> Path:
    run = RunDirectory(folder / "round-one")
    run.path.mkdir(parents=True)
    Vocabulary.build(captions, min_count=min_count).save(run.vocabulary)
    save_recipe(Recipe(min_word_count=min_count), run.config)
    return folder


LEAK = "Words of the vocabulary that only test captions explain"


@pytest.mark.parametrize("min_count", [1, 2])
def test_a_vocabulary_of_train_and_dev_is_sound(folder: Path, min_count: int) -> None:
    run = write_run(folder / "run", training_captions(folder), min_count=min_count)
    assert check_dataset(folder, trained=trained_vocabulary(run)).findings == ()


def test_a_word_that_a_vocabulary_can_only_have_from_test_is_an_error(folder: Path) -> None:
    """`zebra` is in test alone; `okapi` reaches its three occurrences by the one in test."""
    change_captions(folder, "train", {0: "an okapi sleeps here", 1: "an okapi runs there"})
    change_captions(folder, "test", {0: "a zebra, zebra and zebra", 1: "an okapi in the sun"})
    captions = [*training_captions(folder), *open_dataset(folder, "test").captions]
    report = check_dataset(
        folder, trained=trained_vocabulary(write_run(folder / "run", captions, min_count=3))
    )
    leaked = "\n".join(found(report, LEAK).places)
    assert "'zebra' is 0 times in train and dev, 3 times" in leaked
    assert "'okapi' is 2 times in train and dev, 1 times" in leaked
    assert found(report, LEAK).is_error


def test_words_from_elsewhere_are_a_warning(folder: Path) -> None:
    captions = [*training_captions(folder), "gnu"]
    report = check_dataset(
        folder, trained=trained_vocabulary(write_run(folder / "run", captions, min_count=1))
    )
    assert titles(report) == ["Words of the vocabulary that the captions do not explain"]
    assert report.errors == ()


def test_a_vocabulary_in_a_precomp_folder_is_looked_at_thoroughly(folder: Path) -> None:
    (folder / "vocab_notes.json").write_text("[]")
    change_captions(folder, "test", {0: "a zebra sleeps here"})
    Vocabulary.build(["zebra caption"], min_count=1).save(folder / "small_vocab.json")
    report = check_dataset(folder, thorough=True)
    assert found(report, LEAK).count == 1
    assert "vocab_notes.json" in found(report, "Vocabularies that cannot be read").places[0]


def test_a_run_without_a_vocabulary_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"holds no vocabulary.json"):
        check_dataset(folder, trained=trained_vocabulary(folder))


# The command


def run_check(*arguments: object) -> None:
    app(["data", "check", *map(str, arguments)], result_action="return_value")


def test_the_report_fits_eighty_columns(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    change_rows(folder, "train", {1: np.nan})
    change_captions(folder, "dev", {8: "[dog]"})
    with pytest.raises(UserError, match="cannot be used as it is"):
        run_check(folder)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 80
    text = "\n".join(lines)
    assert "error    NaN or infinite features: 1" in text
    assert "- train_ims.npy, image row 1" in text
    assert "'[dog]' of dev_caps.txt, line 9" in text
    assert lines[-1].startswith("1 error, ")


def test_ids_are_shown_as_they_are_whatever_the_folder_is_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    finding = Finding("Odd", ("metadata/a.jpg#0 of data/train.json",))
    show_report(Report(folder=Path("data"), splits=(), findings=(finding,)))
    assert "metadata/a.jpg#0 of train.json" in capsys.readouterr().out


def test_a_changed_file_is_reported_and_ends_the_command(
    built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = built / "test.json"
    listing.write_text(listing.read_text().replace('"x"', '"y"'))
    with pytest.raises(UserError):
        run_check(built)
    assert "test.json is not what was built" in capsys.readouterr().out


def test_the_report_is_one_json_object_for_pipes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_captions(folder, "dev", {8: "dog"})
    run_check(folder, "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["splits"][0]["captions"] == 15
    assert report["errors"] == []
    assert "Captions of fewer than 3 words" in [found["title"] for found in report["warnings"]]
