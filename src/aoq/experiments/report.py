"""The report of an experiment: one HTML file that needs nothing else.

The table, the training curves, mined negatives as pictures, and retrievals where the settings
disagree. Pictures are small JPEGs inside the page, so it can be mailed and opened offline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aoq.data.collate import Collator
from aoq.data.dataset import PairDataset, open_dataset
from aoq.errors import UserError
from aoq.evaluation.ranks import ranks_of_matrix
from aoq.experiments.figures import Curve, training_curves
from aoq.experiments.pages import thumbnail, write_page
from aoq.experiments.tables import COLUMNS, formatted_rows
from aoq.mining.candidates import CandidateLists
from aoq.recipes import load_recipe
from aoq.scoring.encoded import encode_dataset
from aoq.storage import RunDirectory, read_json_lines
from aoq.training.checkpoint import load_run
from aoq.training.trained import stored_result
from aoq.types import Ids

_SHOWN_NEGATIVES = 4
_SHOWN_QUERIES = 4
_SHOWN_ANSWERS = 3


@dataclass(frozen=True)
class Setting:
    """A trained setting: its place, its test result and its validation by epoch."""

    title: str
    folder: Path
    result: dict[str, Any]
    validation: dict[int, dict[str, Any]]
    seconds: float
    "Of all its epochs."

    @classmethod
    def read(cls, title: str, folder: Path) -> Setting:
        result = stored_result(folder, split="test")
        if result is None:
            raise UserError(f"{folder} has no test result yet; run `aoq evaluate {folder}`.")
        events = read_json_lines(RunDirectory(folder).events)
        return cls(
            title=title,
            folder=folder,
            result=result,
            validation={line["epoch"]: line for line in events if line["event"] == "validation"},
            seconds=sum(line["seconds"] for line in events if line["event"] == "epoch"),
        )

    def curve(self, key: str) -> Curve:
        return [(epoch, line[key]) for epoch, line in sorted(self.validation.items())]


@dataclass(frozen=True)
class Item:
    """A picture or a sentence on the page; `right` says whether it answers the query."""

    picture: str | None = None
    text: str | None = None
    score: float | None = None
    right: bool = False


@dataclass(frozen=True)
class MinedExample:
    """A pair with the hardest candidate of its image and of its text."""

    image: Item
    text: Item
    hard_text: Item
    hard_text_image: Item
    hard_image: Item
    hard_image_text: Item


@dataclass(frozen=True)
class Retrieval:
    """One query and what each setting puts first."""

    query: Item
    answers: dict[str, list[Item]]
    ranks: dict[str, int]


def write_report(run: RunDirectory, settings: Sequence[Setting]) -> Path:
    """Write `report.html` into the run from what its settings have stored."""
    recipe = load_recipe(run.config)
    data = Path(recipe.data)
    train = open_dataset(data, "train")
    lists = CandidateLists.load(run.candidates).require_fit(train, source=run.candidates)
    write_page(
        run.report,
        "report.html.j2",
        headings=[heading for heading, *_ in COLUMNS],
        rows=formatted_rows({setting.title: setting.result for setting in settings}),
        curves=training_curves(
            {
                "dev rsum": {s.title: s.curve("rsum") for s in settings},
                "dev R@1, sentences for a picture": {s.title: s.curve("i2t_r1") for s in settings},
                "dev R@1, pictures for a sentence": {s.title: s.curve("t2i_r1") for s in settings},
            }
        ),
        mined=_mined_examples(train, lists),
        retrievals=_retrievals(settings, data),
        settings=settings,
        recipe=recipe,
    )
    return run.report


def _mined_examples(dataset: PairDataset, lists: CandidateLists) -> list[MinedExample]:
    """Pairs spread over the training set, each with the first of both its lists."""
    positives = dataset.positives

    def picture(image_id: int, score: float | None = None) -> Item:
        return Item(picture=thumbnail(dataset.pictures[image_id]), score=score)

    def sentence(text_id: int, score: float | None = None) -> Item:
        return Item(text=dataset.captions[text_id], score=score)

    rows = np.linspace(0, len(positives.pairs) - 1, _SHOWN_NEGATIVES + 2).astype(int)[1:-1]
    examples = []
    for image_id, text_id in positives.pairs[rows]:
        hard_text, hard_image = int(lists.i2t[image_id, 0]), int(lists.t2i[text_id, 0])
        examples.append(
            MinedExample(
                image=picture(image_id),
                text=sentence(text_id),
                hard_text=sentence(hard_text, float(lists.i2t_scores[image_id, 0])),
                hard_text_image=picture(int(positives.images_of(hard_text)[0])),
                hard_image=picture(hard_image, float(lists.t2i_scores[text_id, 0])),
                hard_image_text=sentence(int(positives.texts_of(hard_image)[0])),
            )
        )
    return examples


def _retrievals(settings: Sequence[Setting], data: Path) -> list[Retrieval]:
    """Sentence queries of the test split for which the settings disagree the most."""
    dataset = open_dataset(data, "test")
    scores = {setting.title: _test_scores(setting.folder, dataset) for setting in settings}
    ranks = {
        title: ranks_of_matrix(matrix, dataset.positives).t2i + 1
        for title, matrix in scores.items()
    }
    chosen = _where_ranks_differ(np.stack(list(ranks.values())))
    return [
        Retrieval(
            query=Item(text=dataset.captions[text]),
            answers={
                title: [
                    Item(
                        picture=thumbnail(dataset.pictures[image]),
                        score=float(matrix[image, text]),
                        right=bool(dataset.positives.contains(image, text)),
                    )
                    for image in np.argsort(-matrix[:, text], kind="stable")[:_SHOWN_ANSWERS]
                ]
                for title, matrix in scores.items()
            },
            ranks={title: int(of_setting[text]) for title, of_setting in ranks.items()},
        )
        for text in chosen
    ]


def _where_ranks_differ(ranks: Ids) -> Ids:
    """Queries that some setting answers at once, by how far the worst setting is off.

    Alternately the last and the first setting are the one that has it right, so that the page
    does not only show what speaks for one of them.
    """
    spread = ranks.max(axis=0) - ranks.min(axis=0)
    for_last = np.where((ranks[-1] == 1) & (ranks[0] > 1), spread, -1)
    for_first = np.where((ranks[0] == 1) & (ranks[-1] > 1), spread, -1)
    half = _SHOWN_QUERIES // 2
    chosen: list[int] = []
    for gain in (for_last, for_first):
        best = np.argsort(-gain, kind="stable")[:half]
        chosen += [int(query) for query in best if gain[query] >= 0]
    return np.array(chosen, dtype=np.int64)


def _test_scores(folder: Path, dataset: PairDataset) -> np.ndarray[Any, np.dtype[np.float32]]:
    trained = load_run(folder)
    encoded = encode_dataset(trained.model, Collator(dataset, trained.vocabulary))
    with torch.no_grad():
        return trained.model.score_matrix(encoded.images[:], encoded.texts[:]).numpy()
