"""The losses alone, in a training loop of your own: they see scores and nothing else.

python examples/own_loop.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import aoq
from aoq.progress import say

N, DEPTH, EPOCHS = 512, 20, 10


def main() -> None:
    torch.manual_seed(0)
    image_rows = torch.randn(N, 32)  # image n belongs to text n
    text_rows = image_rows @ torch.randn(32, 24) + torch.randn(N, 24)
    image_tower, text_tower = nn.Linear(32, 16), nn.Linear(24, 16)
    optimizer = torch.optim.Adam([*image_tower.parameters(), *text_tower.parameters()], lr=2e-3)

    def encode(image_ids: Tensor, text_ids: Tensor) -> tuple[Tensor, Tensor]:
        images, texts = image_tower(image_rows[image_ids]), text_tower(text_rows[text_ids])
        return normalize(images, dim=1), normalize(texts, dim=1)

    @torch.no_grad()
    def score_all() -> Tensor:
        images, texts = encode(torch.arange(N), torch.arange(N))
        return images @ texts.T  # (N, N)

    for epoch in range(EPOCHS):
        offline_epoch = epoch >= EPOCHS // 2
        if epoch == EPOCHS // 2:  # mine: the hardest texts of each image, images of each text
            scores = score_all().fill_diagonal_(-torch.inf)
            hard_texts, hard_images = scores.topk(DEPTH).indices, scores.T.topk(DEPTH).indices
        for ids in torch.randperm(N).split(64):
            images, texts = encode(ids, ids)
            offline = None
            if offline_epoch:
                text_ids = hard_texts[ids, torch.randint(DEPTH, (len(ids),))]
                image_ids = hard_images[ids, torch.randint(DEPTH, (len(ids),))]
                images_off, texts_off = encode(image_ids, text_ids)
                partner_images, partner_texts = encode(text_ids, image_ids)  # who belongs to them
                offline = aoq.OfflineScores(
                    i2t=(images * texts_off).sum(dim=1),
                    t2i=(images_off * texts).sum(dim=1),
                    derived=(images_off * texts_off).sum(dim=1),
                    partners=(partner_images * partner_texts).sum(dim=1),
                    derived_mask=image_ids != text_ids,  # no pair that belongs together
                )
            config = aoq.LossConfig(name="adap_off_quin" if offline_epoch else "online")
            scores_of_batch = aoq.BatchScores(images @ texts.T, offline=offline)
            loss = aoq.compute_loss(scores_of_batch, config).total
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found = (score_all().argmax(dim=1) == torch.arange(N)).float().mean()
        say(f"epoch {epoch + 1} ({config.name}): the right text comes first for {found:.0%}")


if __name__ == "__main__":
    main()
