"""A loss of aoq in sentence-transformers: its trainer, its models, our equations.

python examples/sentence_transformers_loss.py MODEL pairs.jsonl --loss online --out tuned

MODEL is a folder or a hub name that sentence-transformers opens. Each line of the file has an
`anchor` and a `positive`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from datasets import load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from torch import Tensor, nn
from torch.nn.functional import normalize

import aoq


class MatchingLoss(nn.Module):
    """Any loss of aoq that needs a batch alone: standard, online, infonce, siglip."""

    def __init__(self, model: SentenceTransformer, config: aoq.LossConfig) -> None:
        super().__init__()
        self.model, self.config = model, config

    def forward(self, features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        anchors, positives = (
            normalize(self.model(inputs)["sentence_embedding"], dim=1) for inputs in features
        )
        anchor_ids, positive_ids = labels.T  # (B,) each
        belongs = (anchor_ids[:, None] == anchor_ids) | (positive_ids[:, None] == positive_ids)
        scores = aoq.BatchScores(matrix=anchors @ positives.T, negatives=~belongs)
        return aoq.compute_loss(scores, self.config).total / len(anchor_ids)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("pairs")
    parser.add_argument("--loss", default="online")
    parser.add_argument("--out", default="tuned")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    given = parser.parse_args(arguments)

    torch.manual_seed(0)
    model = SentenceTransformer(given.model)
    pairs = load_dataset("json", data_files=given.pairs, split="train")
    numbers: dict[str, int] = {}

    def number(text: str) -> int:
        """Number equal texts alike."""
        return numbers.setdefault(text, len(numbers))

    def with_label(row: dict[str, Any]) -> dict[str, Any]:
        return {"label": [number(row["anchor"]), number(row["positive"])]}

    train = pairs.select_columns(["anchor", "positive"]).map(with_label)
    settings = SentenceTransformerTrainingArguments(
        output_dir=given.out,
        num_train_epochs=given.epochs,
        per_device_train_batch_size=given.batch_size,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
    )
    loss = MatchingLoss(model, aoq.LossConfig(name=given.loss))
    SentenceTransformerTrainer(model=model, args=settings, train_dataset=train, loss=loss).train()
    model.save_pretrained(given.out)


if __name__ == "__main__":
    main()
