"""Right answers among the hardest negatives, on Flickr8k: tables of docs/mining.md and training.md.

`measure_matches` hides one caption of each training image from a model and from the estimate of
matches. What is known of the hidden captions then tells whether the estimate is right: they are
matches, and so are candidates that say nearly the same as the hidden caption of an image.

`compare_losses` cuts captions to their first three frequent words, so that many images share one,
and trains a small model by several losses and by what `aoq run` chooses itself.

    python -m reproduction right-answers --data FOLDER --out FOLDER
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from aoq.config import LossConfig, LossName, MiningConfig, Recipe
from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset
from aoq.data.vocabulary import Vocabulary
from aoq.mining.candidates import Provenance
from aoq.mining.captions import same_in_batch, words_of
from aoq.mining.mine import mine
from aoq.mining.overlap import WordOverlap
from aoq.progress import say
from aoq.recipes import load_recipe
from aoq.runs.checkpoint import load_run
from aoq.runs.directory import ROUND_ONE, RunDirectory
from aoq.scoring.encoded import encode_dataset
from aoq.storage import read_json_lines, write_json
from aoq.training.inputs import TrainingData
from aoq.training.two_rounds import run_recipe
from aoq.types import Positives
from reproduction import ROOT

RIGHT_ANSWERS = ROOT / "results" / "right-answers.json"
_NEAR = 0.6  # words in both over words in either: enough to say nearly the same
_EDGES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_IMAGES = 1_000  # of the templates
_FREQUENT = 40  # words that templates are made of
_SKIPPED = 25  # the most frequent words: articles, prepositions


def measure(data: Path, out: Path) -> None:
    """Measure both, and store what is found."""
    found = {"matches": measure_matches(data, out / "matches")}
    write_json(RIGHT_ANSWERS, found)
    found["losses"] = compare_losses(data, out / "templates")
    write_json(RIGHT_ANSWERS, found)


def measure_matches(data: Path, out: Path) -> dict[str, Any]:
    """Compare the estimate of matches with captions that it has not seen."""
    train, dev = open_dataset(data, "train"), open_dataset(data, "dev")
    pairs, starts = train.positives.pairs, train.positives.starts
    is_hidden = np.zeros(len(pairs), dtype=bool)
    is_hidden[starts[1:] - 1] = True  # the last of each image
    shown, hidden = (_relation(train, pairs[rows]) for rows in (~is_hidden, is_hidden))
    seen = _only(train, shown.pairs)
    vocabulary = Vocabulary.build(seen.captions, min_count=4)
    teacher = TrainingData(Collator(seen, vocabulary), Collator(dev, vocabulary), None, vocabulary)
    run_recipe(out, load_recipe("cca"), data=teacher)
    model = load_run(out / ROUND_ONE).model
    lists = mine(
        model,
        encode_dataset(model, Collator(train, vocabulary)),
        shown,
        config=MiningConfig(estimate_matches=True),
        provenance=Provenance(teacher="cca", data=""),
        captions=train.captions,
    )
    assert lists.i2t_matches is not None
    p, texts = lists.i2t_matches.ravel(), lists.i2t.ravel().astype(np.int64)
    images = np.repeat(np.arange(len(train)), lists.depth_texts)
    is_own = hidden.contains(images, texts)
    is_near = np.nan_to_num(WordOverlap(hidden, train.captions).of(images, texts)) >= _NEAR
    usual = _share_of_siblings(shown, hidden, train.captions)
    rows = []
    for low, high in pairwise(_EDGES):
        chosen = (p >= low) & ((p < high) | (high == 1.0))
        near = float((is_near & ~is_own)[chosen].mean())
        rows.append(
            {
                "p": [low, high],
                "candidates": int(chosen.sum()),
                "mean_p": float(p[chosen].mean()),
                "hidden_captions": float(is_own[chosen].mean()),
                "near_a_hidden_caption": near,
                "implied": near / usual,
            }
        )
    return {
        "share": float(p.mean()),
        "hidden_found": float(is_own.sum() / len(hidden.pairs)),
        "near_among_captions_of_one_image": usual,
        "rows": rows,
    }


def _relation(dataset: PairDataset, pairs: np.ndarray[Any, Any]) -> Positives:
    return Positives.from_pairs(pairs, n_images=len(dataset), n_texts=dataset.n_texts)


def _only(dataset: PairDataset, pairs: np.ndarray[Any, Any]) -> PairDataset:
    """Return a data set of some images' pairs, with images and captions numbered anew."""
    images, image_of = np.unique(pairs[:, 0], return_inverse=True)
    texts, text_of = np.unique(pairs[:, 1], return_inverse=True)
    return PairDataset.of(
        np.asarray(dataset.features)[images],
        [dataset.captions[text] for text in texts],
        np.stack([image_of, text_of], axis=1),
        split=dataset.split,
    )


