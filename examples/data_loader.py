"""Offline negatives from a DataLoader, in a PyTorch loop of your own.

python examples/data_loader.py

Rows of numbers stand for images and texts. The model is mined once and then learns from Eq. 5;
what the loop needs of aoq is `mine`, `OfflineSampler`, `OfflineDataset` and `compute_loss`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader

import aoq
from aoq.progress import say

N, EPOCHS = 256, 8


class TwoTowers(aoq.InnerProduct, nn.Module):
    """One linear layer for each side; the score is the cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.image_tower, self.text_tower = nn.Linear(32, 16), nn.Linear(24, 16)

    def images(self, rows: Tensor) -> Tensor:
        return normalize(self.image_tower(rows), dim=1)

    def texts(self, rows: Tensor) -> Tensor:
        return normalize(self.text_tower(rows), dim=1)


def mine(
    model: TwoTowers, images: Tensor, texts: Tensor, positives: aoq.Positives
) -> aoq.CandidateLists:
    """Rank everything once, and keep the hardest wrong ones."""
    with torch.no_grad():
        encoded = aoq.EncodedDataset(
            images=aoq.Encoding(model.images(images)), texts=aoq.Encoding(model.texts(texts))
        )
    return aoq.mine(
        model,
        encoded,
        positives,
        config=aoq.MiningConfig(depth_texts=20, depth_images=20),
        provenance=aoq.Provenance(teacher="this loop", data="random rows"),
    )


def main() -> None:
    torch.manual_seed(0)
    images = torch.randn(N, 32)  # image n belongs to text n
    texts = images @ torch.randn(32, 24) + torch.randn(N, 24)
    ids = np.arange(N)
    positives = aoq.Positives.from_pairs(np.stack([ids, ids], axis=1), n_images=N, n_texts=N)
    model = TwoTowers()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)

    sampler = aoq.OfflineSampler(
        mine(model, images, texts, positives),
        positives,
        config=aoq.SamplingConfig(depth_texts=20, depth_images=20),
        seed=0,
    )
    pairs = aoq.OfflineDataset(sampler, image=images.__getitem__, text=texts.__getitem__)
    for epoch in range(EPOCHS):
        pairs.set_epoch(epoch)
        for batch in DataLoader(pairs, batch_size=64, shuffle=True):
            image, image_off, partner_image = (
                model.images(batch[name]) for name in ("image", "image_off", "partner_image")
            )
            text, text_off, partner_text = (
                model.texts(batch[name]) for name in ("text", "text_off", "partner_text")
            )
            belongs = positives.among(batch["image_id"].numpy(), batch["text_id"].numpy())
            scores = aoq.BatchScores(
                image @ text.T,
                negatives=~torch.from_numpy(belongs),
                offline=aoq.OfflineScores(
                    i2t=(image * text_off).sum(dim=1),
                    t2i=(image_off * text).sum(dim=1),
                    derived=(image_off * text_off).sum(dim=1),
                    partners=(partner_image * partner_text).sum(dim=1),
                    derived_mask=batch["derived_mask"],
                ),
            )
            loss = aoq.compute_loss(scores, aoq.LossConfig(name="adap_off_quin")).total
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            ranked = (model.images(images) @ model.texts(texts).T).argmax(dim=1)
        right = (ranked == torch.arange(N)).float().mean()
        say(f"epoch {epoch + 1}: the right text comes first for {right:.0%}")


if __name__ == "__main__":
    main()
