"""Reads pictures and captions into one form: one `Record` per image.

`aoq.data.sources.captions` turns a file of any format into `Entry`s, one per caption. The rules
of a valid source (every picture exists, every image in one split, no empty caption) are checked
here, once for all formats. A source is read to its end before it is rejected, so that one report
lists everything to fix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from aoq.data.sources.captions import Entry, read_entries
from aoq.errors import UserError, raise_problems
from aoq.features.names import Names
from aoq.features.pictures import find_pictures
from aoq.parsing import byte_string_problems, is_file, normal_name, read_lines
from aoq.progress import warn
from aoq.storage import hash_file
from aoq.types import Split

SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "restval": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
}


@dataclass(frozen=True)
class Record:
    """One image: its picture, its split and its captions."""

    image_id: str
    picture: Path
    split: str
    captions: tuple[str, ...]
    caption_ids: tuple[str, ...]


@dataclass(frozen=True)
class SplitEntry:
    """A statement that an image is in a split: a line of the captions or of a split list."""

    place: str
    image: str
    split: str


def read_records(
    captions_file: Path | str,
    *,
    pictures: Path | str,
    splits: Path | str | None = None,
    need_pictures: bool = True,
    skipped: list[str] | None = None,
) -> list[Record]:
    """Read all images of a source, in the order of its captions file.

    Lines, captions and images that cannot be used are rejected together. If a list is given as
    `skipped`, they are left out instead, and the list receives the reasons; contradictions, such
    as an image in two splits, are rejected in any case.

    `splits` is a folder with train.txt, dev.txt and test.txt, one picture name per line; pictures
    in none of them are left out. Otherwise the captions file names the split of an image, and
    images without one are distributed by `share_out`. Pictures need not exist if features are
    given.
    """
    captions_file, pictures = Path(captions_file), Path(pictures)
    splits = None if splits is None else Path(splits)
    if not pictures.is_dir():
        raise UserError(f"{pictures} is not a folder; name the folder that holds the pictures.")
    problems: list[str] = []
    images: dict[str, list[Entry]] = {}
    claims: list[SplitEntry] = []
    files = _names_in(pictures)
    there = Names(files)
    image_of: dict[str, str] = {}  # the first spelling of a file name in the captions
    unusable = problems if skipped is None else skipped
    for entry in read_entries(captions_file, pictures=pictures, problems=unusable):
        name = _name_below(pictures, entry.image)
        image = image_of.setdefault(there.find(name) or name, name)
        images.setdefault(image, []).append(entry)
        if entry.split and splits is None:
            claims.append(SplitEntry(entry.place, image, entry.split))
    if splits is None:
        unused = [name for name in files if name not in image_of]
        reason = f"without a caption in {captions_file}"
    else:
        captioned = Names(images)
        for claim in read_split_lists(splits):
            name = _name_below(pictures, claim.image)
            claims.append(replace(claim, image=captioned.find(name) or name))
        unusable += _unmentioned(claims, captioned, captions_file)
        listed = {claim.image for claim in claims}
        unused = [name for name in images if name not in listed]
        reason = f"in no list of {splits}"
        images = {name: entries for name, entries in images.items() if name in listed}
    paths = {image: pictures / file for file, image in image_of.items() if image in images}
    if skipped is not None:
        images = _usable(
            images,
            paths,
            pictures=pictures,
            there=there if need_pictures else None,
            reasons=skipped,
        )
        paths = {image: path for image, path in paths.items() if image in images}
    split_of = settle_splits(claims, problems)
    split_of |= share_out(paths, split_of)
    records = _to_records(
        images,
        paths=paths,
        pictures=pictures,
        there=there if need_pictures else None,
        split_of=split_of,
        problems=problems,
    )
    raise_problems(problems)
    if not records:
        raise UserError(f"{captions_file} holds no captions; expected at least one.")
    if unused:
        warn(f"pictures {reason} are left out: {len(unused):,}, the first is {unused[0]}.")
    return records


def _unmentioned(listed: Iterable[SplitEntry], captioned: Names, captions_file: Path) -> list[str]:
    """Report pictures of the split lists that have no caption."""
    return [
        f"{claim.place}: {claim.image} has no caption in {captions_file}; "
        f"{captioned.hint(claim.image) or 'expected one or more'}."
        for claim in listed
        if captioned.find(claim.image) is None
    ]


def _to_records(
    images: dict[str, list[Entry]],
    *,
    paths: Mapping[str, Path],
    pictures: Path,
    there: Names | None,
    split_of: dict[str, Split],
    problems: list[str],
) -> list[Record]:
    """Join the entries of each image, and report what is wrong with them.

    Its picture must be in `there`, the names in the folder, unless features replace it.
    """
    problems += byte_string_problems(
        (entry.place, entry.caption) for entries in images.values() for entry in entries
    )
    records: list[Record] = []
    taken: dict[tuple[str, str], str] = {}
    for name, entries in images.items():
        problems += _empty_captions(name, entries)
        problems += _picture_problems(name, entries, paths, pictures=pictures, there=there)
        place = entries[0].place
        record = Record(
            image_id=entries[0].image_id or name,
            picture=paths[name],
            split=split_of[name],
            captions=tuple(entry.caption for entry in entries),
            caption_ids=tuple(e.caption_id or f"{name}#{k}" for k, e in enumerate(entries)),
        )
        ids = [("image", record.image_id, place)]
        ids += [("caption", i, e.place) for i, e in zip(record.caption_ids, entries, strict=True)]
        for kind, identifier, where in ids:
            first = taken.setdefault((kind, identifier), where)
            if first != where:
                problems.append(
                    f"{where}: the {kind} id {identifier} is taken by {first}; ids must differ."
                )
        records.append(record)
    return records


def _empty_captions(name: str, entries: Iterable[Entry]) -> list[str]:
    return [
        f"{entry.place}: the caption of {name} is empty; write one or remove the line."
        for entry in entries
        if not entry.caption
    ]


def _picture_problems(
    name: str,
    entries: Sequence[Entry],
    paths: Mapping[str, Path],
    *,
    pictures: Path,
    there: Names | None,
) -> list[str]:
    """List what keeps the picture of an image from being used."""
    path, place = PurePosixPath(name), entries[0].place
    if path.is_absolute() or ".." in path.parts:
        return [f"{place}: {name} leads out of {pictures}; expected a path inside it."]
    if there is not None and not is_file(paths[name]):
        remedy = there.hint(name) or "put it there, or remove its captions"
        return [f"{place}: the picture {name} is not in {pictures}; {remedy}."]
    return []


def _usable(
    images: Mapping[str, list[Entry]],
    paths: Mapping[str, Path],
    *,
    pictures: Path,
    there: Names | None,
    reasons: list[str],
) -> dict[str, list[Entry]]:
    """Return the images whose picture exists, each with its non-empty captions."""
    found: dict[str, list[Entry]] = {}
    for name, entries in images.items():
        reasons += _empty_captions(name, entries)
        faults = _picture_problems(name, entries, paths, pictures=pictures, there=there)
        reasons += faults
        worded = [entry for entry in entries if entry.caption]
        if worded and not faults:
            found[name] = worded
    return found


# Splits


def read_split_lists(folder: Path) -> list[SplitEntry]:
    """Read the picture names of train.txt, dev.txt (or val.txt) and test.txt."""
    files = [folder / f"{name}.txt" for name in SPLIT_NAMES if (folder / f"{name}.txt").is_file()]
    if not files:
        raise UserError(f"{folder} holds no train.txt, dev.txt or test.txt; name the split lists.")
    return [
        SplitEntry(f"{file}, line {number}", normal_name(line), file.stem)
        for file in files
        for number, line in enumerate(read_lines(file), start=1)
        if line
    ]


def settle_splits(claims: Iterable[SplitEntry], problems: list[str]) -> dict[str, Split]:
    """Determine the one split of every image that has a claim."""
    settled: dict[str, Split] = {}
    first: dict[str, SplitEntry] = {}
    for claim in claims:
        split = SPLIT_NAMES.get(claim.split.strip().lower())
        if split is None:
            problems.append(
                f"{claim.place}: the split {claim.split!r} is unknown; "
                "expected train, dev (or val) or test."
            )
        elif settled.setdefault(claim.image, split) != split:
            problems.append(
                f"{claim.place}: {claim.image} is in {split} here and in "
                f"{settled[claim.image]} at {first[claim.image].place}; an image has one split."
            )
        first.setdefault(claim.image, claim)
    return settled


def share_out(pictures: Mapping[str, Path], split_of: Mapping[str, Split]) -> dict[str, Split]:
    """Assign a split to every image that has none; copies of a picture stay together.

    Copies join a copy that has a split; otherwise the first of their names is ranked for all.
    """
    unsettled = [name for name in pictures if name not in split_of]
    if not unsettled:
        return {}
    first = _first_copies(pictures)
    settled = {first[name]: split_of[name] for name in pictures if name in split_of}
    settled |= rank_into_splits({first[name] for name in unsettled} - settled.keys())
    return {name: settled[first[name]] for name in unsettled}


def _first_copies(pictures: Mapping[str, Path]) -> dict[str, str]:
    """Map names to the first name with the same content; only possible copies are read."""
    by_size: dict[int, list[str]] = {}
    for name in sorted(pictures):
        if is_file(pictures[name]):
            by_size.setdefault(pictures[name].stat().st_size, []).append(name)
    first = {name: name for name in pictures}
    for names in by_size.values():
        seen: dict[str, str] = {}
        for name in names if len(names) > 1 else ():
            with suppress(OSError):  # extraction reports what cannot be read
                first[name] = seen.setdefault(hash_file(pictures[name]), name)
    return first


def rank_into_splits(names: Collection[str]) -> dict[str, Split]:
    """Split the images 80 / 10 / 10 percent, ranked by a hash of their names.

    The order of the file does not matter, and three images are enough to fill every split.
    """
    ranked = sorted(names, key=lambda name: hashlib.sha256(f"0:{name}".encode()).digest())
    share = max(1, round(len(ranked) / 10)) if len(ranked) >= 3 else 0
    held_out: dict[str, Split] = dict.fromkeys(ranked[:share], "test")
    held_out |= dict.fromkeys(ranked[share : 2 * share], "dev")
    return {name: held_out.get(name, "train") for name in names}


# Small parts


def _name_below(folder: Path, name: str) -> str:
    """Return a picture's name in its folder, also if the whole path is given."""
    for root in (folder.absolute(), folder.resolve()):
        if Path(name).is_relative_to(root):
            return Path(name).relative_to(root).as_posix()
    return name


def _names_in(pictures: Path) -> list[str]:
    """List the pictures in a folder and its subfolders, as a captions file names them."""
    return [path.relative_to(pictures).as_posix() for path in find_pictures(pictures).pictures]
