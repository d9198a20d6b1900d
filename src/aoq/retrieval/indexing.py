"""Makes indexes, whole or not at all, and adds photos to them.

The splits of a data set and the photos of folders become parts of an index. What mining encoded
before is taken over. Photos that are added make a part of their own: nothing else is encoded
again, and the index is what it was until the part is complete.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aoq.data.dataset import PairDataset, open_dataset, splits_of
from aoq.data.regions import RegionSource, dataset_boxes
from aoq.errors import UserError
from aoq.mining.sweep import evenly_spread
from aoq.progress import progress_bar
from aoq.retrieval.encoder import QueryEncoder
from aoq.retrieval.index import (
    BOXES,
    ENTRIES,
    INDEX,
    TEACHER,
    Index,
    Manifest,
    Part,
    TeacherRecord,
)
from aoq.retrieval.matcher import Matcher, index_folder, load_teacher
from aoq.retrieval.photos import read_photos
from aoq.retrieval.ranking import FullRanker, ProposedRanker
from aoq.scoring.blocks import ranges
from aoq.scoring.cross_attention import CrossAttention
from aoq.scoring.encoded import Kind
from aoq.scoring.stored import encode_to_disk, open_stored
from aoq.storage import (
    atomic_folder,
    hash_file,
    is_vacant,
    locked,
    remove_leftovers,
    write_text,
)
from aoq.training.trained import kept_encodings, own_data, result_on
from aoq.types import Ids

PROPOSALS = 200
RECALL_DEPTHS = (1, 5, 10)
_QUERIES_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What is to be indexed."""

    data: Path | None = None
    "A data set; default: the one the model was trained on."
    splits: Sequence[str] = ()
    "Of the data set; default: all."
    with_data: bool = True
    "Whether a data set is indexed at all."
    pictures: Sequence[Path] = ()
    "Folders of photos without captions."


@dataclass(frozen=True, kw_only=True)
class Proposing:
    """Who helps a model that is slow to score, and how much."""

    teacher: Path
    "A run of an embedding model."
    proposals: int = PROPOSALS
    "Images or texts that it names for every query."
    sample: int = 100
    "Images, and texts, on which it is tried out what that misses."


@dataclass(frozen=True)
class AddedPhotos:
    """What became of the photos of a folder."""

    added: int
    present: int
    "In the index already, or twice in the folder."


def build_index(
    run: Path,
    contents: Contents | None = None,
    *,
    out: Path | None = None,
    proposing: Proposing | None = None,
    force: bool = False,
) -> Index:
    """Encode everything with the model of a run, and its teacher's, and write the index."""
    contents = contents or Contents()
    folder = index_folder(run, out)
    _refuse_taken(folder, force=force)
    encoder = QueryEncoder.load(run)
    teacher = None if proposing is None else _load_proposer(encoder, proposing.teacher)
    data = (contents.data or own_data(encoder.run)) if contents.with_data else None
    splits = [] if data is None else _open_splits(data, contents.splits, encoder)
    with _new_folder(folder, force=force) as temporary:
        writer = _PartWriter(temporary, encoder, teacher=teacher)
        for dataset in splits:
            writer.write(dataset, data=data)
        for pictures in contents.pictures:
            writer.write_photos(pictures)
        manifest = Manifest(
            model_name=encoder.trained.recipe.model.name,
            model_hash=encoder.model_hash,
            data=None if data is None else str(data.absolute()),
            fingerprints={dataset.split: dataset.fingerprint for dataset in splits},
            results={
                dataset.split: result
                for dataset in splits
                if (result := result_on(encoder.run, dataset))
            },
            source=encoder.known_source,
            teacher=_record(proposing, teacher),
            parts=tuple(writer.parts),
        )
        manifest.save(temporary)
        if proposing is not None:
            matcher = Matcher(encoder, Index.open(temporary), proposer=teacher)
            _note_recall(matcher, sample=proposing.sample)
    return Index.open(folder)


