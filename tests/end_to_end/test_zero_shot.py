"""From a pretrained model to a search in two commands, and every other command on the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from aoq.data.build import build_dataset
from aoq.features.regions import RegionSource
from aoq.runs.directory import RunDirectory
from aoq.runs.encodings import open_splits
from tests.commands import aoq, assert_refused
from tests.retrieval.conftest import SIZES, draw_photo, photo_records
from tests.towers import DUAL_ENCODERS, TinyModels

KINDS = ("clip", "siglip2-naflex")
UNHEARD_OF = "an unheard-of Xylophone, auf Deutsch"
ROUND_TWO = (
    *("--round-two.epochs", 2, "--round-two.batch-size", 8, "--model.joint-width", 8),
    *("--sampling.depth-texts", 6, "--sampling.depth-images", 4),
)


def run_aoq(*command: object) -> str:
    done = aoq(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answer_of(*command: object) -> Any:
    """What a command prints as JSON."""
    return json.loads(run_aoq(*command, "--json"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photos, with one in a folder below, and two files that are none."""
    folder = tmp_path_factory.mktemp("zero-shot") / "photos"
    for number in range(5):
        draw_photo(folder / f"{number}.png", seed=number)
    draw_photo(folder / "more" / "5.png", seed=5)
    (folder / "damaged.jpg").write_bytes(b"\xff\xd8\xff no picture")
    (folder / "notes.txt").write_text("no picture either")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set with features of another network, which the model does not read."""
    root = tmp_path_factory.mktemp("zero-shot-data")
    source = RegionSource(grid=2)
    build_dataset(photo_records(root / "photos"), root / "data", name="squares", source=source)
    return root / "data"


@pytest.fixture(scope="module", params=KINDS)
def run(
    tmp_path_factory: pytest.TempPathFactory, photos: Path, request: pytest.FixtureRequest
) -> Path:
    """An imported model with an index of the photos: the two commands before a search."""
    root = tmp_path_factory.mktemp(request.param)
    model = DUAL_ENCODERS[request.param](root / request.param)
    run_aoq("import", model, "--out", root / "run")
    indexed = aoq("index", root / "run", "--pictures", photos)
    assert indexed.returncode == 0, indexed.stderr
    assert "1 picture is left out" in indexed.stderr
    assert "indexed 6 images and 0 texts" in indexed.stderr
    return root / "run"


def test_photos_are_found_for_any_words(run: Path, photos: Path) -> None:
    answer = answer_of("search", run, UNHEARD_OF, "--top", 6)
    assert len(answer["hits"]) == 6
    assert not answer["unknown_words"]
    scores = [hit["score"] for hit in answer["hits"]]
    assert scores == sorted(scores, reverse=True)
    best = answer["hits"][0]
    (scored,) = answer_of("score", run, best["picture"], UNHEARD_OF)["scores"]
    assert scored["score"] == pytest.approx(best["score"], abs=1e-5)
    assert (best["probability"] is None) == ("siglip" not in str(run))


def test_an_index_of_photos_alone_has_no_texts_to_find(run: Path, photos: Path) -> None:
    done = aoq("search", run, "--image", photos / "0.png")
    assert_refused(done, "holds no texts")


def test_more_photos_can_be_added(run: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    draw_photo(tmp_path / "first" / "a.png", seed=20)
    draw_photo(tmp_path / "more" / "b.png", seed=21)
    run_aoq("index", run, "--pictures", tmp_path / "first", "--out", index)
    run_aoq("index", run, "--add", tmp_path / "more", "--out", index)
    assert len(answer_of("search", run, "a ball", "--index", index)["hits"]) == 2


def test_vectors_give_the_scores_of_a_search(run: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text(f"{UNHEARD_OF}\n")
    texts, pictures = tmp_path / "texts.npy", tmp_path / "photos.safetensors"
    run_aoq("encode", run, "--texts", tmp_path / "texts.txt", "--out", texts)
    run_aoq("encode", run, "--pictures", photos, "--out", pictures)
    cosines = load_file(pictures)["vectors"].numpy() @ np.load(texts)[0]
    hits = answer_of("search", run, UNHEARD_OF)["hits"]
    found = [hit["score"] for hit in hits]
    assert found == pytest.approx(sorted(cosines.tolist(), reverse=True), abs=1e-5)


def test_a_data_set_is_judged_indexed_and_compared(run: Path, data: Path, tmp_path: Path) -> None:
    judged = answer_of("evaluate", run, "--data", data, "--split", "test")
    assert judged["rsum"] > 0
    assert_refused(aoq("evaluate", run), "names no data set; add --data FOLDER")
    index = tmp_path / "index"
    run_aoq("index", run, "--data", data, "--out", index)
    picture = data.parent / "photos" / "test-0.png"
    by_photo = answer_of("search", run, "--image", picture, "--index", index, "--top", 3)
    assert len(by_photo["hits"]) == 3
    (row,) = answer_of("runs", run)
    assert row["stage"] == "imported"
    assert row["test"]["rsum"] == pytest.approx(judged["rsum"])
    assert "imported" in run_aoq("runs", "compare", run, run)


def test_round_one_can_be_the_model_as_it_is(run: Path, data: Path, tmp_path: Path) -> None:
    lists, two = tmp_path / "lists.safetensors", tmp_path / "two"
    depths = ("--depth-texts", 6, "--depth-images", 4)
    run_aoq("mine", run, "--data", data, "--out", lists, *depths)
    (split,) = open_splits([run], split="train", data=data)
    scores = split.scorer.score_matrix(split.encoded.images, split.encoded.texts)
    listed = load_file(lists)
    positives = split.dataset.positives
    for image in range(SIZES["train"]):
        ranked = scores[image].argsort(descending=True).tolist()
        own = set(positives.texts_of(image))
        expected = [text for text in ranked if text not in own][:6]
        assert listed["i2t"][image].tolist() == expected
    base = run.parent / run.parent.name.rstrip("0123456789")
    towers = ("--model.image", base)
    if "naflex" not in base.name:
        towers += ("--model.learn", "top", "--model.image-blocks", 1, "--model.text-blocks", 1)
    command = ("train", "towers", "--round", "two", "--candidates", lists, "--data", data)
    run_aoq(*command, "--out", two, *towers, *ROUND_TWO)
    assert RunDirectory(two).read_origin()["candidates"]
    assert answer_of("evaluate", two)["rsum"] > 0


def test_towers_that_were_trained_need_no_data_set_to_be_searched(
    data: Path, photos: Path, towers: TinyModels, tmp_path: Path
) -> None:
    moved = tmp_path / "data"
    data.rename(moved)
    try:
        run = tmp_path / "run"
        one = ("--round-one.epochs", 2, "--round-one.batch-size", 8, "--model.joint-width", 8)
        run_aoq("run", "towers", "--data", moved, "--model.image", towers.clip, "--out", run, *one)
    finally:
        moved.rename(data)
    assert_refused(aoq("index", run), "is not a folder")
    indexed = aoq("index", run, "--pictures", photos)
    assert indexed.returncode == 0, indexed.stderr
    assert "is not there; only photos are indexed" in indexed.stderr
    assert len(answer_of("search", run, UNHEARD_OF, "--top", 6)["hits"]) == 6
    assert answer_of("score", run, photos / "0.png", UNHEARD_OF)["scores"]
