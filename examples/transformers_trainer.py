"""The Trainer of transformers with a loss of aoq: a CLIP learns from mined negatives (Eq. 5).

python examples/transformers_trainer.py WEIGHTS captions.csv photos --out tuned

WEIGHTS is a folder or a hub name of a CLIPModel or one of its kind. The model encodes all photos
and captions once, aoq mines, and the Trainer does the rest.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import aoq

ROLES = ("image", "image_off", "partner_image"), ("text", "text_off", "partner_text")
LOSS = aoq.LossConfig(name="adap_off_quin")


def encode(model: Any, pixels: Tensor, tokens: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return unit vectors of images and of texts."""
    images = model.get_image_features(pixel_values=pixels).pooler_output
    texts = model.get_text_features(**tokens).pooler_output
    return normalize(images, dim=1), normalize(texts, dim=1)


class MatchingTrainer(Trainer):
    """Asks aoq for the loss of a batch that `collate` made."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        images, texts = encode(model, inputs["pixels"], inputs["tokens"])
        image, image_off, partner_image = images.chunk(3)  # (B, D) each
        text, text_off, partner_text = texts.chunk(3)
        scores = aoq.BatchScores(
            image @ text.T,
            negatives=inputs["negatives"],
            offline=aoq.OfflineScores(
                i2t=(image * text_off).sum(dim=1),
                t2i=(image_off * text).sum(dim=1),
                derived=(image_off * text_off).sum(dim=1),
                partners=(partner_image * partner_text).sum(dim=1),
                derived_mask=inputs["derived_mask"],
            ),
        )
        loss = aoq.compute_loss(scores, LOSS).total / len(image)
        return (loss, {"scores": scores.matrix}) if return_outputs else loss


class DrawEachEpoch(TrainerCallback):
    """Draws other offline negatives in each epoch."""

    def on_epoch_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        train_dataloader.dataset.set_epoch(int(state.epoch or 0))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights")
    parser.add_argument("captions", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--out", default="tuned")
    parser.add_argument("--depth", type=int, default=20, help="candidates that are drawn from")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-6)
    given = parser.parse_args(arguments)

    torch.manual_seed(0)
    model = AutoModel.from_pretrained(given.weights)
    tokenizer = AutoTokenizer.from_pretrained(given.weights)
    processor = AutoImageProcessor.from_pretrained(given.weights)
    records = [
        record
        for record in aoq.read_records(given.captions, pictures=given.pictures)
        if record.split == "train"
    ]
    captions = [caption for record in records for caption in record.captions]
    owners = [image for image, record in enumerate(records) for _ in record.captions]
    positives = aoq.Positives.from_pairs(
        list(zip(owners, range(len(captions)), strict=True)),
        n_images=len(records),
        n_texts=len(captions),
    )

    def read_pixels(image: int) -> Tensor:
        picture = aoq.load_picture(records[image].picture)
        pixels: Tensor = processor(picture, return_tensors="pt").pixel_values[0]
        return pixels

    def read_tokens(texts: list[str]) -> dict[str, Tensor]:
        return dict(tokenizer(texts, padding=True, truncation=True, return_tensors="pt"))

    @torch.no_grad()
    def mine() -> aoq.CandidateLists:
        """Encode everything once with the given weights, and keep the hardest wrong ones."""
        model.eval()
        image_parts = [
            normalize(model.get_image_features(read_pixels(image)[None]).pooler_output, dim=1)
            for image in range(len(records))
        ]
        text_parts = [
            normalize(model.get_text_features(**read_tokens([caption])).pooler_output, dim=1)
            for caption in captions
        ]
        return aoq.mine(
            aoq.InnerProduct(),
            aoq.EncodedDataset(
                images=aoq.Encoding(torch.cat(image_parts)),
                texts=aoq.Encoding(torch.cat(text_parts)),
            ),
            positives,
            config=aoq.MiningConfig(depth_texts=given.depth, depth_images=given.depth),
            provenance=aoq.Provenance(teacher=given.weights, data=str(given.captions)),
        )

    def collate(items: list[dict[str, Any]]) -> dict[str, Any]:
        """Stack images and texts: the pairs, then the offline negatives, then their partners."""
        images, texts = ([item[role] for role in roles for item in items] for roles in ROLES)
        image_ids, text_ids = (
            np.array([item[name] for item in items]) for name in ("image_id", "text_id")
        )
        return {
            "pixels": torch.stack(images),
            "tokens": read_tokens(texts),
            "negatives": ~torch.from_numpy(positives.among(image_ids, text_ids)),
            "derived_mask": torch.tensor([item["derived_mask"] for item in items]),
        }

    sampling = aoq.SamplingConfig(depth_texts=given.depth, depth_images=given.depth)
    sampler = aoq.OfflineSampler(mine(), positives, config=sampling, seed=0)
    settings = TrainingArguments(
        output_dir=given.out,
        num_train_epochs=given.epochs,
        per_device_train_batch_size=given.batch_size,
        learning_rate=given.learning_rate,
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,  # `collate` reads them all
        report_to="none",
    )
    trainer = MatchingTrainer(
        model=model,
        args=settings,
        train_dataset=aoq.OfflineDataset(sampler, image=read_pixels, text=captions.__getitem__),
        data_collator=collate,
        callbacks=[DrawEachEpoch()],
    )
    trainer.train()
    for part in (model, tokenizer, processor):
        part.save_pretrained(given.out)


if __name__ == "__main__":
    main()
