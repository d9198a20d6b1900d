"""Photos by words, by the model, and by both, on Flickr8k: the tables of docs/search.md.

Each caption of test is searched among the photos of test. A photo's text are its other captions:
the one that is asked for is left out. The weight of words and the bars are those that dev chose.

    python -m reproduction words RUN --index FOLDER
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aoq.errors import UserError
from aoq.experiments.results import machine
from aoq.experiments.tables import TextTable
from aoq.progress import progress_bar
from aoq.retrieval.allowed import Allowed
from aoq.retrieval.build import Contents, build_index
from aoq.retrieval.calibration import Calibration
from aoq.retrieval.dev_queries import JUDGED, JudgedHits, photo_rankings, photos_of, recall_of
from aoq.retrieval.fusion import Fusion
from aoq.retrieval.index import INDEX
from aoq.retrieval.matcher import Matcher
from aoq.storage import write_json
from reproduction import ROOT

WORD_RESULTS = ROOT / "results" / "words.json"
_PRECISIONS = (0.5, 0.6, 0.7, 0.8, 0.9)
_LABELS = {
    "model": "the model alone",
    "words": "words of captions alone",
    "ranks": "merged by reciprocal ranks",
    "merged": "merged by the weight that dev chose",
}


def search_test(run: Path, index: Path, *, results: Path = WORD_RESULTS) -> None:
    """Search the photos of test for each of its captions, and record the recall."""
    if not (index / INDEX).is_file():
        build_index(run, Contents(splits=("dev", "test")), out=index)
    matcher = Matcher.load(run, index=index)
    tuning = matcher.index.manifest.tuning
    if tuning is None or tuning.weight is None:
        raise UserError(f"{index} holds no captions of dev; make it with --splits dev test.")
    images, texts = matcher.index.images, matcher.index.texts
    photos = Allowed.of_mask(np.array([image.split == "test" for image in images]))
    asked = [text.number for text in texts if text.split == "test"]
    with progress_bar("search", total=len(asked), unit="captions") as update:
        found = []
        for text in asked:
            found.append(photos_of(matcher, text, photos, depth=len(photos)))
            update(advance=1)
    rankings = photo_rankings(found, tuning.weight)
    rankings["ranks"] = [
        JudgedHits.of(Fusion().merge(each.model, each.words), each.right) for each in found
    ]
    write_json(
        results,
        {
            "model": matcher.index.manifest.model_name,
            "photos": len(photos),
            "captions": len(asked),
            "weight": tuning.weight,
            "dev": dict(tuning.recall),
            "test": {name: recall_of(rankings[name]) for name in _LABELS},
            "precision": {
                name: [
                    _precision(rankings[name], matcher.calibrations[name], wanted)
                    for wanted in _PRECISIONS
                ]
                for name in ("model", "words", "merged")
            },
            "machine": machine(),
        },
    )


def _precision(
    rankings: Sequence[JudgedHits], calibration: Calibration, wanted: float
) -> dict[str, Any]:
    """Count the first hits of test that reach the bar of a precision on dev, and the right ones."""
    bar = calibration.bar(wanted)
    if bar is None:
        return {"wanted": wanted, "bar": None}
    right = [each.right[:JUDGED][each.scores[:JUDGED] >= bar] for each in rankings]
    counts = {"hits": sum(map(len, right)), "right": int(sum(each.sum() for each in right))}
    return {"wanted": wanted, "bar": bar, **counts, "answered": sum(map(any, right))}


def precision_table(results: Path = WORD_RESULTS) -> str:
    """Show the share of hits on test that is right above the bars that dev set."""
    found: dict[str, Any] = json.loads(results.read_text("utf-8"))
    rows = []
    for place, wanted in enumerate(_PRECISIONS):
        cells = [f"{wanted:.0%}"]
        for name in ("model", "words", "merged"):
            each = found["precision"][name][place]
            if each["bar"] is None or not each["hits"]:
                cells += ["", ""]
                continue
            share = each["answered"] / found["captions"]
            cells += [f"{each['right'] / each['hits']:.1%}", f"{share:.1%}"]
        rows.append(tuple(cells))
    headings = [
        heading for name in ("model", "words", "merged") for heading in (f"{name}: right", "found")
    ]
    return TextTable(("wanted", *headings), rows).markdown()


def word_table(results: Path = WORD_RESULTS) -> str:
    """Show the recall of photos on test for each way to rank them."""
    found: dict[str, Any] = json.loads(results.read_text("utf-8"))
    rows = [
        (label, *(f"{100 * found['test'][name][depth]:.1f}" for depth in ("r1", "r5", "r10")))
        for name, label in _LABELS.items()
    ]
    return TextTable(("", "R@1", "R@5", "R@10"), rows).markdown()