def add_photos(run: Path, pictures: Path, *, index: Path | None = None) -> AddedPhotos:
    """Put the photos of a folder into the index of a run, but for those that it has already."""
    folder = index_folder(run, index)
    before = Index.open(folder)
    encoder = QueryEncoder.load(run, source=before.manifest.source)
    before.require_model(encoder.model_hash, run=run)
    with locked(folder, doing="written"):
        before = Index.open(folder)  # as it is now that nobody else writes to it
        writer = _PartWriter(folder, encoder, teacher=load_teacher(before), index=before)
        added = writer.write_photos(pictures)
        replace(before.manifest, parts=tuple(writer.parts)).save(folder)
    return added


def change_proposals(
    run: Path, proposals: int, *, index: Path | None = None, sample: int = 100
) -> Index:
    """Let the teacher of an index propose more or fewer, and try out what that misses."""
    folder = index_folder(run, index)
    before = Matcher.load(run, index=folder)
    record = before.index.manifest.teacher
    if record is None:
        raise UserError(
            f"{folder} has no teacher whose proposals could be changed; make it again with "
            "--teacher RUN --force."
        )
    with locked(folder, doing="written"):
        opened = Index.open(folder)
        manifest = replace(opened.manifest, teacher=replace(record, proposals=proposals))
        matcher = Matcher(
            before.encoder, replace(opened, manifest=manifest), proposer=before.proposer
        )
        _note_recall(matcher, sample=sample)
    return Index.open(folder)


class _PartWriter:
    """Encodes data sets into parts of an index folder, one after the other."""

    def __init__(
        self,
        folder: Path,
        encoder: QueryEncoder,
        *,
        teacher: QueryEncoder | None,
        index: Index | None = None,
    ) -> None:
        self.folder = folder
        self.encoder = encoder
        self.teacher = teacher
        self.parts = [] if index is None else list(index.manifest.parts)
        self._pictures = [] if index is None else [image.picture for image in index.images]

    def write_photos(self, folder: Path) -> AddedPhotos:
        """A part of the photos of a folder, if any of them is not in the index."""
        photos = read_photos(folder, self.encoder.source)
        fresh = photos.without(self._pictures)
        if len(fresh):
            self.write(fresh.dataset())
        return AddedPhotos(len(fresh), present=len(photos) - len(fresh))

    def write(self, dataset: PairDataset, *, data: Path | None = None) -> None:
        """A part of a split of `data`, or of photos."""
        split = None if data is None else dataset.split
        name = split or f"photos-{len(self.parts)}"
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)  # of a process that was killed before it counted
        with atomic_folder(place) as part:
            _encode(dataset, part, self.encoder)
            if self.teacher is not None:
                _encode(dataset, part / TEACHER, self.teacher)
            boxes = None if data is None else dataset_boxes(data, dataset.split)
            if boxes is not None and boxes.strides[0]:  # else all images share a grid
                np.save(part / BOXES, boxes)
            entries = part / ENTRIES
            write_text(entries, json.dumps(_entries(dataset), ensure_ascii=False))
            self.parts.append(Part(name, split, len(dataset), dataset.n_texts, hash_file(entries)))
        self._pictures += dataset.pictures


def _encode(dataset: PairDataset, folder: Path, encoder: QueryEncoder) -> None:
    """Encodings by one model; what it made of the same data for mining is taken over."""
    folder.mkdir(exist_ok=True)
    if dataset.n_texts:
        kept = kept_encodings(encoder.run, dataset)
        with suppress(UserError):  # incomplete or damaged
            open_stored(kept, len(dataset), dataset.n_texts)
            for piece in kept.glob("*.safetensors"):
                shutil.copyfile(piece, folder / piece.name)
    encode_to_disk(
        encoder.model,
        encoder.collator(dataset),
        folder,
        description=f"encode {dataset.split} with {encoder.run.name}",
    )


def _entries(dataset: PairDataset) -> dict[str, Any]:
    pictures = [None if path is None else str(path.absolute()) for path in dataset.pictures]
    return {
        "images": list(zip(dataset.image_ids, pictures, strict=True)),
        "texts": list(zip(dataset.caption_ids, dataset.captions, strict=True)),
        "pairs": dataset.positives.pairs.tolist(),
    }


