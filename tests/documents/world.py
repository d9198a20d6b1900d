"""What the documents' commands find: photos, data sets, models and runs, all of them tiny.

Models of the hub are folders of the same name, so a command reads the same as in the document.
"""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from aoq.recipes import save_recipe
from tests.commands import aoq
from tests.conftest import write_precomp
from tests.towers import write_bert, write_clip, write_vit
from tests.training.cases import small_recipe

THINGS = ("dog", "cat", "car", "tree", "people", "house")
PLACES = ("in the snow", "at night", "on a street", "by a lake")
SPLITS = ("train", "train", "dev", "test")
CLIP, VIT = "openai/clip-vit-base-patch32", "google/vit-base-patch16-224"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
# Runs of the documents, by the small run that stands for them.
COPIES = {
    "runs/vsrn": (
        *("runs/vsrn-0", "runs/vsrn-a", "runs/vsrn-f30k", "runs/only", "runs/off-tri"),
        *(f"runs/seed-{seed}" for seed in range(5)),
    ),
    "runs/vsrn/round-one": ("runs/demo/round-one",),
    "runs/vsrn/round-two": ("runs/demo/adap-off-quin",),
    "runs/baseline": ("runs/vsrn-1", "runs/vsrn-2", "runs/vsrn-b"),
    "runs/bfan-equal": ("runs/bfan",),
    "runs/heads": ("runs/tuned",),
    "runs/clip": ("runs/photos",),
    "data/mine": ("data/scenes", "disk/mine", "DATA"),
    CLIP: ("WEIGHTS",),
    MINILM: ("MODEL",),
}
# A page that gives a name to another run than the others do.
OTHERWISE = {"hub.md": {"runs/mine": "runs/heads"}}
# What the reader of a block has done before, by a part of the block.
BEFORE = {
    "my_model:make_model": ("python examples/own_model.py data/mine runs/own",),
    "examples.clip:make_model": (f"python examples/clip.py captions.csv photos {CLIP} runs/clip",),
}
# Settings of an experiment with rows as docs/experiments.md names them.
EXPERIMENT = """
name = "mine"
description = "Offline negatives on data of one's own."
seeds = [0, 1]
teacher = "VSRN"

[[rows]]
label = "VSRN"
recipe = "scenes-tiny+online"

[[rows]]
label = "VSRN + OffTri"
recipe = "scenes-tiny+off-tri"
"""
MY_MODEL = """
from dataclasses import replace

import aoq
from examples.own_model import TwoTowers


def make_model():
    recipe = replace(aoq.load_recipe("scenes-tiny"), data="data/mine")
    data = aoq.open_training_data(recipe)
    return TwoTowers(data.feature_width, len(data.vocabulary))
"""


def write_world(folder: Path) -> None:
    """Write everything into an empty folder; the cache is where AOQ_CACHE says."""
    folder.mkdir()
    _draw(folder)
    write_clip(folder / CLIP)
    write_vit(folder / VIT)
    write_bert(folder / MINILM)
    for name in ("f30k_precomp", "coco_precomp"):
        data = write_precomp(folder / name, images=40)
        for part in ("ims.npy", "caps.txt"):
            shutil.copy(data / f"test_{part}", data / f"testall_{part}")
    with chdir(folder):
        for words in (
            "data build captions.csv --pictures photos --grid 3 --out data/mine",
            "data build captions.csv --pictures more-photos --grid 3 --out data/other",
            f"import {CLIP} --out runs/clip",
            f"import {CLIP} --default",
            f"run towers --data data/mine --model.image {CLIP} --round-one.epochs 1 "
            "--out runs/heads --model.learn top --round-one.tower-learning-rate 1e-5 "
            "--model.head none",
        ):
            _run(words)
        _train("runs/vsrn", "f30k_precomp")
        _train("runs/baseline", "f30k_precomp", seed=1)
        _train("runs/bfan-equal", "f30k_precomp", name="bfan")
        _train("runs/bfan-prob", "f30k_precomp", name="bfan", seed=1)
        _train("runs/mine", "data/mine")
        shutil.copy("runs/vsrn/candidates.safetensors", "lists.safetensors")
        shutil.copy("runs/mine/candidates.safetensors", "LISTS")
        Path("my_model.py").write_text(MY_MODEL)
        Path("mine.toml").write_text(EXPERIMENT)
        _write_regions(Path("detected.tsv"))
        for made, names in COPIES.items():
            for name in names:
                shutil.copytree(made, name)
        for run in ("runs/mine", "runs/heads"):
            _run(f"index {run}")
        _run("index runs/clip --pictures photos")


def _train(out: str, data: str, *, name: str = "vsrn", seed: int = 0) -> None:
    recipe = small_recipe(data, seed=seed)
    epochs = {"epochs": 1, "decay_after": 1}
    recipe = replace(
        recipe,
        model=replace(recipe.model, name=name),
        round_one=replace(recipe.round_one, **epochs),
        round_two=replace(recipe.round_two, **epochs),
    )
    save_recipe(recipe, Path("small.toml"))
    _run(f"run small.toml --out {out}")
    Path("small.toml").unlink()


def _run(words: str) -> None:
    done = aoq(*words.split())
    assert done.returncode == 0, f"{words}: {done.stderr}"


def _draw(folder: Path) -> None:
    """Photos of one colour each, with captions in all three splits."""
    lines = []
    for name in ("photos", "more-photos"):
        (folder / name / "trips").mkdir(parents=True)
        (folder / name / "drafts").mkdir()
    numbers = np.random.default_rng(0).integers(0, 256, size=(48, 3), dtype=np.uint8)
    for number, thing in enumerate(THINGS * 8):
        place = PLACES[number % len(PLACES)]
        file = {0: "dog.jpg", 1: "one.jpg", 2: "drafts/2.jpg"}.get(number, f"trips/{number}.jpg")
        for name in ("photos", "more-photos"):
            pixels = np.broadcast_to(numbers[number], (40, 48, 3))
            Image.fromarray(pixels + np.uint8(name != "photos")).save(folder / name / file)
        row = f'{file},"a {thing} {place}{{}}",{SPLITS[number // 6 % 4]}'
        lines += [row.format(""), row.format(f" and one more, number {number}")]
    (folder / "captions.csv").write_text("image,caption,split\n" + "\n".join(lines) + "\n")
    for name in ("photo.jpg", "dog.jpg"):
        shutil.copy(folder / "photos" / "dog.jpg", folder / name)
    pairs = [{"anchor": f"a {thing}", "positive": f"one {thing} here"} for thing in THINGS]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))


def _write_regions(path: Path) -> None:
    """A file of a detector, with 36 regions of two pictures."""
    features = np.random.default_rng(0).random((36, 8), dtype=np.float32)
    boxes = np.tile(np.float32([0, 0, 32, 48]), (36, 1))  # left, top, right, bottom
    arrays = "\t".join(b64encode(array.tobytes()).decode() for array in (boxes, features))
    path.write_text("".join(f"{number}\t64\t64\t36\t{arrays}\n" for number in (1, 2)))
