"""`aoq extract` and `aoq data build` as people use them: what they say and what they write."""

from __future__ import annotations

import json
import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from cyclopts import CycloptsError

from aoq.cli import app
from aoq.data.splits import dataset_boxes, open_dataset
from aoq.errors import UserError
from aoq.features.regions import RegionSource
from aoq.features.tables import RegionFolder
from aoq.manifest import record
from tests.features.cases import arrays, bottom_up_line, damaged, photos

pytestmark = pytest.mark.usefixtures("own_cache")


def aoq(*arguments: object) -> None:
    """The command without a process of its own, which would import torch anew each time."""
    app(
        list(map(str, arguments)),
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
    )


def captions_of(pictures: list[Path], file: Path) -> Path:
    lines = [
        json.dumps({"image": picture.name, "caption": f"the caption of picture {number}"})
        for number, picture in enumerate(pictures)
    ]
    file.write_text("\n".join(lines))
    return file


def test_a_folder_is_extracted_with_a_summary_of_what_was_left_out(
    tmp_path: Path, tiny_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "photos"
    pictures = photos(folder, 11)
    damaged(folder)
    (folder / "film.mp4").touch()
    vit = tiny_models / "vit"
    out = tmp_path / "out"
    aoq("extract", folder, "--backbone", vit, "--grid", 2, "--workers", 1, "--out", out)
    said = capsys.readouterr().err
    assert "2 pictures are left out: each" in said
    assert "(empty.png, text.jpg); expected JPEG, PNG" in said
    assert "it is damaged or truncated (cut.jpg)" in said
    assert "it does not end like a picture (.mp4 1)" in said
    assert "11 pictures: 4 regions of 32 numbers each" in said
    table = RegionFolder.open(out)
    assert table.ids == tuple(f"{number}.png" for number in range(11))
    assert table.source == RegionSource.of_backbone(str(vit), grid=2)
    assert table.features.shape == (11, 4, 32)
    assert table.features.dtype == np.float16
    assert table.describe(0).keys() == {"width", "height", "sha256"}
    assert (table.describe(0)["width"], table.describe(0)["height"]) == (48, 64)

    captions = captions_of(pictures, folder / "captions.jsonl")
    direct, given = tmp_path / "direct", tmp_path / "given"
    build = ("data", "build", captions, "--out")
    aoq(*build, direct, "--backbone", vit, "--grid", 2)
    aoq(*build, given, "--features", out)
    for name in ("train.features.npy", "dev.features.npy", "test.json"):
        assert (direct / name).read_bytes() == (given / name).read_bytes()
    with pytest.raises(UserError, match=r"add --force \(in Python, force=True\)"):
        aoq("extract", folder, "--backbone", vit, "--out", out)


def test_a_bottom_up_file_becomes_a_folder_and_a_data_set(tmp_path: Path) -> None:
    names = [Path(f"{number}.jpg") for number in range(10)]
    captions = captions_of(names, tmp_path / "captions.jsonl")
    lines = [bottom_up_line(str(n), seed=n, boxes=4 + n % 2) for n in range(10)]
    (tmp_path / "detected.tsv").write_bytes(b"".join(lines))
    with pytest.raises(UserError, match=r"4 to 5 boxes \(4 in 5, 5 in 5 images\)"):
        aoq("extract", tmp_path / "detected.tsv", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    aoq("extract", tmp_path / "detected.tsv", "--regions", 4, "--out", tmp_path / "out")
    for source, options in ((tmp_path / "out", []), (tmp_path / "detected.tsv", ["--regions", 3])):
        data = tmp_path / f"built-{source.name}"
        aoq("data", "build", captions, "--features", source, *options, "--out", data)
        count = 3 if options else 4
        train = open_dataset(data, "train")
        boxes = dataset_boxes(data, "train")
        assert boxes is not None
        assert boxes.shape == (len(train), count, 4)
        seed = int(train.image_ids[0].removesuffix(".jpg"))
        expected = arrays(seed, 4 + seed % 2)[1][:count].astype(np.float16)
        np.testing.assert_array_equal(train.features[0], expected)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["extract", "{}/none"], "none is not a folder; name a folder of pictures"),
        (["extract", "{}"], "holds no picture that can be used"),
        (["extract", "{}", "--regions", "3"], "--regions is for bottom-up files"),
        (["extract", "{}/a.tsv"], "a.tsv holds regions already; add --out FOLDER"),
        (["extract", "{}", "--workers", "-1"], "Must be >= 0"),
        (["extract", "{}", "--backbone", "{}"], "cannot be used as a backbone"),
        (["data", "build", "{}/a.csv", "--out", "{}/o", "--regions", "3"], "name a bottom-up file"),
        (["extract", "{}/a.PNG", "--out", "{}/o"], r"a.PNG is a picture; name its folder"),
        (
            ["data", "build", "scenes", "--out", "{}/o", "--features", "{}/a.tsv"],
            "scenes are drawn: leave out --features",
        ),
        (
            ["data", "build", "scenes", "--out", "{}/o", "--pictures", "{}", "--splits", "{}"],
            "scenes are drawn: leave out --pictures and --splits",
        ),
        (
            ["data", "build", "{}/a.csv", "--out", "{}/o", "--size", "tiny", "--seed", "0"],
            "only scenes have a size and a seed: leave out --size and --seed",
        ),
        (
            ["data", "build", "{}", "--out", "{}/o", "--features", "{}", "--workers=1", "--grid=3"],
            "--features uses existing regions: leave out --grid and --workers",
        ),
        (
            ["data", "build", "{}/b.csv", "--out", "{}/o", "--features", "{}/none.tsv"],
            "b.csv is empty",
        ),
        (
            ["data", "build", "{}/b.csv", "--out", "{}/taken"],
            "taken exists and aoq did not write it as its data set",
        ),
        (
            ["data", "build", "{}/b.csv", "--out", "{}/taken", "--features", "{}/none.tsv"],
            "taken exists and aoq did not write it as its data set",
        ),
        (
            ["extract", "{}/b.csv", "--out", "{}/taken"],
            "taken exists and aoq did not write it as its folder of regions",
        ),
        (
            ["data", "build", "{}/a.csv", "--out", "{}/o", "--features", "{}"],
            "is not a folder of regions: regions.json is missing",
        ),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "a.tsv").write_bytes(bottom_up_line("1"))
    (tmp_path / "a.csv").write_text("image,caption\n1.jpg,a dog\n")
    (tmp_path / "a.PNG").touch()
    (tmp_path / "b.csv").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").touch()
    with pytest.raises((UserError, CycloptsError), match=sentence):
        aoq(*(argument.format(tmp_path) for argument in arguments))
    assert not (tmp_path / "o").exists()