def _share_of_siblings(shown: Positives, hidden: Positives, captions: Sequence[str]) -> float:
    """How often one caption of an image is near one other caption of it."""
    one = replace(shown, pairs=shown.pairs[shown.starts[:-1]])
    likeness = WordOverlap(one, captions).of(*np.ascontiguousarray(hidden.pairs.T))
    return float((likeness >= _NEAR).mean())


def compare_losses(data: Path, out: Path) -> dict[str, Any]:
    """Train by several losses on captions that many images share."""
    splits = {split: open_dataset(data, split) for split in ("train", "dev", "test")}
    counts = Counter(word for each in splits["train"].captions for word in words_of(each))
    frequent = [word for word, _ in counts.most_common(_SKIPPED + _FREQUENT)[_SKIPPED:]]
    cut = {split: templated(dataset, frequent) for split, dataset in splits.items()}
    vocabulary = Vocabulary.build(cut["train"].captions, min_count=1)
    train, dev, test = (Collator(each, vocabulary) for each in cut.values())
    alike = same_in_batch(cut["train"].positives, cut["train"].captions, batch_size=128)
    rows = {}
    for label, recipe in recipes().items():
        data_of_run = TrainingData(train, dev, test, vocabulary, 1)
        result = run_recipe(out / label.replace(" ", "-"), recipe, data=data_of_run)
        last = out / label.replace(" ", "-") / f"round-{recipe.last_round}"
        rows[label] = {"dev": best_on_dev(last), "test": result["rsum"]}
        say(f"{label}: {rows[label]}")
    return {"same_in_batch": alike, "images": len(cut["train"]), "rows": rows}


def templated(dataset: PairDataset, frequent: Sequence[str]) -> PairDataset:
    """Cut captions to their first three frequent words, and the set to its first images."""
    kept = dataset.positives.pairs[dataset.positives.pairs[:, 0] < _IMAGES]
    whole = _only(dataset, kept)
    chosen = set(frequent)
    captions = [
        " ".join([word for word in words_of(each) if word in chosen][:3]) or "something"
        for each in whole.captions
    ]
    return replace(whole, captions=tuple(captions))


def recipes() -> Mapping[str, Recipe]:
    """What is compared: one model and schedule, several losses."""
    base = load_recipe("bow-small")
    one = replace(base.round_one, epochs=8)

    def with_loss(name: LossName, **changes: Any) -> Recipe:
        loss = replace(LossConfig(), name=name)
        return replace(base, round_one=replace(one, loss=loss, **changes))

    chosen = load_recipe("bow-small+alike-captions")
    two = replace(one, loss=chosen.round_two.loss)
    return {
        "Eq 1": with_loss("standard"),
        "online": with_loss("online", warmup_epochs=2),
        "online falls back": with_loss("online", warmup_epochs=2, fall_back_after=2),
        "InfoNCE": replace(base, round_one=one),
        "Eq 5": replace(
            base,
            rounds="both",
            round_one=one,
            round_two=replace(one, loss=LossConfig(name="adap_off_quin"), warmup_epochs=2),
        ),
        "alike captions": replace(chosen, rounds="both", round_one=one, round_two=two),
    }


def best_on_dev(run: Path) -> float:
    """Return the rsum on dev of the epoch that a round keeps."""
    lines = read_json_lines(RunDirectory(run).events)
    kept = [line for line in lines if line["event"] == "validation" and line["best"]]
    return float(kept[-1]["rsum"])


def matches_table(found: Mapping[str, Any]) -> str:
    """Write what `measure_matches` found as a table of docs/mining.md."""
    lines = [
        "| p | candidates | mean p | share that held-out captions imply |",
        "| --- | ---: | ---: | ---: |",
    ]
    for row in found["rows"]:
        low, high = row["p"]
        lines.append(
            f"| {low:g} to {high:g} | {row['candidates']:,} | {row['mean_p']:.2f} | "
            f"{row['implied']:.2f} |"
        )
    return "\n".join(lines)


def losses_table(found: Mapping[str, Any]) -> str:
    """Write what `compare_losses` found as a table of docs/training.md."""
    lines = ["| loss | dev rsum | test rsum |", "| --- | ---: | ---: |"]
    lines += [
        f"| {label} | {row['dev']:.1f} | {row['test']:.1f} |"
        for label, row in found["rows"].items()
    ]
    return "\n".join(lines)
