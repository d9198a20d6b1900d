"""Positive pairs with their offline negatives, as a PyTorch data set for any training loop.

An item is one positive pair with the negatives and partners that Eq. 5 needs. Its draw follows from
(seed, epoch, number of the pair) alone, so it does not depend on batch size, order or the workers
of a `DataLoader`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

from aoq.sampling import OfflineSampler
from aoq.types import require_count

Read = Callable[[int], Any]
_ROLES = (
    ("image_off", "images"),
    ("text_off", "texts"),
    ("partner_image", "partner_images"),
    ("partner_text", "partner_texts"),
)


class OfflineDataset(Dataset[dict[str, Any]]):
    """Give each positive pair of a data set with offline negatives from mined lists.

    An item is a dictionary: `image` and `text` of the pair, `image_off` and `text_off` (offline
    negatives), `partner_image` (belongs to `text_off`) and `partner_text` (belongs to
    `image_off`); `image_id` and `text_id` as numbers; `derived_mask`, false where a derived pair
    would be a true one. `image` and `text` read what the items hold by number, such as pixels and
    tokens; without them, items hold the numbers.

    >>> import aoq, numpy as np
    >>> positives = aoq.Positives.from_pairs([(0, 0), (1, 1), (2, 2)], n_images=3, n_texts=3)
    >>> wrong = np.array([[1, 2], [2, 0], [0, 1]], np.int32)
    >>> scores = np.zeros((3, 2), np.float32)
    >>> lists = aoq.CandidateLists(wrong, scores, wrong, scores, aoq.Provenance("none", "none"))
    >>> config = aoq.SamplingConfig(depth_texts=2, depth_images=2)
    >>> sampler = aoq.OfflineSampler(lists, positives, config=config, seed=0)
    >>> pairs = aoq.OfflineDataset(sampler, text=["a cat", "a dog", "a fox"].__getitem__)
    >>> len(pairs), pairs[0]["image"], pairs[0]["text"]
    (3, 0, 'a cat')
    """

    def __init__(
        self, sampler: OfflineSampler, *, image: Read | None = None, text: Read | None = None
    ) -> None:
        self.sampler = sampler
        self._image, self._text = image or int, text or int
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # also seen by workers

    def set_epoch(self, epoch: int) -> None:
        """Draw other negatives from here on; also in the workers of a `DataLoader`."""
        require_count("epoch", epoch, least=0)
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.sampler.positives.pairs)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < len(self):
            raise IndexError(f"pair {number} of {len(self):,}")  # ends a loop over the items
        pair = self.sampler.positives.pairs[number]
        drawn = self.sampler.draw(pair[:1], pair[1:], epoch=int(self._epoch), step=number)
        item = {"image": self._image(int(pair[0])), "text": self._text(int(pair[1]))}
        for name, role in _ROLES:
            read = self._image if "image" in name else self._text
            item[name] = read(int(getattr(drawn, role)[0]))
        item |= {"image_id": int(pair[0]), "text_id": int(pair[1])}
        return item | {"derived_mask": bool(drawn.valid[0])}