def _open_splits(data: Path, splits: Sequence[str], encoder: QueryEncoder) -> list[PairDataset]:
    """The splits to index, if their regions are what the model knows."""
    _require_alike(RegionSource.of_dataset(data), encoder, of=data)
    return [open_dataset(data, split) for split in splits or splits_of(data)]


def _require_alike(source: RegionSource | None, encoder: QueryEncoder, *, of: Path) -> None:
    """Refuse regions that are known to be made in another way than those a model learned from."""
    known = encoder.known_source
    if source is not None and known is not None and source != known:
        raise UserError(
            f"{of} has regions of {source.id} on a grid of {source.grid}, and {encoder.run} was "
            f"trained on those of {known.id} on a grid of {known.grid}; name one that was built "
            "alike."
        )


# Teachers


def _load_proposer(encoder: QueryEncoder, run: Path) -> QueryEncoder:
    """A teacher that can help this model."""
    if not isinstance(encoder.model, CrossAttention):
        raise UserError(
            f"{encoder.run} is searched exactly and at once without a teacher; leave --teacher out."
        )
    teacher = QueryEncoder.load(run)
    if isinstance(teacher.model, CrossAttention):
        raise UserError(
            f"{teacher.run} is as slow to score as the model it is to help; name a run of vsrn or "
            "vse as the teacher."
        )
    _require_alike(teacher.known_source, encoder, of=teacher.run)
    return teacher


def _record(proposing: Proposing | None, teacher: QueryEncoder | None) -> TeacherRecord | None:
    if proposing is None or teacher is None:
        return None
    run = str(teacher.run.absolute())
    return TeacherRecord(run, teacher.model_hash, proposing.proposals, recall={})


def _note_recall(matcher: Matcher, *, sample: int) -> None:
    """Answer some entries by proposals and by scoring everything, and keep the share found."""
    index = matcher.index
    sides: dict[str, tuple[Kind, Kind, int]] = {
        "t2i": ("texts", "images", len(index.texts)),
        "i2t": ("images", "texts", len(index.images)),
    }
    recall = {
        direction: _recall_of(matcher, queries, candidates, evenly_spread(count, sample))
        for direction, (queries, candidates, count) in sides.items()
        if sample and index.texts
    }
    teacher = index.manifest.teacher
    assert teacher is not None
    replace(index.manifest, teacher=replace(teacher, recall=recall)).save(index.folder)


def _recall_of(matcher: Matcher, queries: Kind, candidates: Kind, numbers: Ids) -> dict[str, float]:
    ranker = matcher.ranker(candidates)
    assert isinstance(ranker, ProposedRanker)
    full, top = FullRanker(ranker.candidates), max(RECALL_DEPTHS)
    found = np.zeros(len(RECALL_DEPTHS))
    with progress_bar(f"try {queries}", total=len(numbers), unit="queries") as update:
        for some in ranges(len(numbers), _QUERIES_AT_ONCE):
            query = matcher.entry_query(queries, numbers[some].tolist())
            exact, proposed = (way.rank(query, top=top).ids for way in (full, ranker))
            for one, other in zip(exact, proposed, strict=True):
                found += [np.isin(one[:depth], other[:depth]).mean() for depth in RECALL_DEPTHS]
            update(advance=some.stop - some.start)
    shares = (found / len(numbers)).round(4).tolist()
    return {"queries": len(numbers)} | {
        f"r{depth}": share for depth, share in zip(RECALL_DEPTHS, shares, strict=True)
    }


# The folder


def _refuse_taken(folder: Path, *, force: bool) -> None:
    """Only an index is ever replaced, and it only if asked for."""
    if is_vacant(folder):
        return
    if not (folder / INDEX).is_file():
        raise UserError(f"{folder} exists and is no index; choose another place with --out.")
    if not force:
        raise UserError(
            f"{folder} exists already; add photos with --add, or make it again with --force."
        )


@contextmanager
def _new_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """A folder that takes its place when it is complete; what it replaces stays until then."""
    with atomic_folder(folder) as temporary:
        yield temporary
        _refuse_taken(folder, force=force)
        if folder.exists():
            aside = tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part")
            folder.replace(Path(aside) / folder.name)
    remove_leftovers(folder.parent, of=folder.name)
