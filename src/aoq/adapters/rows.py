"""Hard negatives as rows of Hugging Face's `datasets`: anchor, positive, negative_1 to negative_n.

These are the n-tuples that the losses of sentence-transformers read, in their order. The rows come
from candidate lists, or are mined with any model that has the `encode` of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from aoq.config import Direction, MiningConfig
from aoq.data.dataset import PairDataset
from aoq.errors import UserError, require_packages
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.export import anchors_and_candidates
from aoq.mining.mine import mine
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Int32s, Positives, require_count

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

_EXTRA = "datasets"


def hard_negative_rows(
    lists: CandidateLists,
    dataset: PairDataset,
    *,
    direction: Direction,
    depth: int | None = None,
    images: Literal["path", "id"] = "path",
) -> Dataset:
    """Return mined lists as a data set of Hugging Face, one row for each anchor and positive.

    Anchors are images (`i2t`) or captions (`t2i`), positives and negatives the other side. An image
    is the path of its picture, or its id where the data set knows no file or `images` is "id";
    `cast_column(name, datasets.Image())` turns paths into pictures. `depth` cuts the lists.
    """
    require_packages("datasets", extra=_EXTRA)
    if depth is not None:
        require_count("depth", depth)
    lists = lists.require_fit(dataset, source="lists").cut(depth)
    relation, anchors, candidates = anchors_and_candidates(
        dataset, direction=direction, images=images
    )
    return _rows(anchors, candidates, relation, lists.of(direction)[0])


def mine_hard_negatives(
    model: SentenceTransformer,
    pairs: Dataset,
    *,
    depth: int = 5,
    config: MiningConfig | None = None,
) -> Dataset:
    """Mine rows of hard negatives with a sentence-transformers model: each anchor's hardest wrong.

    `pairs` has a column `anchor` and a column `positive`, of texts or of whatever the model
    encodes from strings. Equal strings count once, so everything that is right for an anchor in any
    row stays out of its negatives. `config` sets memory and rules against false negatives; its
    depths are ignored.
    """
    require_packages("datasets", extra=_EXTRA)
    require_count("depth", depth)
    missing = {"anchor", "positive"} - set(pairs.column_names)
    if missing:
        raise UserError(
            f"pairs has the columns {', '.join(pairs.column_names)}; expected anchor and positive: "
            "rename them with pairs.rename_columns."
        )
    anchors, anchor_ids = _distinct(pairs["anchor"])
    positives, positive_ids = _distinct(pairs["positive"])
    relation = Positives.from_pairs(
        np.stack([anchor_ids, positive_ids], axis=1),
        n_images=len(anchors),
        n_texts=len(positives),
    )
    lists = mine(
        InnerProduct(),
        EncodedDataset(images=_encode(model, anchors), texts=_encode(model, positives)),
        relation,
        config=replace(config or MiningConfig(), depth_texts=depth, depth_images=1),
        provenance=Provenance(teacher="", data=""),
        captions=positives,
    )
    return _rows(anchors, positives, relation, lists.i2t)


def _rows(
    anchors: Sequence[str], candidates: Sequence[str], relation: Positives, negatives: Int32s
) -> Dataset:
    """Make the data set, column by column, so that each negative is looked up once."""
    from datasets import Dataset

    def columns() -> Iterator[tuple[str, list[str]]]:
        anchor_ids, positive_ids = relation.pairs.T
        yield "anchor", [anchors[at] for at in anchor_ids]
        yield "positive", [candidates[at] for at in positive_ids]
        for rank, column in enumerate(negatives[anchor_ids].T, start=1):
            yield f"negative_{rank}", [candidates[at] for at in column]

    return Dataset.from_dict(dict(columns()))


def _distinct(values: Sequence[object]) -> tuple[list[str], list[int]]:
    """Return the distinct strings in the order of their first row, and the number of each row."""
    numbers: dict[str, int] = {}
    ids = []
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise UserError(
                f"row {row} of pairs holds a {type(value).__name__}; expected texts or paths."
            )
        ids.append(numbers.setdefault(value, len(numbers)))
    return list(numbers), ids


def _encode(model: SentenceTransformer, inputs: list[str]) -> Encoding:
    with torch.no_grad():
        vectors = model.encode(inputs, convert_to_tensor=True, normalize_embeddings=True)
    return Encoding(vectors.float().cpu())
