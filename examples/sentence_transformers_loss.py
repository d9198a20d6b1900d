"""A loss of aoq in sentence-transformers: its trainer, its models, our equations.

python examples/sentence_transformers_loss.py MODEL pairs.jsonl --loss online --out tuned

MODEL is a folder or a hub name that sentence-transformers opens. Each line of the file has an
`anchor` and a `positive`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from datasets import load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)

import aoq


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
    loss = aoq.MatchingLoss(model, aoq.LossConfig(name=given.loss))
    SentenceTransformerTrainer(model=model, args=settings, train_dataset=train, loss=loss).train()
    model.save_pretrained(given.out)


if __name__ == "__main__":
    main()
