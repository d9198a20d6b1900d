"""Turns many pictures into regions: in batches, on all cores, and each picture once.

Every result is cached under the hash of its picture file: an interrupted extraction continues where
it stopped, losing only the batches in progress, and a second one costs nothing. A coarser grid is
pooled from the cache, so it costs nothing either. Batches fit into a processor's cache, and each
one is computed by a single core: cores that share a batch wait for each other. The results are the
same for any number of cores and workers, and for any other pictures in a batch.
"""

from __future__ import annotations

import multiprocessing
import signal
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from aoq.distributed import Processes
from aoq.errors import UserError, raise_problems
from aoq.features.backbones import Regions
from aoq.features.pictures import (
    Canvas,
    Fault,
    PictureError,
    PictureFolder,
    Pixels,
    decode,
    find_fault,
    load_picture,
    unreadable,
)
from aoq.features.regions import RegionSource, one_core_each
from aoq.features.store import keep_array, open_array
from aoq.parsing import is_text
from aoq.progress import progress_bar, track, warn
from aoq.storage import cache_folder, hash_file
from aoq.threads import exit_with_parent, map_in_order
from aoq.types import Ids

BATCH = 4
UNDER_WAY = 64  # maximum number of batches, or of hashes, that are ahead of their use
WORKERS = 0  # processes that decode pictures; 0: the computing cores decode

_SHOWN = 5  # examples of each group of skipped pictures
_CHANGED = Fault("was changed while it was read", "start again")


@dataclass(frozen=True)
class Extraction:
    """Where the regions of pictures are cached, and which pictures have none."""

    stored: dict[Path, Path]
    "Paths of the pictures' regions, in the order of the pictures; a file is named by its hash."
    skipped: dict[Path, Fault]

    @property
    def problems(self) -> list[str]:
        return [fault.sentence(picture) for picture, fault in self.skipped.items()]


def report_left_out(
    skipped: Mapping[Path, Fault], found: PictureFolder, *, may_be_all: bool = False
) -> None:
    """Warn of what was left out of a folder; raise a `UserError` if nothing can be used."""
    sentences = list(_left_out(skipped, found))
    if len(skipped) == len(found.pictures) and not may_be_all:
        raise UserError(
            *sentences, f"{found.path} holds no picture that can be used; name another folder."
        )
    for sentence in sentences:
        warn(sentence)


def _left_out(skipped: Mapping[Path, Fault], found: PictureFolder) -> Iterator[str]:
    """Yield one sentence per reason, with the first places."""
    groups: dict[str, list[Path]] = {}
    for picture, fault in skipped.items():
        groups.setdefault(fault.reason, []).append(picture)
    for reason, pictures in groups.items():
        places = [_printable(picture.relative_to(found.path).as_posix()) for picture in pictures]
        several = f"{len(places):,} pictures are left out: each"
        left_out = several if len(places) > 1 else "1 picture is left out: it"
        hint = skipped[pictures[0]].hint
        yield f"{left_out} {reason} ({_first(places)}); {hint}."
    others = found.others
    if others:
        endings = _first([f"{end or 'none'} {count:,}" for end, count in others.most_common()])
        files = f"{others.total():,} files are left out: they do not end like pictures"
        file = "1 file is left out: it does not end like a picture"
        yield f"{files if others.total() > 1 else file} ({endings})."


def _printable(name: str) -> str:
    """Return a printable name: names that are not UTF-8 can be read but not written."""
    return name.encode(errors="backslashreplace").decode()


