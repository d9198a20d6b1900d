"""The two towers as a SentenceTransformer: captions are its queries, photos its documents.

A `Router` sends each down a route of its own, as sentence-transformers' documentation recommends
for encoders of different kinds. What is frozen is read by name from a table, so that nothing is
computed twice; aoq's own heads come last, with the weights that aoq starts from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    InputModule,
    Module,
    Pooling,
    Router,
    Transformer,
)
from torch import Tensor, nn

from aoq.data.collate import Collator
from aoq.evaluation.metrics import Metrics
from aoq.evaluation.protocols import evaluate_encoded
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding
from reproduction.peers.start import Start

EMBEDDING = "sentence_embedding"
ENCODED_AT_ONCE = 128
Features = dict[str, Any]


class FrozenTable(InputModule):
    """Reads the vector of a photo, or of a caption, by its id or its words."""

    def __init__(self, vectors: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows = {name: row for row, name in enumerate(vectors)}
        self._vectors = torch.stack(list(vectors.values()))

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any
    ) -> Features:
        return {EMBEDDING: self._vectors[[self._rows[name] for name in inputs]]}

    def forward(self, features: Features, **kwargs: Any) -> Features:
        return features

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Save nothing: the data set holds the vectors."""


class JointHead(Module):
    """Maps the vector of a tower to the joint space."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.head = head

    def forward(self, features: Features, **kwargs: Any) -> Features:
        return features | {EMBEDDING: self.head(features[EMBEDDING])}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Save the weights, which is all that a copy of the model needs."""
        self.save_torch_weights(output_path)


def build(start: Start) -> SentenceTransformer:
    """Build the model with the same weights as aoq's."""
    towers = start.build_model()
    assert towers.image_head is not None
    assert towers.text_head is not None
    texts = [*_text_tower(start), JointHead(towers.text_head)]
    photos = [FrozenTable(start.photo_vectors()), JointHead(towers.image_head)]
    router = Router.for_query_document(query_modules=texts, document_modules=photos)
    return SentenceTransformer(modules=[router], device="cpu", similarity_fn_name="cosine")


def swapped(model: SentenceTransformer) -> SentenceTransformer:
    """Return the same model with photos as queries and captions as documents."""
    given = model[0]
    assert isinstance(given, Router)
    texts, photos = (
        cast("list[Module]", [*given.sub_modules[route].children()])
        for route in ("query", "document")
    )
    router = Router.for_query_document(query_modules=photos, document_modules=texts)
    return SentenceTransformer(modules=[router], device="cpu", similarity_fn_name="cosine")


def judge(model: SentenceTransformer, split: Collator) -> Metrics:
    """Judge all photos against all captions of a split, by aoq's code."""
    captions, photos = (
        encode(
            list(names),
            batch_size=ENCODED_AT_ONCE,
            convert_to_tensor=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        for encode, names in (
            (model.encode_query, split.dataset.captions),
            (model.encode_document, split.dataset.image_ids),
        )
    )
    encoded = EncodedDataset(images=Encoding(photos), texts=Encoding(captions))
    return evaluate_encoded(InnerProduct(), encoded, split.dataset.positives)


def _text_tower(start: Start) -> list[Module]:
    """Return a table of the frozen tower's vectors, or the tower, whose last blocks learn."""
    model = start.recipe.model
    if model.learn == "heads":
        return [FrozenTable(start.caption_vectors())]
    tower = Transformer(model.text_model)
    blocks = tower.auto_model.encoder.layer
    learning = blocks[len(blocks) - model.text_blocks :]
    for dropout in (part for part in tower.modules() if isinstance(part, nn.Dropout)):
        if all(dropout is not part for part in learning.modules()):
            dropout.p = 0.0  # aoq reads the states of what is frozen from its cache
    tower.requires_grad_(False)
    learning.requires_grad_(True)
    return [tower, Pooling(tower.get_embedding_dimension(), pooling_mode="mean")]
