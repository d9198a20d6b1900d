"""Turns texts into the numbers that a model reads.

A vocabulary knows the words of its training captions. A pretrained tokenizer splits words into
pieces, so it knows every word of every language that it was made for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from aoq.features.pretrained import TEXT, load_config, load_tokenizer, unusable
from aoq.storage import hash_parts

_LONGEST = 512  # pieces, where a tokenizer names no limit


@runtime_checkable
class Tokenizer(Protocol):
    """What a model and a search need to read texts."""

    @property
    def pad(self) -> int:
        """Id that fills the end of shorter texts of a batch."""
        ...

    def __len__(self) -> int:
        """Return the number of ids."""
        ...

    def encode(self, text: str, /) -> list[int]:
        """Return the ids of a text, with those that mark its start and end."""
        ...

    def words_of(self, text: str, /) -> Sequence[Word]:
        """Split a text into words, with the ids that stand for each."""
        ...


@dataclass(frozen=True)
class Word:
    """A word of a text, and its place among the ids of the text."""

    text: str
    is_known: bool
    "Whether the model can tell it from other words."
    places: tuple[int, ...]
    "Of its ids, in what `encode` returns; none where the text was cut before it."


class PieceTokenizer:
    """The tokenizer of a pretrained text tower: word pieces or byte pairs.

    `prompt` is a sentence with {} for the text, such as "a photo of {}", for models that were
    trained with one.
    """

    def __init__(self, name: str, *, prompt: str = "{}") -> None:
        self._prompt = prompt
        self._tokenizer: Any = load_tokenizer(name)
        if self._tokenizer.pad_token_id is None:
            raise unusable(name, "its tokenizer has no padding token", TEXT)
        config = load_config(name, TEXT)
        text_config = getattr(config, "text_config", config)
        positions = getattr(text_config, "max_position_embeddings", _LONGEST)
        # Without a limit, the tokenizer's own is enormous.
        self.max_length = min(self._tokenizer.model_max_length, positions, _LONGEST)
        # SigLIP was trained on texts that are filled to its maximum length, and SigLIP 2 in lower
        # case, which Gemma's tokenizer, with which most of its checkpoints come, does not make.
        is_siglip = str(config.model_type).startswith("siglip")
        self._padding: str | bool = "max_length" if is_siglip else False
        self._lowers = is_siglip and type(self._tokenizer).__name__.startswith("Gemma")

    @classmethod
    def of(
        cls, tokenizer: Any, *, prompt: str, max_length: int, padding: str | bool, lowers: bool
    ) -> Self:
        """Wrap an opened tokenizer with the settings of another one."""
        made = cls.__new__(cls)
        made._prompt, made._tokenizer, made.max_length = prompt, tokenizer, max_length
        made._padding, made._lowers = padding, lowers
        return made

    @property
    def settings(self) -> dict[str, Any]:
        """What `of` needs beside the opened tokenizer."""
        return {
            "prompt": self._prompt,
            "max_length": self.max_length,
            "padding": self._padding,
            "lowers": self._lowers,
        }

    @property
    def special_ids(self) -> dict[str, Any]:
        """The ids of pieces that stand for no word, and the piece that fills texts."""
        tokenizer = self._tokenizer
        return {
            "pad": tokenizer.pad_token_id,
            "pad_token": tokenizer.pad_token,
            "unknown": tokenizer.unk_token_id,
            "end": tokenizer.eos_token_id,
        }

    @property
    def is_fast(self) -> bool:
        """Whether the tokenizer can be saved as one file."""
        return bool(self._tokenizer.is_fast)

    def save_pieces(self, path: Path) -> None:
        """Write a fast tokenizer as the library `tokenizers` reads it."""
        self._tokenizer.backend_tokenizer.save(str(path))

    @cached_property
    def pad(self) -> int:
        return int(self._tokenizer.pad_token_id)

    def __len__(self) -> int:
        return len(self._tokenizer)

    @cached_property
    def digest(self) -> str:
        """Hash all that the ids of a text depend on."""
        tokenizer = self._tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        pieces = sorted(tokenizer.get_vocab().items()) if backend is None else backend.to_str()
        limits: list[Any] = [self._prompt, self.max_length, self._padding, tokenizer.pad_token_id]
        limits += ["lower"] if self._lowers else []
        return hash_parts(json.dumps([type(tokenizer).__name__, pieces, limits]).encode())

    @property
    def padding(self) -> str | bool:
        """How texts are filled, as transformers names it: to the maximum length, or not at all."""
        return self._padding

    @property
    def lowers(self) -> bool:
        """Whether texts are put into lower case before the tokenizer, which does not do it."""
        return self._lowers

    @property
    def knows_places(self) -> bool:
        """Whether the tokenizer says which characters a piece stands for."""
        return self.is_fast

    def encode(self, text: str, /) -> list[int]:
        """Return the ids of a text, cut to what the model can read."""
        return [int(piece) for piece in self._pieces(text)["input_ids"]]

    def words_of(self, text: str, /) -> tuple[Word, ...]:
        """Split a text at spaces; a word's ids are its pieces, joined by their characters."""
        start = self._prompt.index("{}")
        offsets = self._offsets(text)
        words, end = [], 0
        for word in text.split():
            begin = text.index(word, end)
            end = begin + len(word)
            places = tuple(
                place
                for place, (first, last) in enumerate(offsets)
                if first < start + end and last > start + begin
            )
            words.append(Word(word, is_known=self._knows(places, text), places=places))
        return tuple(words)

    def _pieces(self, text: str, **more: Any) -> Any:
        prompted = self._prompt.replace("{}", text)
        return self._tokenizer(
            prompted.lower() if self._lowers else prompted,
            truncation=True,
            max_length=self.max_length,
            padding=self._padding,
            **more,
        )

    def _offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the characters that each id stands for; of a slow tokenizer, none."""
        if not self.knows_places:
            return []
        return list(self._pieces(text, return_offsets_mapping=True)["offset_mapping"])

    def _knows(self, places: tuple[int, ...], text: str) -> bool:
        """Return whether at least one piece of a word is not the unknown one."""
        unknown, end = self._tokenizer.unk_token_id, self._tokenizer.eos_token_id
        if unknown is None or unknown == end or not places:  # CLIP has one token for both
            return True
        ids = self.encode(text)
        return any(ids[place] != unknown for place in places)
