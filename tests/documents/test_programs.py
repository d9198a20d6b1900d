"""Every Python block and every file of settings in the documents runs on tiny data.

A block stands between sentences, so names that it takes for granted are made here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import aoq
from aoq.experiments.definition import load_definition
from tests.commands import aoq as command
from tests.documents.blocks import BLOCKS, PYTHON, Block
from tests.training.cases import small_recipe

# Blocks that other tests run, by a part of them.
RUN_ELSEWHERE = {
    "aoq.build_scenes(": "tests/end_to_end/test_demo.py",
    "import wandb": "tests/training/test_callbacks.py",
    "import mlflow": "tests/training/test_callbacks.py",
}


def vectors(*names: str) -> dict[str, Any]:
    random = torch.Generator().manual_seed(0)
    made = {name: torch.randn(4, 8, generator=random) for name in names}
    return {name: torch.nn.functional.normalize(rows, dim=1) for name, rows in made.items()}


def batch() -> dict[str, Any]:
    """Unit vectors of a batch with offline negatives, as the README names them."""
    sides = [f"{side}{role}" for side in ("images", "texts") for role in ("", "_off", "_partner")]
    return vectors(*sides) | {"belongs": torch.tensor([False, True, False, False])}


def mined() -> dict[str, Any]:
    """Lists of data/mine, and what the documents read of it."""
    dataset = aoq.open_dataset("data/mine", "train")
    lists = aoq.CandidateLists.load("LISTS")
    lists.save("lists.safetensors")
    return {
        "lists": lists,
        "dataset": dataset,
        "positives": dataset.positives,
        "captions": dataset.captions,
    }


def loop() -> dict[str, Any]:
    from torch.utils.data import DataLoader

    seen: list[int] = []
    return mined() | {
        "DataLoader": DataLoader,
        "read_pixels": lambda image: torch.full((3,), float(image)),
        "train": lambda *parts: seen.append(len(parts)),
        "epochs": 2,
    }


def six_columns() -> dict[str, Any]:
    from datasets import Dataset

    given = mined()
    config = aoq.SamplingConfig(depth_texts=5, depth_images=5)
    sampler = aoq.OfflineSampler(given["lists"], given["positives"], config=config, seed=0)
    text = given["captions"].__getitem__
    return {"Dataset": Dataset, "pairs": aoq.OfflineDataset(sampler, image=str, text=text)}


def sentences() -> dict[str, Any]:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

    lines = [json.loads(line) for line in Path("pairs.jsonl").read_text().splitlines()]
    return {"model": SentenceTransformer("MODEL"), "pairs": Dataset.from_list(lines)}


def exported() -> dict[str, Any]:
    done = command("mine", "export", "LISTS", "--data", "data/mine", "--out", "lists")
    assert done.returncode == 0, done.stderr
    return {}


def trainer() -> dict[str, Any]:
    from transformers import Trainer

    return {"Trainer": Trainer}


def towers(form: str, out: str) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        import transformers
        from sentence_transformers import SentenceTransformer

        done = command("export", "runs/heads", "--format", form, "--out", out)
        assert done.returncode == 0, done.stderr
        names = ("AutoModel", "AutoImageProcessor", "AutoTokenizer")
        return {
            **{name: getattr(transformers, name) for name in names},
            "SentenceTransformer": SentenceTransformer,
            "photos": [Image.open("photo.jpg")],
            "texts": ["a dog", "a cat in the snow"],
        }

    return make


def one_epoch() -> dict[str, Any]:
    recipe = small_recipe("f30k_precomp", rounds="one")
    shortened = replace(recipe.round_one, epochs=1, decay_after=1)
    return {"torch": torch, "recipe": replace(recipe, round_one=shortened)}


# What a block takes for granted, by a part of it.
GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "derived_mask=~belongs": batch,
    "pairs.set_epoch(epoch)": loop,
    "Dataset.from_list(list(pairs))": six_columns,
    "aoq.mine_hard_negatives(": sentences,
    'train.cast_column("positive"': mined,
    'data_files="lists/t2i.jsonl"': exported,
    "class MatchingTrainer": trainer,
    "tarfile.open": mined,
    'AutoModel.from_pretrained("clip-of-mine")': towers("transformers", "clip-of-mine"),
    'SentenceTransformer("mine-st")': towers("sentence-transformers", "mine-st"),
    "make_optimizer=sgd": one_epoch,
}


def is_elsewhere(block: Block) -> bool:
    """Whether another test runs it; own-model.md has pieces of the examples (tests/examples)."""
    return block.page.name == "own-model.md" or any(part in block.text for part in RUN_ELSEWHERE)


@pytest.mark.parametrize(
    "block", [pytest.param(each, id=each.place) for each in PYTHON if not is_elsewhere(each)]
)
def test_the_python_of_a_document_runs(block, world):
    names = {"aoq": aoq}
    for part, make in GIVEN.items():
        if part in block.text:
            names |= make()
    exec(compile(block.text, block.place, "exec"), names)


def test_what_blocks_take_for_granted_is_still_needed():
    for part in (*GIVEN, *RUN_ELSEWHERE):
        assert any(part in block.text for block in PYTHON), part


ROW = """
name = "parts"
description = "What docs/experiments.md adds to an experiment."
seeds = [0, 1]
teacher = "VSRN"

[[rows]]
label = "VSRN"
recipe = "vsrn-flickr8k+online"
"""


def settings(start: str) -> str:
    (text,) = (block.text for block in BLOCKS if block.text.startswith(start))
    return text


def test_the_recipe_of_the_documents_changes_what_it_says(tmp_path):
    (tmp_path / "mine.toml").write_text(settings("# mine.toml"))
    recipe = aoq.load_recipe(str(tmp_path / "mine.toml"))
    assert (recipe.data, recipe.model.joint_width) == ("data/mine", 512)
    assert recipe.round_two.loss.name == "off_tri"


def test_the_optimisation_of_the_documents_is_one_of_a_recipe(tmp_path):
    (tmp_path / "adamw.toml").write_text('extends = "vsrn-f30k"\n' + settings("[round_one]"))
    round_one = aoq.load_recipe(str(tmp_path / "adamw.toml")).round_one
    assert (round_one.optimizer, round_one.schedule, round_one.ema) == ("adamw", "cosine", 0.999)


def test_the_experiment_of_the_documents_has_its_rows(tmp_path):
    (tmp_path / "alpha.toml").write_text(settings("name = "))
    definition = load_definition(tmp_path / "alpha.toml")
    assert definition.rows[0].label == definition.teacher
    assert len(definition.rows) == 3


def test_the_choice_and_the_ensemble_of_the_documents_fit_an_experiment(tmp_path):
    parts = (ROW, settings("[[rows]]"), settings("[[ensembles]]"))
    (tmp_path / "parts.toml").write_text("\n".join(parts))
    definition = load_definition(tmp_path / "parts.toml")
    assert [choice.label for choice in definition.choices] == ["VSRN (tuned)"]
    assert [ensemble.label for ensemble in definition.ensembles] == ["2 x VSRN"]
