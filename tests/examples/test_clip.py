"""The example that fine-tunes CLIP, on a few drawn pictures and with a tiny CLIP."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.data.sources.records import read_records
from aoq.errors import UserError
from examples.clip import DualEncoder, main, read_data, write_tiny_clip
from tests.commands import aoq

ROOT = Path(__file__).parents[2]
COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 200, 40),
    "blue": (30, 40, 220),
    "yellow": (230, 220, 40),
    "white": (245, 245, 245),
    "black": (10, 10, 10),
}
SHADES = {"train": (0, 12, 24), "dev": (6,), "test": (18,)}


def draw(folder: Path, shades_of: dict[str, tuple[int, ...]]) -> Path:
    """Pictures of one colour each, a little darker or lighter, and their captions."""
    folder.mkdir()
    lines = []
    for split, shades in shades_of.items():
        for name, colour in COLOURS.items():
            for shade in shades:
                file = f"{name}-{shade}.png"
                pixels = tuple(np.clip(np.array(colour) + shade - 12, 0, 255).tolist())
                Image.new("RGB", (40, 36), pixels).save(folder / file)
                captions = (f"a {name} wall", f"the whole picture is {name}")
                lines += [{"image": file, "caption": text, "split": split} for text in captions]
    file = folder / "captions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def fine_tune(tmp_path: Path, *options: str, shades=SHADES) -> None:
    captions = draw(tmp_path / "pictures", shades)
    torch.manual_seed(0)
    main(
        [
            *(str(captions), str(captions.parent), str(tmp_path / "tiny"), str(tmp_path / "run")),
            *("--from-config", "--batch-size", "12", *options),
        ]
    )


def told(capsys, *, split="test") -> tuple[float, float]:
    words = re.search(rf"{split} rsum ([0-9.]+) before, ([0-9.]+) after", capsys.readouterr().err)
    return float(words.group(1)), float(words.group(2))


def test_fine_tuning_names_the_colours_of_pictures_it_has_not_seen(tmp_path, capsys):
    fine_tune(tmp_path, "--epochs", "9", "--warmup-epochs", "8", "--learning-rate", "2e-3")
    before, after = told(capsys)
    assert after > before + 100


def test_both_rounds_start_from_the_given_weights(tmp_path, capsys):
    fine_tune(tmp_path, "--epochs", "1", "--learning-rate", "1e-9")
    before, after = told(capsys)
    assert after == before
    given = load_file(tmp_path / "tiny" / "model.safetensors")
    again = AutoModel.from_pretrained(tmp_path / "run" / "encoder").state_dict()
    assert all(torch.allclose(again[weight], given[weight], atol=1e-6) for weight in given)
    for name in ("round-one", "round-two"):
        kept = load_file(tmp_path / "run" / name / "model.safetensors")
        assert kept.keys() == {f"encoder.{weight}" for weight in given}
        for weight, value in given.items():
            torch.testing.assert_close(kept[f"encoder.{weight}"], value, atol=1e-6, rtol=0)
    assert (tmp_path / "run" / "candidates.safetensors").is_file()


def test_commands_index_and_search_the_tuned_model(tmp_path, monkeypatch):
    fine_tune(tmp_path, "--epochs", "9", "--warmup-epochs", "8", "--learning-rate", "2e-3")
    monkeypatch.setenv("CLIP", str(tmp_path / "tiny"))
    monkeypatch.setattr(sys, "path", sys.path[:])
    run, model = tmp_path / "run", ("--model", "examples.clip:make_model")
    made = aoq("index", run, "--pictures", tmp_path / "pictures", *model, cwd=ROOT)
    assert made.returncode == 0, made.stderr
    found = aoq("search", run, "a red wall", "--top", "5", "--json", *model, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    names = {hit["id"].partition("-")[0] for hit in json.loads(found.stdout)["hits"]}
    assert names == {"red"}


def test_without_a_test_split_the_figures_are_labelled_dev(tmp_path, capsys):
    without_test = {split: SHADES[split] for split in ("train", "dev")}
    fine_tune(tmp_path, "--epochs", "1", "--learning-rate", "1e-9", shades=without_test)
    before, after = told(capsys, split="dev")
    assert after == before


def test_a_damaged_photo_is_one_sentence_that_names_it(tmp_path, capsys, monkeypatch):
    captions = draw(tmp_path / "pictures", SHADES)
    damaged = captions.parent / "red-0.png"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    places = (captions, captions.parent, tmp_path / "tiny", tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["clip.py", *map(str, places), "--from-config"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(ROOT / "examples" / "clip.py", run_name="__main__")
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith(f"error: {damaged} is damaged or truncated")
    assert said.splitlines()[-1].endswith("; replace the picture or leave it out.")


def test_a_tokenizer_that_returns_more_than_ids_is_refused(tmp_path):
    write_tiny_clip(tmp_path, ["a red wall"])
    dataset = PairDataset.of(np.zeros((1, 2, 3)), ["a red wall"], [(0, 0)])
    with pytest.raises(UserError, match=r"tokenizer\(caption\)\.input_ids"):
        Collator(dataset, AutoTokenizer.from_pretrained(tmp_path)).texts(np.array([0]))


def test_a_score_does_not_depend_on_company(tmp_path):
    fine_tune(tmp_path, "--epochs", "1")
    pictures = tmp_path / "pictures"
    records = read_records(pictures / "captions.jsonl", pictures=pictures)
    train = read_data(records, str(tmp_path / "tiny")).train
    assert len(set(train.text_lengths.tolist())) > 1
    model = DualEncoder(str(tmp_path / "tiny")).eval()
    with torch.no_grad():
        many = model.encode_texts(train.texts(np.arange(4))).vectors
        for text in range(4):
            alone = model.encode_texts(train.texts(np.array([text]))).vectors
            assert alone[0].numpy() == pytest.approx(many[text].numpy(), abs=1e-5)
