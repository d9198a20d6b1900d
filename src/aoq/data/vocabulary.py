"""Converts words to numbers, as the published models expect them.

Captions are lower-cased and split by NLTK's word tokenizer, sentence by sentence. Ids 0 to 3 are
`<pad>`, `<start>`, `<end>`, `<unk>`; words rarer than the threshold in train + dev are `<unk>`.
Test captions are never used. The file format is the JSON of SCAN and BFAN, in both directions.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, ClassVar

from aoq.errors import UserError
from aoq.features.tokenizers import Word
from aoq.manifest import read_checked
from aoq.parsing import is_text, parse_json
from aoq.storage import write_json
from aoq.types import require_count

if TYPE_CHECKING:
    from nltk.tokenize.destructive import NLTKWordTokenizer

PAD, START, END, UNKNOWN = range(4)
SPECIAL_WORDS = ("<pad>", "<start>", "<end>", "<unk>")
_WANTED = 'expected {"word2idx": ..., "idx2word": ..., "idx": ...} as SCAN writes it'
# Sentence ends as nltk.word_tokenize's downloaded model finds them, except for abbreviations.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")

_LOADING = Lock()


@cache
def _tokenizer() -> NLTKWordTokenizer:
    """Load NLTK's tokenizer alone: all of NLTK, with SciPy's statistics, takes a second."""
    with _LOADING, _bare_packages("nltk", "nltk.tokenize"):
        from nltk.tokenize.destructive import NLTKWordTokenizer

    return NLTKWordTokenizer()


@contextmanager
def _bare_packages(*names: str) -> Iterator[None]:
    """Import modules of packages without what the packages themselves import."""
    if not set(names).isdisjoint(sys.modules):
        yield
        return
    try:
        for name in names:
            spec = find_spec(name)
            assert spec is not None
            sys.modules[name] = module_from_spec(spec)
        yield
    finally:  # whoever imports them later gets them whole
        for name in [name for name in sys.modules if name.startswith(names)]:
            del sys.modules[name]


def tokenize(caption: str) -> list[str]:
    """Split a caption into lower-case words, with punctuation as words of its own.

    >>> tokenize("Two dogs, a man's hat.")
    ['two', 'dogs', ',', 'a', 'man', "'s", 'hat', '.']
    """
    text = unicodedata.normalize("NFC", caption).lower().strip()  # one encoding of accents
    sentences = _SENTENCE_END.split(text)
    return [word for sentence in sentences for word in _tokenizer().tokenize(sentence)]


@dataclass(frozen=True)
class Vocabulary:
    """All known words; the position of a word is its id."""

    words: tuple[str, ...]
    pad: ClassVar[int] = PAD

    @classmethod
    def build(cls, captions: Iterable[str], *, min_count: int = 4) -> Vocabulary:
        """Collect words with at least `min_count` occurrences, in order of appearance."""
        require_count("min_count", min_count)
        if isinstance(captions, str):
            raise UserError(f"captions is the text {captions[:60]!r}; expected a list of captions.")
        counts = Counter(word for caption in captions for word in tokenize(caption))
        frequent = (word for word, count in counts.items() if count >= min_count)
        return cls((*SPECIAL_WORDS, *frequent))

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, caption: str) -> list[int]:
        """Return `<start> w1 ... wn <end>` as ids."""
        known = self.ids
        return [START, *(known.get(word, UNKNOWN) for word in tokenize(caption)), END]

    def words_of(self, text: str) -> tuple[Word, ...]:
        """Split a text into words; each has one id."""
        return tuple(
            Word(word, is_known=word in self.ids, places=(place,))
            for place, word in enumerate(tokenize(text), start=1)
        )

    def save(self, path: Path | str) -> None:
        """Write the JSON that SCAN and BFAN read."""
        by_id = {str(number): word for number, word in enumerate(self.words)}
        write_json(Path(path), {"word2idx": self.ids, "idx2word": by_id, "idx": len(self.words)})

    @classmethod
    def load(cls, path: Path | str) -> Vocabulary:
        """Read the JSON of `save`, or a published one of SCAN or BFAN."""
        path = Path(path)
        try:
            content = parse_json(read_checked(path).decode("utf-8-sig"))
            ids = {str(word): int(number) for word, number in content["word2idx"].items()}
        except FileNotFoundError:
            raise UserError(f"{path} does not exist; expected a vocabulary.") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(f"{path} is not a vocabulary ({error!r}); {_WANTED}.") from None
        return cls.from_ids(ids, source=path)

    @classmethod
    def from_ids(cls, ids: Mapping[str, int], *, source: Path) -> Vocabulary:
        """Build the vocabulary of a published `word2idx`; `source` is its file."""
        words = sorted(ids, key=ids.__getitem__)
        if [ids[word] for word in words] != list(range(len(words))):
            raise UserError(f"{source}: ids are not 0 to {len(words) - 1} without gaps; {_WANTED}.")
        if tuple(words[:4]) != SPECIAL_WORDS:
            found, wanted = words[:4], list(SPECIAL_WORDS)
            raise UserError(f"{source}: ids 0 to 3 are {found}; expected {wanted}.")
        for word in words:
            if not is_text(word):
                raise UserError(f"{source}: the word {word!r} is not text; expected UTF-8 words.")
        return cls(tuple(words))
