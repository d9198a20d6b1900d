"""Brings an index up to date with the folders of its photos: added, changed, moved, removed.

A file whose size and time have not changed has not changed; of the others the content is compared,
by its hash, so a photo that was renamed or touched is not encoded again. Hashes are kept beside the
index in files.json, which can be deleted. The model is loaded only if there are new photos. After
every few thousand of them the index is saved, and a killed run continues from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from aoq.distributed import ALONE, Processes
from aoq.errors import UserError
from aoq.features.pictures import find_pictures
from aoq.progress import track
from aoq.retrieval.encoder import QueryEncoder
from aoq.retrieval.finish import save_index, writing
from aoq.retrieval.index import ImageEntry, Index, IndexManifest, IndexPart
from aoq.retrieval.location import existing_index
from aoq.retrieval.matcher import load_teacher, require_function
from aoq.retrieval.part_writer import KeptEntries, PartWriter
from aoq.retrieval.photo_captions import PhotoCaptions, captions_record
from aoq.retrieval.ranking import compares_vectors
from aoq.retrieval.shares import extract_in_shares
from aoq.retrieval.text import write_captions
from aoq.runs.checkpoint import MakeModel
from aoq.scoring.blocks import ranges
from aoq.storage import hash_file, write_text

FILES = "files.json"
PHOTOS_AT_ONCE = 8_192  # photos of a part, after which the index is saved
_SMALL_PARTS = 8  # parts of few photos beyond which they are joined


@dataclass(frozen=True)
class Synced:
    """What has changed in an index."""

    added: int = 0
    changed: int = 0
    "Photos whose file holds another picture."
    moved: int = 0
    removed: int = 0
    unusable: int = 0
    "Files that are new and hold no picture that can be read."

    def __bool__(self) -> bool:
        return self != Synced()

    def __add__(self, other: Synced) -> Synced:
        return Synced(
            *(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )


def sync_photos(
    run: Path | str,
    *,
    index: Path | str | None = None,
    make_model: MakeModel | None = None,
    encoder: QueryEncoder | None = None,
    processes: Processes = ALONE,
) -> Synced:
    """Bring the photos of an index up to date with the folders that they were read from.

    `encoder` is the model of the run, if it is loaded already. Several processes share the work,
    if all of them call this; the first one knows what has changed.
    """
    folder = existing_index(run, index)
    if processes.size > 1:
        opened = Index.open(folder)
        load = _loader(run, opened, make_model, encoder)
        for photos in {part.folder: None for part in opened.manifest.parts if part.folder}:
            extract_new_photos(Path(photos), folder, load(), processes)
    if not processes.is_first:
        return Synced()
    with writing(folder):
        before = Index.open(folder)
        require_function(before, run, make_model)
        folders = list(dict.fromkeys(part.folder for part in before.manifest.parts if part.folder))
        if not folders:
            raise UserError(
                f"{folder} holds no photos of a folder that could have changed; add some with "
                "`aoq index RUN --add FOLDER`."
            )
        update = IndexUpdate(folder, before, _loader(run, before, make_model, encoder))
        return sum((update.sync(Path(each)) for each in folders), Synced())


def _loader(
    run: Path | str, index: Index, make_model: MakeModel | None, encoder: QueryEncoder | None
) -> Callable[[], QueryEncoder]:
    def load() -> QueryEncoder:
        source = index.manifest.source
        loaded = encoder or QueryEncoder.load(run, source=source, make_model=make_model)
        index.require_model(loaded.model_hash, run=loaded.run)
        return loaded

    return load


def remove_photos(
    run: Path | str, patterns: Sequence[str], *, index: Path | str | None = None
) -> int:
    """Remove photos by their path, the folder they are in, or a pattern such as */draft-*.

    They stay removed when the index is brought up to date.
    """
    folder = existing_index(run, index)
    with writing(folder):
        before = Index.open(folder)
        gone: set[int] = set()
        for pattern in patterns:
            found = {image.number for image in before.images if _matches(image, pattern)}
            if not found:
                raise UserError(
                    f"{pattern} is no photo of {folder}; expected a path, a folder, or a pattern "
                    "such as 'drafts/*'."
                )
            gone |= found
        if len(gone) == len(before.images):
            raise UserError(f"that would remove all photos; delete {folder} instead.")
        update = IndexUpdate(folder, before, _no_model)
        update.drop(gone)
        contents = {before.images[number].content for number in gone} - {None}
        left_out = {*before.manifest.left_out, *map(str, contents)}
        update.save(left_out=tuple(sorted(left_out)))
    return len(gone)


def _no_model() -> QueryEncoder:
    raise AssertionError("nothing is encoded when photos are removed")


def _matches(image: ImageEntry, pattern: str) -> bool:
    plain = pattern.rstrip("/")
    names = [image.id]
    if image.picture is not None:
        names.append(str(image.picture))
    given = Path(plain)
    absolute = str(given.resolve()) if given.exists() else plain
    return any(
        name in (plain, absolute)
        or name.startswith((f"{plain}/", f"{absolute}/"))
        or fnmatchcase(name, plain)
        for name in names
    )


class IndexUpdate:
    """Changes to the photos of an index, which are saved as they are made.

    An index that is made `anew` is saved at the end only: until then another one may be in its
    place.
    """

    def __init__(
        self,
        folder: Path,
        index: Index,
        load_encoder: Callable[[], QueryEncoder],
        *,
        anew: bool = False,
    ) -> None:
        self.folder = folder
        self.index = index
        self._load_encoder = load_encoder
        self._anew = anew
        self._make_writer()

    @cached_property
    def _encoder(self) -> QueryEncoder:
        return self._load_encoder()

    def _make_writer(self) -> None:
        self._writer = PartWriter(
            self.folder,
            lambda: self._encoder,
            load_teacher=lambda: load_teacher(self.index),
            index=self.index,
        )

    def sync(self, photos: Path, *, captions: Path | None = None) -> Synced:
        """Make the index hold the photos of a folder, as they are now, with a captions file."""
        key = str(photos.absolute())
        found = find_pictures(photos).pictures
        files = KnownFiles(self.folder / FILES, photos, {})
        if not self._anew:
            files = KnownFiles.open(self.folder, photos)
        contents = files.contents_of(found)
        before = {image.content for image in self._images_of(key)}
        captions = self._take_captions(key, captions)
        done = self._leave_out_gone(key, contents)
        new = _first_of_each(
            (name, content)
            for name, content in contents.items()
            if content not in self._writer.contents
            and content not in self.index.manifest.left_out
            and content not in files.unusable
        )
        files.save()
        if new:
            read = None
            if captions is not None:
                read = PhotoCaptions.read(captions, folder=photos, photos=found)
            done += self._add(photos, new, files, read)
            files.save()
        if not self._writer.parts:
            raise UserError(f"{photos} holds no picture that can be used; name another folder.")
        retold = sum(contents[name] in before for name in new)  # only their captions have changed
        changed = min(done.changed, done.added - retold)
        return replace(
            done,
            added=done.added - changed - retold,
            changed=changed + retold,
            removed=done.removed - changed,
        )

    def _take_captions(self, folder: str, captions: Path | None) -> Path | None:
        """Choose the captions file of a folder; photos are indexed again if it has changed."""
        record = self.index.manifest.captions_files.get(folder)
        if captions is None and record is not None:
            captions = Path(record.path)
            if not captions.is_file():
                raise UserError(
                    f"{captions}, the captions of {folder}, is gone; bring it back, name another "
                    "file with --captions, or search as it was with --no-sync."
                )
        told = None if captions is None else captions_record(captions)
        if told is not None and told != record:
            self.drop({image.number for image in self._images_of(folder)})
            self._refresh(captions_files={**self.index.manifest.captions_files, folder: told})
        return captions

    def _images_of(self, folder: str) -> list[ImageEntry]:
        parts = [part for part in self.index.manifest.parts if part.folder == folder]
        return [image for part in parts for image in self.index.images_of(part)]

    def _leave_out_gone(self, folder: str, contents: Mapping[str, str]) -> Synced:
        """Remove photos that are gone or hold another picture, and rename those that moved."""
        places: dict[str, list[str]] = {}
        for name, content in contents.items():
            places.setdefault(content, []).append(name)
        gone: set[int] = set()
        moved: dict[int, str] = {}
        replaced = 0
        for image in self._images_of(folder):
            assert image.content is not None
            if contents.get(image.id) == image.content:
                continue
            if image.content in places:
                moved[image.number] = places[image.content][0]
            else:
                gone.add(image.number)
                replaced += image.id in contents
        small = self._small_parts(folder)
        if gone or moved or small:
            self.drop(gone, moved=moved, joined=small)
            if self._writer.parts:
                self.save()
            else:
                self._refresh()
        return Synced(changed=replaced, moved=len(moved), removed=len(gone))

    def _small_parts(self, folder: str) -> list[IndexPart]:
        """Return parts of few photos, which single additions make, if there are many of them."""
        small = [
            part
            for part in self.index.manifest.parts
            if part.folder == folder and part.n_images < PHOTOS_AT_ONCE // 16
        ]
        return small if len(small) > _SMALL_PARTS else []

    def drop(
        self,
        gone: set[int],
        *,
        moved: Mapping[int, str] | None = None,
        joined: Sequence[IndexPart] = (),
    ) -> None:
        """Rewrite the parts that hold these images, without them, and join some parts to one."""
        moved = moved or {}
        groups = [[part] for part in self.index.manifest.parts if part not in joined]
        for group in [*groups, list(joined)]:
            numbers = [image.number for part in group for image in self.index.images_of(part)]
            here = {number: moved[number] for number in numbers if number in moved}
            if len(group) > 1 or here or not gone.isdisjoint(numbers):
                kept = [number for number in numbers if number not in gone]
                self._writer.rewrite(self.index, group, KeptEntries(kept, here))

    def _add(
        self, photos: Path, names: Sequence[str], files: KnownFiles, captions: PhotoCaptions | None
    ) -> Synced:
        """Encode new photos, some thousand at a time."""
        added = unusable = 0
        for block in ranges(len(names), PHOTOS_AT_ONCE):
            some = [photos / name for name in names[block]]
            read, done = self._writer.write_photos(photos, some=some, captions=captions)
            added += done.added
            broken = [name for name in names[block] if photos / name not in read.hashes]
            files.refuse(broken)
            unusable += len(broken)
            if done.added and not self._anew:
                self.save()
        if added and self._anew:
            self.save()
        return Synced(added=added, unusable=unusable)

    def save(self, **changes: Any) -> None:
        """Save the index as it is."""
        self._refresh(**changes)
        manifest = self.index.manifest
        is_loaded = "_encoder" in vars(self)
        is_fast = compares_vectors(self._encoder.model) if is_loaded else bool(manifest.engines)
        self.index = save_index(
            self.folder, manifest, compares_vectors=is_fast, complete=_with_captions
        )
        self._make_writer()

    def _refresh(self, **changes: Any) -> None:
        """Make the index consist of the parts that are written."""
        parts = tuple(self._writer.parts)
        manifest = replace(_unmeasured(self.index.manifest), parts=parts, **changes)
        self.index = Index.of(self.folder, manifest)
        self._make_writer()


def _with_captions(index: Index) -> Index:
    """Make the search of captions anew, because they or the numbers of photos have changed."""
    return replace(index, manifest=replace(index.manifest, captions=write_captions(index)))


def _unmeasured(manifest: IndexManifest) -> IndexManifest:
    """Drop the recall of a teacher's proposals, which differs among other images."""
    if manifest.teacher is None:
        return manifest
    return replace(manifest, teacher=replace(manifest.teacher, recall={}, recall_split=None))


