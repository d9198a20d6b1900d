"""Mine hard negatives with a sentence-transformers model, and train it with them.

python examples/sentence_transformers_mining.py MODEL pairs.jsonl --depth 3 --out tuned

MODEL is a folder or a hub name that sentence-transformers opens. Each line of the file has an
`anchor` and a `positive`; everything that is right for an anchor in any line is never one of its
negatives.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from datasets import load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

import aoq


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("pairs")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--out", default="tuned")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    given = parser.parse_args(arguments)

    torch.manual_seed(0)
    model = SentenceTransformer(given.model)
    pairs = load_dataset("json", data_files=given.pairs, split="train")
    rows = aoq.mine_hard_negatives(model, pairs, depth=given.depth)
    settings = SentenceTransformerTrainingArguments(
        output_dir=given.out,
        num_train_epochs=given.epochs,
        per_device_train_batch_size=given.batch_size,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
    )
    loss = MultipleNegativesRankingLoss(model)
    SentenceTransformerTrainer(model=model, args=settings, train_dataset=rows, loss=loss).train()
    model.save_pretrained(given.out)


if __name__ == "__main__":
    main()
