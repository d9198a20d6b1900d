"""The text files of a precomp folder: captions, BFAN's captions in numbers, and ids.

Five successive captions belong to one image. BFAN reads `{split}_precaps.txt`, in which every
caption is a list of word numbers; they are converted back to words with a vocabulary, so that all
readers of captions can use them. `{split}_ids.txt` has one line per image, or one per caption.
`{split}_tags.txt`, which no published program reads, is ignored.
"""

from __future__ import annotations

from pathlib import Path

from aoq.data.vocabulary import END, PAD, START, UNKNOWN, Vocabulary
from aoq.errors import UserError, raise_problems
from aoq.parsing import read_lines, shown

CAPTIONS_PER_IMAGE = 5
_UNKNOWN_WORD = "unk"  # every tokenizer keeps it whole, unlike "<unk>"


def captions_file(folder: Path, split: str) -> Path:
    """Return the captions file of a split: the one in words, or else the one in numbers."""
    words, numbers = folder / f"{split}_caps.txt", folder / f"{split}_precaps.txt"
    return numbers if numbers.is_file() and not words.is_file() else words


def read_captions(folder: Path, split: str) -> list[str]:
    """Read the captions of a split in words."""
    path = captions_file(folder, split)
    captions = read_lines(path)
    raise_problems(
        [
            f"{path}, line {number}: the caption is empty; expected words."
            for number, caption in enumerate(captions, start=1)
            if not caption
        ]
    )
    return captions if path.name.endswith("_caps.txt") else _in_words(path, captions)


def vocabulary_files(folder: Path) -> list[Path]:
    """Find vocabularies in a folder, or where SCAN and BFAN keep them: in `vocab` beside it.

    f30k_precomp/f30k_vocab.json    vocab/f30k_precomp_vocab.json
    """
    beside = folder.resolve().parent / "vocab" / f"{folder.resolve().name}_vocab.json"
    return [*sorted(folder.glob("*vocab*.json")), *([beside] if beside.is_file() else [])]


def read_ids(folder: Path, split: str, *, n_images: int) -> tuple[str, ...]:
    """Read the ids of the images; without an ids file, return their numbers.

    Ids may be given per caption: either the image's id, five times in succession, or the caption's
    own id. In the second case the first caption's id stands for the image.
    """
    path = folder / f"{split}_ids.txt"
    if not path.is_file():
        return tuple(f"{split}:{number}" for number in range(n_images))
    ids = read_lines(path)
    if len(ids) == n_images:
        return tuple(ids)
    if len(ids) != CAPTIONS_PER_IMAGE * n_images:
        raise UserError(
            f"{path} has {len(ids):,} ids; expected {n_images:,}, one per image, "
            f"or {CAPTIONS_PER_IMAGE * n_images:,}, one per caption."
        )
    if len(set(ids)) < len(ids):
        raise_problems(_mixed_ids(path, ids))
    return tuple(ids[::CAPTIONS_PER_IMAGE])


def _mixed_ids(path: Path, ids: list[str]) -> list[str]:
    """Return a sentence about the first five successive ids that do not name one image."""
    starts = range(0, len(ids), CAPTIONS_PER_IMAGE)
    mixed = [start for start in starts if len(set(ids[start : start + CAPTIONS_PER_IMAGE])) > 1]
    if not mixed:
        return []
    first, last = mixed[0] + 1, mixed[0] + CAPTIONS_PER_IMAGE
    return [
        f"{path}, lines {first} to {last}: the ids are {shown(ids[first - 1 : last])}, "
        f"{len(mixed):,} such groups in all; expected the same id five times, in the order of the "
        "image rows."
    ]


def _in_words(path: Path, lines: list[str]) -> list[str]:
    vocabularies = vocabulary_files(path.parent)
    if not vocabularies:
        raise UserError(
            f"{path} holds the numbers of words, but there is no vocabulary; copy the one they "
            f"were made with, such as {path.parent.resolve().name}_vocab.json, into the folder, "
            f"or the captions as {path.name.replace('_precaps', '_caps')}."
        )
    vocabulary = Vocabulary.load(vocabularies[0])
    problems: list[str] = []
    captions: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            captions.append(_decode(line, vocabulary))
        except ValueError:
            problems.append(
                f"{path}, line {number}: {shown(line)}; expected word numbers below "
                f"{len(vocabulary):,}, separated by commas, as in {vocabularies[0]}."
            )
    raise_problems(problems)
    return captions


def _decode(line: str, vocabulary: Vocabulary) -> str:
    """Convert one caption of numbers to words; raise a `ValueError` for unknown numbers."""
    numbers = [int(number) for number in line.split(",")]
    if min(numbers) < 0 or max(numbers) >= len(vocabulary):
        raise ValueError("a number is not in the vocabulary")
    words = [
        _UNKNOWN_WORD if number == UNKNOWN else vocabulary.words[number]
        for number in numbers
        if number not in (PAD, START, END)
    ]
    if not words:
        raise ValueError("it has no words")
    return " ".join(words).replace(" ''", '"')  # else it would open a quotation
