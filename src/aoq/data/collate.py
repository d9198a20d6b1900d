"""Turns ids of a data set into the tensors of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from aoq.data.augmentation import apply_views, draw_views, mirrorable
from aoq.data.dataset import PairDataset
from aoq.data.likeness import CaptionLikeness
from aoq.data.vocabulary import PAD, UNKNOWN, Vocabulary
from aoq.distributed import ALONE, Processes
from aoq.errors import UserError
from aoq.features.outputs import Output
from aoq.features.text_models import TextSource
from aoq.features.texts import FrozenTexts, freeze_texts
from aoq.features.tokenizers import Tokenizer
from aoq.parsing import shown
from aoq.types import Bools, Ids, Texts

EncodeText = Callable[[str], Sequence[int]]


class Collator:
    """Reads rows of one data set as tensors; captions are tokenised once, when first needed.

    The tokenizer is a vocabulary, that of a pretrained text tower, or any function from a caption
    to word ids. Give a Hugging Face tokenizer as `lambda caption: tokenizer(caption).input_ids`,
    with its `pad_token_id`. `texts_from` is a frozen text tower, which reads each caption once.

    >>> dataset = PairDataset.of(np.zeros((1, 4, 6)), ["a cat", "my black cat"], [(0, 0), (0, 1)])
    >>> collator = Collator(dataset, lambda caption: [len(word) for word in caption.split()], pad=9)
    >>> collator.texts(np.array([0, 1])).tokens.tolist()
    [[1, 3, 9], [2, 5, 3]]
    """

    def __init__(
        self,
        dataset: PairDataset,
        tokenizer: Tokenizer | EncodeText,
        *,
        pad: int | None = None,
        device: str | torch.device = "cpu",
        texts_from: TextSource | None = None,
    ) -> None:
        if not isinstance(dataset, PairDataset):
            raise UserError(
                f"the data set is a {type(dataset).__name__}; expected a PairDataset, as "
                "aoq.open_dataset(folder, split) returns."
            )
        if not isinstance(tokenizer, Tokenizer) and not callable(tokenizer):
            raise UserError(
                f"the tokenizer is {shown(tokenizer)}; expected a Vocabulary, or a function that "
                "makes word ids of a caption."
            )
        self.dataset = dataset
        self.tokenizer = tokenizer
        own_pad = tokenizer.pad if isinstance(tokenizer, Tokenizer) else PAD
        self.pad = own_pad if pad is None else pad
        self.device = torch.device(device)
        self.texts_from = texts_from

    def with_dataset(self, dataset: PairDataset) -> Collator:
        """Return a collator that reads another data set in the same way."""
        return Collator(
            dataset, self.tokenizer, pad=self.pad, device=self.device, texts_from=self.texts_from
        )

    @cached_property
    def _tokens(self) -> list[Ids]:
        tokenizer = self.tokenizer
        encode = tokenizer.encode if isinstance(tokenizer, Tokenizer) else tokenizer
        return [as_word_ids(encode(caption), caption=caption) for caption in self.dataset.captions]

    @cached_property
    def _frozen(self) -> FrozenTexts | None:
        """What the text tower makes of the captions, computed when first needed."""
        return self._freeze(ALONE)

    def _freeze(self, processes: Processes) -> FrozenTexts | None:
        if self.texts_from is None or self.texts_from.reads_tokens:
            return None
        return freeze_texts(self._tokens, self.texts_from, pad=self.pad, processes=processes)

    def read_in_shares(self, processes: Processes) -> None:
        """Let the text tower read the captions, each process its share; all have to call this."""
        if processes.size > 1:
            self._frozen = self._freeze(processes)

    @cached_property
    def text_lengths(self) -> Ids:
        """Return the number of words of each text, including the tokenizer's special ones. (M,)"""
        return np.array([len(words) for words in self._tokens], dtype=np.int64)

    def unknown_texts(self) -> Ids:
        """Return the texts without any known word; empty for tokenizers other than a Vocabulary."""
        known = isinstance(self.tokenizer, Vocabulary)
        return np.array(
            [
                i
                for i, words in enumerate(self._tokens if known else [])
                if (words[1:-1] == UNKNOWN).all()
            ],
            dtype=np.int64,
        )

    def unknown_share(self) -> float:
        """Return the share of all words that are not in the vocabulary."""
        words = np.concatenate([words[1:-1] for words in self._tokens])
        return float(np.mean(words == UNKNOWN)) if len(words) else 0.0

    def regions(self, image_ids: Ids) -> Tensor:
        """Read features or pixels of some images: float32, or integers unchanged. (B, R, F)"""
        # A copy: the file must not change.
        rows = torch.from_numpy(np.ascontiguousarray(self.dataset.features[image_ids]))
        dtype = torch.float32 if rows.is_floating_point() else rows.dtype
        return rows.to(self.device, dtype)

    @cached_property
    def is_augmented(self) -> bool:
        """Whether training may see random views: images are the pixels that a tower sees."""
        source = self.dataset.source
        return source is not None and Output.parse(source.output).kind == "input"

    @cached_property
    def _mirrorable(self) -> Bools:
        return mirrorable(self.dataset)

    @cached_property
    def likeness(self) -> CaptionLikeness:
        """Measures how alike captions are, for losses that use it."""
        return CaptionLikeness(self.dataset.positives, self.dataset.captions)

    def random_views(self, image_ids: Ids, *, seed: int, epoch: int, step: int) -> Tensor:
        """Read random views of some images, for a step of training. (B, 3, S, S)"""
        may_mirror = self._mirrorable[image_ids]
        views = draw_views(image_ids, may_mirror, seed=seed, epoch=epoch, step=step)
        return apply_views(self.regions(image_ids), views)

    def texts(self, text_ids: Ids) -> Texts:
        """Return the word ids of some texts, padded to the longest of them."""
        texts = pad_texts([self._tokens[text] for text in text_ids], self.pad)
        if self._frozen is not None:
            texts = replace(texts, vectors=self._frozen[text_ids])
        return texts.to(self.device)


def read_texts(texts: Sequence[str], tokenizer: Tokenizer, texts_from: TextSource | None) -> Texts:
    """Read texts as those of a data set are read: by a tokenizer, and by a frozen text tower."""
    read = pad_texts([tokenizer.encode(text) for text in texts], tokenizer.pad)
    vectors = None if texts_from is None else texts_from.load()(read)
    return replace(read, vectors=vectors)


def pad_texts(rows: Sequence[Sequence[int] | Ids], pad: int = PAD) -> Texts:
    """Pad the word ids of some texts to the longest of them.

    >>> pad_texts([[1, 5, 2], [1, 2]]).tokens.tolist()
    [[1, 5, 2], [1, 2, 0]]
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    tokens = np.full((len(rows), lengths.max()), pad, dtype=np.int64)
    tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.concatenate(rows)
    return Texts(torch.from_numpy(tokens), torch.from_numpy(lengths))


def as_word_ids(words: Sequence[int], *, caption: str) -> Ids:
    """Return what a tokenizer made of a caption as an array, if it is a list of word ids."""
    ids = np.asarray(words)
    if ids.dtype.kind not in "iu" or ids.ndim != 1 or not len(ids):
        raise UserError(
            f"the tokenizer made {shown(words)} of the caption {shown(caption)}; expected a list "
            "of word ids, at least one (lambda caption: tokenizer(caption).input_ids, for one of "
            "Hugging Face)."
        )
    return ids.astype(np.int64)