def _first(items: Sequence[str]) -> str:
    more = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def extract_pictures(
    pictures: Sequence[Path],
    source: RegionSource,
    *,
    workers: int = WORKERS,
    skip: bool = True,
) -> Extraction:
    """Extract the pictures that are not in the cache yet.

    Pictures that cannot be used are left out. Without `skip` they are rejected together: pictures
    with a bad header before anything is computed, pictures that turn out to be damaged at the end,
    when the others are cached.
    """
    places = _find_places(pictures, source)
    picture_of = {at: picture for picture, at in places.items() if isinstance(at, Path)}
    widths = _find_widths(list(picture_of), source)
    missing = {place: picture for place, picture in picture_of.items() if not widths[place]}
    broken = {place: fault for place, picture in missing.items() if (fault := find_fault(picture))}
    if not skip:
        raise_problems(_divide(places, broken).problems)
    sound = {place: picture for place, picture in missing.items() if place not in broken}
    if sound or len({*widths.values()} - {0}) > 1:
        expected = source.load().width
        sound |= {at: picture_of[at] for at, width in widths.items() if width not in (0, expected)}
    extraction = _divide(places, broken | _extract_missing(sound, source, workers=workers))
    if not skip:
        raise_problems(extraction.problems)
    return extraction


def extract_in_shares(
    pictures: Sequence[Path], source: RegionSource, *, processes: Processes
) -> Extraction:
    """Extract pictures in several processes, each its share of them; reject unusable ones.

    Afterwards every process computes what is still missing: pictures that cannot be used, and
    those of other machines if the cache is not a shared one.
    """
    if processes.size > 1:
        extract_pictures(pictures[processes.rank :: processes.size], source)
        processes.barrier()
    return extract_pictures(pictures, source, skip=False)


def load_regions(place: Path, source: RegionSource) -> Regions:
    """Load the cached features of a picture, as `source` makes them. (R, F), (3, S, S)"""
    kept = _open_kept(place, source)
    if kept is None:
        raise UserError(
            f"{place} in the cache is damaged or gone; start again, and it is extracted again."
        )
    return source.finish(kept)


@dataclass(frozen=True)
class ExtractedPictures:
    """The features of extracted pictures, read from the cache on demand."""

    places: Sequence[Path]
    source: RegionSource

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, ids: Ids, /) -> Regions:
        return np.stack([load_regions(self.places[row], self.source) for row in ids])


def hash_readable(pictures: Sequence[Path]) -> tuple[dict[Path, str], dict[Path, Fault]]:
    """Decode pictures, and return the hash of each that can be used, and the faults of others."""
    hashes: dict[Path, str] = {}
    faults: dict[Path, Fault] = {}
    with ThreadPoolExecutor() as pool:
        found = track(
            map_in_order(pool, _hash_if_readable, pictures, ahead=UNDER_WAY),
            "Reading pictures",
            total=len(pictures),
            unit="pictures",
        )
        for picture, digest in zip(pictures, found, strict=True):
            if isinstance(digest, str):
                hashes[picture] = digest
            else:
                faults[picture] = digest
    return hashes, faults


def _hash_if_readable(picture: Path) -> str | Fault:
    digest = _hash_picture(picture)
    if isinstance(digest, str):
        try:
            load_picture(picture)
        except PictureError as error:
            return error.fault
    return digest


# The cache


def _find_places(pictures: Sequence[Path], source: RegionSource) -> dict[Path, Path | Fault]:
    """Find the cache path of each picture by its content, or why it cannot be read."""
    folder = cache_folder() / "features" / source.id
    places: dict[Path, Path | Fault] = {}
    with ThreadPoolExecutor() as pool:
        hashes = map_in_order(pool, _hash_picture, pictures, ahead=UNDER_WAY)
        found = track(hashes, "Reading pictures", total=len(pictures), unit="pictures")
        for picture, digest in zip(pictures, found, strict=True):
            if isinstance(digest, str):
                places[picture] = folder / digest[:2] / f"{digest}.npy"
            else:
                places[picture] = digest
    return places


def _hash_picture(picture: Path) -> str | Fault:
    if not is_text(str(picture)):  # a list of pictures cannot contain it
        return Fault("has a name that is not UTF-8", "rename it")
    try:
        if not stat.S_ISREG(picture.stat().st_mode):  # reading a pipe would never end
            return Fault("is not a file", "expected a picture")
        return hash_file(picture)
    except OSError as error:
        return unreadable(error)


