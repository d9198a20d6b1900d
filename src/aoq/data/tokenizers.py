"""Turns texts into the numbers that a model reads: by a vocabulary, or by a pretrained tokenizer.

A pretrained tokenizer splits words into pieces, so it knows every word of every language that it
was made for.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from aoq.errors import UserError
from aoq.features.pretrained import TEXT, load_tokenizer, unusable

_LONGEST = 512  # pieces, where a tokenizer names no limit


@runtime_checkable
class Tokenizer(Protocol):
    """What a model and a search need to read texts."""

    @property
    def pad(self) -> int:
        """Id that fills the end of shorter texts of a batch."""
        ...

    def encode(self, text: str, /) -> list[int]:
        """Return the ids of a text, with those that mark its start and end."""
        ...

    def split(self, text: str, /) -> list[str]:
        """Split a text into the words that `knows` takes."""
        ...

    def knows(self, word: str, /) -> bool:
        """Return whether the model can tell this word from other words."""
        ...


class PieceTokenizer:
    """The tokenizer of a pretrained text tower: word pieces or byte pairs.

    `prompt` is a sentence with {} for the text, such as "a photo of {}", for models that were
    trained with one.
    """

    def __init__(self, name: str, *, max_length: int | None = None, prompt: str = "{}") -> None:
        self.name = name
        self._prompt = prompt
        self._tokenizer: Any = load_tokenizer(name)
        own = self._tokenizer.model_max_length
        self.max_length = min(max_length or _LONGEST, own)  # without a limit, `own` is enormous
        # Models that were trained on filled texts must read filled texts.
        self._padding = "max_length" if fills_texts(name) else False
        if self._tokenizer.pad_token_id is None:
            raise unusable(name, "its tokenizer has no padding token", TEXT)

    @cached_property
    def pad(self) -> int:
        return int(self._tokenizer.pad_token_id)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def encode(self, text: str, /) -> list[int]:
        """Return the ids of a text, cut to what the model can read."""
        pieces = self._tokenizer(
            self._prompt.replace("{}", text),
            truncation=True,
            max_length=self.max_length,
            padding=self._padding,
        )
        return [int(piece) for piece in pieces["input_ids"]]

    def split(self, text: str, /) -> list[str]:
        return text.split()

    def knows(self, word: str, /) -> bool:
        unknown = self._tokenizer.unk_token_id
        if unknown is None:
            return True
        pieces = self._tokenizer(word, add_special_tokens=False)["input_ids"]
        end = self._tokenizer.eos_token_id  # CLIP has one token for both
        return unknown == end or bool(set(pieces) - {unknown})


def fills_texts(name: str) -> bool:
    """Return whether a model reads texts that are filled to its maximum length, as SigLIP does."""
    from aoq.features.pretrained import load_config

    config = load_config(name, TEXT)
    return str(config.model_type).startswith("siglip")


def require_prompt(prompt: str) -> str:
    """Return a prompt that has a place for the text, and only one."""
    if prompt.count("{}") != 1:
        raise UserError(f"model.prompt is {prompt!r}; expected a sentence with {{}} for the text.")
    return prompt
