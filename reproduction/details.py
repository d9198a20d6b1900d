"""Do models get details right? Captions with one word swapped, against the true ones.

For each photo of dev and test, and each caption with a word that can be swapped
(`reproduction.swaps`), is the true caption scored above the swapped one? Chance is 50 %. A row that
sees no photo, and takes the caption with the word that is more frequent on train, shows what words
alone tell. The balanced share is the mean of the shares of swaps to rarer words and of the others:
preferring frequent words gains nothing there.

    python -m reproduction details RUN... --data FOLDER
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset
from aoq.distributed import default_device
from aoq.errors import UserError
from aoq.evaluation.bootstrap import Interval, percentiles
from aoq.experiments.results import machine
from aoq.experiments.tables import TextTable, shown_interval
from aoq.progress import say, warn
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import TrainedRun, load_run
from aoq.runs.encodings import own_data
from aoq.runs.summary import RunSummary
from aoq.scoring.encoded import encode_dataset, evaluation_mode
from aoq.storage import hash_parts, write_json
from aoq.types import Bools, Positives
from reproduction import ROOT
from reproduction.swaps import KINDS, Swap, count_words, find_swaps

DETAIL_RESULTS = ROOT / "results" / "details.json"
BLIND = "the more frequent word, photo unseen"
ALL = "all"
Counts = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
_SPLITS = ("dev", "test")
_RESAMPLES = 2_000
_AT_ONCE = 256  # pairs that are scored together


def measure_details(
    runs: Mapping[str, Path], data: Path | None = None, *, results: Path = DETAIL_RESULTS
) -> None:
    """Judge runs by label, and add them to the results; rows about other captions are dropped."""
    for label, run in runs.items():
        say(f"details with {label}")
        folder = best_round(run).path
        place = data or own_data(folder)
        trained = load_run(folder, device=default_device())
        counts = count_words(open_dataset(place, "train").captions)
        parts = [open_dataset(place, split) for split in _SPLITS]
        swaps = [find_swaps(part, counts) for part in parts]
        if not all(swaps):
            raise UserError(f"{place} has no caption of dev or test with a word to swap.")
        right = [score_swaps(trained, *each) for each in zip(parts, swaps, strict=True)]
        blind = [np.array([each.to_rarer for each in found]) for found in swaps]
        summary = RunSummary.read(folder)
        row = {
            "model": trained.recipe.model.name,
            "seed": trained.recipe.seed,
            "rsum": None if summary.test is None else summary.test["rsum"],
            **shares(swaps, right),
        }
        digest = hash_parts(json.dumps([[astuple(s) for s in found] for found in swaps]).encode())
        rows = _kept_rows(results, digest) | {BLIND: shares(swaps, blind), label: row}
        write_json(results, {"swaps": digest, "rows": rows, "machine": machine()})


def score_swaps(trained: TrainedRun, dataset: PairDataset, swaps: Sequence[Swap]) -> Bools:
    """Return for each swap whether the true caption scores above the swapped one; ties do not."""
    read = trained.collator(_with_captions(dataset, swaps), device=default_device())
    model = trained.model
    encoded = encode_dataset(model, read, description=f"encode swaps of {dataset.split}")
    images = torch.tensor([each.image for each in swaps])
    right = []
    with evaluation_mode(model):
        for rows in torch.arange(len(swaps)).split(_AT_ONCE):
            seen = encoded.images[images[rows]]
            true, swapped = (
                model.score_pairs(seen, encoded.texts[rows + first]) for first in (0, len(swaps))
            )
            right.append((true > swapped).cpu().numpy())
    return np.concatenate(right)


def _with_captions(dataset: PairDataset, swaps: Sequence[Swap]) -> PairDataset:
    """Return the data set with the captions of the swaps, the true ones before the swapped."""
    captions = [dataset.captions[each.caption] for each in swaps] + [each.text for each in swaps]
    images = np.tile([each.image for each in swaps], 2)
    pairs = np.stack([images, np.arange(len(captions))], axis=1)
    return replace(
        dataset,
        captions=tuple(captions),
        caption_ids=tuple(map(str, range(len(captions)))),
        positives=Positives.from_pairs(pairs, n_images=len(dataset), n_texts=len(captions)),
    )


def shares(swaps: Sequence[Sequence[Swap]], right: Sequence[Bools]) -> dict[str, Any]:
    """Return the shares that are right by kind, with 95 % intervals over photos.

    `swaps` and `right` have a part for each split; shares are of all of them.
    """
    found: dict[str, Any] = {}
    for kind in (*KINDS, ALL):
        parts = [
            _by_photo([judged for judged in pairs if kind in (judged[0].kind, ALL)])
            for pairs in (zip(*part, strict=True) for part in zip(swaps, right, strict=True))
        ]
        counts = np.concatenate(parts)
        drawn = _resampled(counts)
        found[kind] = {
            "photos": len(counts),
            "swaps": int(counts[:, [1, 3]].sum()),
            **{name: _figure(part, _share) for name, part in zip(_SPLITS, parts, strict=True)},
            "share": _figure(counts, _share),
            "interval": _interval(drawn, _share),
            "balanced": _figure(counts, _balanced),
            "balanced_interval": _interval(drawn, _balanced),
        }
    return found


def _by_photo(judged: Iterable[tuple[Swap, bool]]) -> Counts:
    """Count right swaps and all swaps of each photo, to rarer words and to others. (N, 4)"""
    rows: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for each, is_right in judged:
        column = 0 if each.to_rarer else 2
        rows[each.image][column] += bool(is_right)
        rows[each.image][column + 1] += 1
    return np.array(list(rows.values()), dtype=np.int64).reshape(-1, 4)


def _share(counts: Doubles) -> Doubles:
    """Return the share of all swaps that is right. (..., 4) to (...)"""
    return (counts[..., 0] + counts[..., 2]) / (counts[..., 1] + counts[..., 3])


def _balanced(counts: Doubles) -> Doubles:
    """Return the mean of the shares of swaps to rarer words and of others. (..., 4) to (...)"""
    return (counts[..., 0] / counts[..., 1] + counts[..., 2] / counts[..., 3]) / 2


def _figure(counts: Counts, of: Callable[[Doubles], Doubles]) -> float | None:
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(of(counts.sum(axis=0, dtype=np.float64)))
    return value if isfinite(value) else None


def _resampled(counts: Counts) -> Doubles:
    """Draw photos with all their swaps: captions of one photo are not independent. (S, 4)"""
    n_photos = max(1, len(counts))
    drawn = np.random.default_rng(0).multinomial(
        len(counts), np.full(n_photos, 1 / n_photos), _RESAMPLES
    )
    return (drawn[:, : len(counts)] @ counts).astype(np.float64)


def _interval(drawn: Doubles, of: Callable[[Doubles], Doubles]) -> list[float] | None:
    """Return the middle 95 % of the resamples that have swaps of both sorts."""
    with np.errstate(invalid="ignore", divide="ignore"):
        values = of(drawn)
    values = values[np.isfinite(values)]
    return [*percentiles(values)] if len(values) else None


def _kept_rows(results: Path, digest: str) -> dict[str, Any]:
    """Read the rows about the same swaps."""
    if not results.is_file():
        return {}
    found: dict[str, Any] = json.loads(results.read_text("utf-8"))
    if found["swaps"] != digest:
        warn(f"{results} is about other captions; its rows are dropped.")
        return {}
    rows: dict[str, Any] = found["rows"]
    return rows


def detail_tables(results: Path = DETAIL_RESULTS) -> dict[str, str]:
    """Return the tables of docs/details.md: all swaps, and with words that are balanced."""
    rows: dict[str, Any] = json.loads(results.read_text("utf-8"))["rows"]
    return {
        "details": _table(rows, "share", "interval"),
        "details-balanced": _table(rows, "balanced", "balanced_interval"),
    }


def _table(rows: Mapping[str, Any], share: str, interval: str) -> str:
    """Show the share of swaps of dev and test that each model tells apart, by kind."""
    kinds = (*KINDS, ALL)
    table = []
    for label, row in rows.items():
        rsum = "" if row.get("rsum") is None else f"{row['rsum']:.1f}"
        cells = (_cell(row[kind][share], row[kind][interval]) for kind in kinds)
        table.append((label, rsum, *cells))
    sizes = [f"{kind}, {rows[BLIND][kind]['swaps']:,}" for kind in kinds]
    return TextTable(("", "test rsum", *sizes), table).markdown()


def _cell(share: float | None, interval: Sequence[float] | None) -> str:
    if share is None or interval is None:
        return ""
    low, high = (100 * end for end in interval)
    return f"{100 * share:.1f} {shown_interval(Interval(share, low, high))}"
