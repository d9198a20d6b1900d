"""Shows candidate lists: an anchor, its positives, and the wrong candidates closest to it.

Lists are shown as a table on the terminal, or as one self-contained HTML file. Look at some before
you train on them: a list full of sentences that describe the picture well is a list of false
negatives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from heapq import nlargest
from pathlib import Path, PurePath
from textwrap import shorten

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from aoq.data.dataset import PairDataset
from aoq.data.items import DIRECTIONS, KINDS, Item
from aoq.errors import UserError
from aoq.html import thumbnail, write_page
from aoq.mining.candidates import CandidateLists
from aoq.types import EntryKind

_SUGGESTIONS = 4
_HASH_DIGITS = 12


@dataclass(frozen=True)
class Anchor:
    """An image or a text by its number in the data set."""

    kind: EntryKind
    number: int


@dataclass(frozen=True)
class AnchorList:
    """An anchor, its positives and the head of its list, hardest first."""

    kind: EntryKind
    anchor: Item
    positives: list[Item]
    candidates: list[Item]


# Which anchors


def find_image(dataset: PairDataset, wanted: str) -> Anchor:
    """Find an image by id, else file name (with or without ending), position or part of an id.

    Ids come before positions because ids may be numbers.
    """
    ids = dataset.image_ids
    matches = (
        [number for number, name in enumerate(ids) if name == wanted]
        or [number for number in range(len(ids)) if wanted in _file_names(dataset, number)]
        or _positions(wanted, len(ids))
        or [number for number, name in enumerate(ids) if wanted.casefold() in name.casefold()]
    )
    near = matches or _images_called_like(wanted, ids)
    return _the_only("image", matches, near, wanted=wanted, dataset=dataset)


def find_text(dataset: PairDataset, wanted: str) -> Anchor:
    """Find a text by id, else position, caption or part of a caption."""
    captions = [caption.casefold() for caption in dataset.captions]
    text = " ".join(wanted.casefold().split())
    matches = (
        [number for number, name in enumerate(dataset.caption_ids) if name == wanted]
        or _positions(wanted, len(captions))
        or [number for number, caption in enumerate(captions) if caption == text]
        or [number for number, caption in enumerate(captions) if text in caption]
    )
    near = matches or _captions_sharing_words(text, captions)
    return _the_only("text", matches, near, wanted=wanted, dataset=dataset)


def sample_anchors(dataset: PairDataset, *, count: int = 4, seed: int = 0) -> list[Anchor]:
    """Draw some images and as many texts, the same for the same seed."""
    random = np.random.default_rng(seed)

    def drawn(available: int) -> list[int]:
        size = min(count, available)
        return sorted(random.choice(available, size=size, replace=False).tolist())

    images, texts = drawn(len(dataset)), drawn(dataset.n_texts)
    return [Anchor("image", n) for n in images] + [Anchor("text", n) for n in texts]


def _file_names(dataset: PairDataset, number: int) -> set[str]:
    known = (PurePath(dataset.image_ids[number]), dataset.pictures[number])
    paths = [path for path in known if path is not None]
    return {path.name for path in paths} | {path.stem for path in paths}


def _positions(wanted: str, count: int) -> list[int]:
    return [int(wanted)] if wanted.isdecimal() and int(wanted) < count else []


def _images_called_like(wanted: str, ids: Sequence[str]) -> list[int]:
    numbers = {PurePath(name).stem: number for number, name in enumerate(ids)}
    return [numbers[stem] for stem in get_close_matches(wanted, numbers, n=_SUGGESTIONS)]


def _captions_sharing_words(text: str, captions: Sequence[str]) -> list[int]:
    """Find the captions that share most words with a text; rare words count more."""
    wanted = set(text.split())
    shared = {at: words for at, line in enumerate(captions) if (words := wanted & {*line.split()})}
    counts = Counter(word for words in shared.values() for word in words)
    return nlargest(_SUGGESTIONS, shared, key=lambda at: sum(1 / counts[w] for w in shared[at]))


def _the_only(
    kind: EntryKind,
    matches: Sequence[int],
    near: Sequence[int],
    *,
    wanted: str,
    dataset: PairDataset,
) -> Anchor:
    """Return the only match; refuse none or several with suggestions."""
    if len(matches) == 1:
        return Anchor(kind, matches[0])
    place = f"{dataset.name} ({dataset.split})"
    shown = ", ".join(_called(dataset, kind, number) for number in near[:_SUGGESTIONS])
    if matches:
        raise UserError(
            f"{place} has {len(matches):,} {kind}s like {wanted!r}, first {shown}; name one of "
            "them by its id."
        )
    count, other = (len(dataset), "file name") if kind == "image" else (dataset.n_texts, "words")
    raise UserError(
        f"{place} has no {kind} like {wanted!r}{f', but {shown}' if near else ''}; name one by its "
        f"id, {other} or position (0 to {count - 1})."
    )


def _called(dataset: PairDataset, kind: EntryKind, number: int) -> str:
    if kind == "image":
        return dataset.image_ids[number]
    return f"{dataset.caption_ids[number]} ({shorten(dataset.captions[number], 60)})"


# Contents


def anchor_list(
    lists: CandidateLists, dataset: PairDataset, anchor: Anchor, *, depth: int
) -> AnchorList:
    """Collect one anchor with the first `depth` of its list; the lists must fit the data set."""
    number, direction = anchor.number, DIRECTIONS[anchor.kind]
    _, other = KINDS[direction]
    positives = dataset.positives if direction == "i2t" else dataset.positives.swapped
    ids, scores = lists.of(direction)
    matches = lists.matches_of(direction)
    notes = [""] * depth
    if matches is not None:
        notes = [f"match {p:.0%}" for p in matches[number, :depth].tolist()]
    return AnchorList(
        kind=anchor.kind,
        anchor=Item.of(dataset, anchor.kind, number),
        positives=[Item.of(dataset, other, own) for own in positives.texts_of(number).tolist()],
        candidates=[
            replace(
                Item.of(dataset, other, candidate, score=None if np.isnan(score) else score),
                note=note,
            )
            for candidate, score, note in zip(
                ids[number, :depth].tolist(), scores[number, :depth].tolist(), notes, strict=False
            )
        ],
    )


def provenance_rows(lists: CandidateLists, dataset: PairDataset) -> list[tuple[str, str]]:
    """Return rows that show where the lists come from."""
    origin = lists.provenance
    rows = [
        ("teacher", _short_hashes(origin.teacher)),
        ("data", f"{dataset.name} ({dataset.split}), {_short_hashes(origin.data)}"),
        ("depths", lists.extent),
        ("rules", ", ".join(origin.rules) or "none"),
        ("proposals", _short_hashes(origin.proposals)),
        ("precision", origin.precision),
        ("matches", _match_shares(lists)),
    ]
    return [(name, value) for name, value in rows if value]


def _match_shares(lists: CandidateLists) -> str:
    """Describe how many candidates are right, by estimate; nothing without one."""
    if lists.i2t_matches is None or lists.t2i_matches is None:
        return ""
    i2t, t2i = (float(found.mean()) for found in (lists.i2t_matches, lists.t2i_matches))
    return f"by estimate {i2t:.1%} of the texts and {t2i:.1%} of the images are right"


def _short_hashes(text: str) -> str:
    return re.sub(r"[0-9a-f]{64}", lambda found: found.group()[:_HASH_DIGITS], text)


# On the terminal


def terminal_view(
    lists: CandidateLists, dataset: PairDataset, anchors: Iterable[Anchor], *, depth: int = 10
) -> Group:
    """Render the provenance, then each anchor with its positives and a table of its list."""
    origin = Table.grid(padding=(0, 2))
    for name, value in provenance_rows(lists, dataset):
        origin.add_row(Text(name, style="dim"), Text(value))
    shown = [anchor_list(lists, dataset, anchor, depth=depth) for anchor in anchors]
    return Group(origin, *(view for one in shown for view in _anchor_view(one)))


def _anchor_view(shown: AnchorList) -> tuple[Text, Table]:
    of_image = shown.kind == "image"
    head = Text("\n")
    head.append(f"{shown.kind} {shown.anchor.number}: {shown.anchor.name}\n", style="bold")
    if not of_image:
        head.append(f"{shown.anchor.text}\n")
    for positive in shown.positives:
        head.append("belongs to it: ", style="dim")
        head.append(f"{positive.text if of_image else positive.name}\n")
    head.right_crop(1)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("rank", justify="right")
    table.add_column("score", justify="right")
    table.add_column("text" if of_image else "image", overflow="fold")
    table.add_column("wrong caption" if of_image else "a caption of the wrong image")
    for rank, candidate in enumerate(shown.candidates, start=1):
        score = "-" if candidate.score is None else f"{candidate.score:.3f}"
        name = Text(candidate.name)
        if candidate.note:
            name.append(f" ({candidate.note})", style="dim")
        table.add_row(str(rank), score, name, Text(candidate.text))
    return head, table


# As a page


def write_inspection(
    path: Path,
    lists: CandidateLists,
    dataset: PairDataset,
    anchors: Iterable[Anchor],
    *,
    depth: int = 12,
) -> None:
    """Write a page with the lists of `anchors`; the lists must fit the data set."""
    shown = [anchor_list(lists, dataset, anchor, depth=depth) for anchor in anchors]
    write_page(
        path,
        "inspection.html.j2",
        dataset=dataset,
        provenance=provenance_rows(lists, dataset),
        images=[one for one in shown if one.kind == "image"],
        texts=[one for one in shown if one.kind == "text"],
        picture=cache(thumbnail),
    )