def _first_of_each(contents: Iterable[tuple[str, str]]) -> list[str]:
    """Return the first name of each content."""
    first: dict[str, str] = {}
    for name, content in contents:
        first.setdefault(content, name)
    return list(first.values())


class KnownFiles:
    """The hashes of the photos of a folder, by size and time of their files."""

    def __init__(self, path: Path, photos: Path, listed: dict[str, Any]) -> None:
        self._path = path
        self._photos = photos
        self._listed = listed
        own = listed.get(str(photos.absolute()), {})
        self.unusable: set[str] = set(own.get("unusable", ()))
        self._files: dict[str, tuple[int, int, str]] = {
            name: tuple(known) for name, known in own.get("files", {}).items()
        }

    @classmethod
    def open(cls, folder: Path, photos: Path) -> KnownFiles:
        """Read what is known of the photos of a folder by an index; nothing if that is damaged."""
        path = folder / FILES
        listed: Any = {}
        with suppress(OSError, ValueError):
            listed = json.loads(path.read_bytes())
        return cls(path, photos, listed if isinstance(listed, dict) else {})

    def knows(self, path: Path) -> bool:
        """Return whether a file has the size and time that it had."""
        before = self._files.get(path.relative_to(self._photos).as_posix())
        with suppress(OSError):
            state = path.stat()
            return before is not None and before[:2] == (state.st_size, state.st_mtime_ns)
        return False

    def contents_of(self, found: Sequence[Path]) -> dict[str, str]:
        """Return the hash of each file, by its name below the folder."""
        known: dict[str, tuple[int, int, str]] = {}
        unknown: list[tuple[str, Path, int, int]] = []
        for path in found:
            name = path.relative_to(self._photos).as_posix()
            with suppress(OSError):  # it has just gone
                state = path.stat()
                before = self._files.get(name)
                if before is not None and before[:2] == (state.st_size, state.st_mtime_ns):
                    known[name] = before
                else:
                    unknown.append((name, path, state.st_size, state.st_mtime_ns))
        with ThreadPoolExecutor() as pool:
            hashes = pool.map(lambda file: _hash(file[1]), unknown)
            tracked = track(hashes, "Reading photos", total=len(unknown), unit="photos")
            for (name, _, size, time), content in zip(unknown, tracked, strict=True):
                if content is not None:
                    known[name] = size, time, content
        self._files = known
        names = [path.relative_to(self._photos).as_posix() for path in found]
        return {name: known[name][2] for name in names if name in known}

    def refuse(self, names: Sequence[str]) -> None:
        """Remember files that hold no picture, so that they are not tried again."""
        self.unusable |= {self._files[name][2] for name in names if name in self._files}

    def save(self) -> None:
        own = {
            "unusable": sorted(self.unusable),
            "files": self._files,
        }
        listed = {**self._listed, str(self._photos.absolute()): own}
        write_text(self._path, json.dumps(listed, ensure_ascii=False))


def extract_new_photos(
    photos: Path, folder: Path, encoder: QueryEncoder, processes: Processes
) -> None:
    """Extract the photos of a folder that an index may not have, each process its share."""
    files = KnownFiles.open(folder, photos)
    new = [path for path in find_pictures(photos).pictures if not files.knows(path)]
    extract_in_shares(new, encoder, processes)


def _hash(path: Path) -> str | None:
    with suppress(OSError):
        return hash_file(path)
    return None