def test_nothing_replaces_a_folder_that_holds_what_it_reads(
    tmp_path: Path, tiny_models: Path
) -> None:
    names = [Path(f"{number}.jpg") for number in range(4)]
    captions = captions_of(names, tmp_path / "captions.jsonl")
    tsv, regions, data = tmp_path / "a.tsv", tmp_path / "regions", tmp_path / "data"
    tsv.write_bytes(b"".join(bottom_up_line(str(number), seed=number) for number in range(4)))
    aoq("extract", tsv, "--out", regions)
    aoq("data", "build", captions, "--features", regions, "--out", data)
    photos(regions / "photos", 2)
    for file, folder in ((captions, data), (tsv, data), (tsv, regions)):
        (folder / file.name).write_bytes(file.read_bytes())
    before = sorted(tmp_path.rglob("*"))
    around, vit = tmp_path / "regions" / ".." / "data", ("--backbone", tiny_models / "vit")
    for command, held in (
        (("data", "build", data / captions.name, "--features", tsv, "--out", around), captions),
        (("data", "build", captions, "--features", data / tsv.name, "--out", data), tsv),
        (("extract", regions / tsv.name, "--out", regions), tsv),
        (("extract", regions / "photos", *vit, "--out", regions), regions / "photos"),
    ):
        with pytest.raises(UserError, match=f"holds .*{held.name}, which is an input"):
            aoq(*command, "--force")
        assert sorted(tmp_path.rglob("*")) == before