def _divide(places: dict[Path, Path | Fault], broken: dict[Path, Fault]) -> Extraction:
    """Divide pictures into usable and unusable ones; equal content has equal faults."""
    stored: dict[Path, Path] = {}
    skipped: dict[Path, Fault] = {}
    for picture, place in places.items():
        if isinstance(place, Fault):
            skipped[picture] = place
        elif place in broken:
            skipped[picture] = broken[place]
        else:
            stored[picture] = place
    return Extraction(stored, skipped)


def _find_widths(places: Sequence[Path], source: RegionSource) -> dict[Path, int]:
    """Return the features per region of each cached file; 0 if there is no usable one."""
    with ThreadPoolExecutor() as pool:
        sources = repeat(source, len(places))
        read = map_in_order(pool, _kept_width, places, sources, ahead=UNDER_WAY)
        found = track(read, "Checking features", total=len(places), unit="pictures")
        return dict(zip(places, found, strict=True))


def _kept_width(place: Path, source: RegionSource) -> int:
    kept = _open_kept(place, source)
    return 0 if kept is None else kept.shape[1]


def _open_kept(place: Path, source: RegionSource) -> Regions | None:
    """Read a cached file; None if it is missing, damaged or of another shape."""
    kept = open_array(place)
    is_ours = kept is not None and kept.dtype in (np.float16, np.float32, np.uint8)
    return kept if kept is not None and is_ours and source.fits(kept) else None


# Decoding and computing


def _extract_missing(
    missing: dict[Path, Path], source: RegionSource, *, workers: int
) -> dict[Path, Fault]:
    """Extract and store the regions of pictures by path; return what could not be decoded."""
    if not missing:
        return {}
    backbone = source.load()
    places = list(missing)
    batches = [places[start : start + BATCH] for start in range(0, len(places), BATCH)]

    def compute(work: tuple[list[Path], Callable[[], list[Pixels | Fault]]]) -> dict[Path, Fault]:
        batch, decoded = work
        found = dict(zip(batch, decoded(), strict=True))
        for at, pixels in found.items():
            if not isinstance(pixels, Fault) and _hash_picture(missing[at]) != at.stem:
                found[at] = _CHANGED
        usable = {at: pixels for at, pixels in found.items() if not isinstance(pixels, Fault)}
        if usable:
            for place, rows in zip(usable, backbone(list(usable.values())), strict=True):
                keep_array(place, rows)
        return {at: fault for at, fault in found.items() if isinstance(fault, Fault)}

    faults: dict[Path, Fault] = {}
    with (
        progress_bar("Extracting features", total=len(places), unit="pictures") as update,
        _decoders(workers) as start_decoding,
        one_core_each() as cores,
    ):
        files = ([missing[place] for place in batch] for batch in batches)
        decoded = (start_decoding(decode_pictures, pictures, backbone.canvas) for pictures in files)
        results = map_in_order(
            cores, compute, zip(batches, decoded, strict=True), ahead=UNDER_WAY - 1
        )
        for batch, found in zip(batches, results, strict=True):
            faults |= found
            update(advance=len(batch))
    return faults


def decode_pictures(pictures: Sequence[Path], canvas: Canvas) -> list[Pixels | Fault]:
    """Return each picture's pixels, or why there are none."""
    decoded: list[Pixels | Fault] = []
    for picture in pictures:
        try:
            decoded.append(decode(picture, canvas))
        except PictureError as error:
            decoded.append(error.fault)
    return decoded


@contextmanager
def _decoders(workers: int) -> Iterator[Callable[..., Callable[[], Any]]]:
    """Yield a function that starts a call in another process, or defers it without workers."""
    if not workers:
        yield partial
        return
    context = multiprocessing.get_context("spawn")  # a fork would break torch's threads
    try:
        with ProcessPoolExecutor(workers, context, initializer=_begin_worker) as pool:
            yield lambda *call: pool.submit(*call).result
    except BrokenProcessPool as error:
        raise UserError(
            "A process that decodes pictures died, perhaps out of memory; start again with "
            "fewer --workers: what has been extracted is kept."
        ) from error


def _begin_worker() -> None:
    """Ignore interrupts, which the parent process handles, and exit with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()