def test_a_name_that_is_not_utf8_is_left_out_and_the_others_are_written(
    tmp_path: Path, tiny_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "photos"
    photos(folder, 2)[1].rename(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.png"))
    aoq("extract", folder, "--backbone", tiny_models / "vit", "--out", tmp_path / "out")
    said = capsys.readouterr().err
    assert r"it has a name that is not UTF-8 (caf\udce9.png); rename it." in said
    assert RegionFolder.open(tmp_path / "out").ids == ("0.png",)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_regions_that_are_not_numbers_are_refused_by_image_and_leave_nothing(
    tmp_path: Path, value: float
) -> None:
    names = [Path(f"{number}.jpg") for number in range(4)]
    captions = captions_of(names, tmp_path / "captions.jsonl")
    (tmp_path / "a.tsv").write_bytes(b"".join(bottom_up_line(str(n), seed=n) for n in range(4)))
    regions = tmp_path / "regions"
    aoq("extract", tmp_path / "a.tsv", "--out", regions)
    features = np.load(regions / "features.npy").astype(np.float32)
    features[2, 1, 0] = value
    np.save(regions / "features.npy", features)
    record(regions / "features.npy")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match="the regions of 2 hold NaN"):
        aoq("data", "build", captions, "--features", regions, "--out", tmp_path / "built")
    assert sorted(tmp_path.iterdir()) == before


def test_the_next_command_is_one_that_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captions = captions_of([Path(f"{number}.jpg") for number in range(4)], tmp_path / "a.jsonl")
    (tmp_path / "a.tsv").write_bytes(b"".join(bottom_up_line(str(n), seed=n) for n in range(4)))
    regions, data = tmp_path / "my regions", tmp_path / "my data"
    aoq("extract", tmp_path / "a.tsv", "--out", regions)
    aoq("data", "build", captions, "--features", regions, "--out", data)
    said = capsys.readouterr().err.replace("\n", "")
    assert f"next: aoq data build captions.json --features '{regions}' --out data/mine" in said
    assert f"next: aoq run --data '{data}' --out 'runs/my data'" in said


def test_no_training_is_suggested_where_there_is_nothing_to_validate_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captions = tmp_path / "a.jsonl"
    captions.write_text('{"image": "0.jpg", "caption": "a dog", "split": "train"}')
    (tmp_path / "a.tsv").write_bytes(bottom_up_line("0", seed=0))
    aoq("data", "build", captions, "--features", tmp_path / "a.tsv", "--out", tmp_path / "data")
    said = capsys.readouterr()
    assert "dev" in said.out + said.err
    assert "next: aoq run" not in said.err


@pytest.mark.parametrize(
    ("options", "alike"),
    [
        ([], "--grid 3"),
        (["--grid", 2], "--grid 2"),
        (["--backbone", "some/network"], "--backbone some/network --grid 3"),
        (["--out", "regions", "--force"], "--features regions"),
    ],
)
@pytest.mark.usefixtures("mean_colour")
def test_extracted_pictures_are_followed_by_the_build_of_the_documents(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[object],
    alike: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "photos", 1)
    aoq("extract", "photos", *options)
    expected = f"next: aoq data build captions.csv --pictures photos {alike} --out data/mine\n"
    assert expected in capsys.readouterr().err


@pytest.mark.usefixtures("mean_colour")
def test_scenes_are_followed_by_their_own_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aoq("data", "build", "scenes", "--size", "tiny", "--out", tmp_path / "scenes")
    assert "next: aoq run scenes-tiny --data" in capsys.readouterr().err


def test_regions_named_by_folder_and_file_fit_karpathys_names(tmp_path: Path) -> None:
    """The pictures are on another machine, where they lie in the folders that the file names."""
    images = [
        {
            "filepath": "val2014",
            "filename": f"{n}.jpg",
            "split": split,
            "sentences": [{"raw": text}],
        }
        for n, (split, text) in enumerate(
            [("train", "a red cat"), ("val", "a cow"), ("test", "two")]
        )
    ]
    (tmp_path / "dataset.json").write_text(json.dumps({"images": images}))
    lines = [bottom_up_line(f"val2014/{n}.jpg", seed=n) for n in range(3)]
    (tmp_path / "a.tsv").write_bytes(b"".join(lines))
    build = ("data", "build", tmp_path / "dataset.json", "--features", tmp_path / "a.tsv")
    aoq(*build, "--out", tmp_path / "built")
    assert open_dataset(tmp_path / "built", "test").image_ids == ("val2014/2.jpg",)


def test_regions_fit_names_whose_accents_are_encoded_otherwise(tmp_path: Path) -> None:
    """The pictures were extracted on a Mac, and are not here."""
    names = [f"Käse {number}.jpg" for number in range(3)]
    lines = [f"{unicodedata.normalize('NFC', name)},some cheese" for name in names]
    (tmp_path / "captions.csv").write_text("\n".join(["image,caption", *lines]))
    there = [unicodedata.normalize("NFD", name) for name in names]
    regions = [bottom_up_line(name, seed=number) for number, name in enumerate(there)]
    (tmp_path / "a.tsv").write_bytes(b"".join(regions))
    build = ("data", "build", tmp_path / "captions.csv", "--features", tmp_path / "a.tsv")
    aoq(*build, "--out", tmp_path / "built")
    assert open_dataset(tmp_path / "built", "train").image_ids[0] in "".join(lines)
