"""Makes indexes, whole or not at all, and adds photos to them.

The splits of a data set and the photos of folders become parts of an index. Parts that are written
count when index.json names them, and those that it no longer names are removed after that: an
index is what it was until what replaces it is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from aoq.config import RoundName
from aoq.data.dataset import PairDataset
from aoq.data.opening import open_dataset, splits_of
from aoq.data.regions import RegionSource
from aoq.disk import require_writable
from aoq.errors import UserError
from aoq.folders import refuse_taken
from aoq.manifest import create_manifest
from aoq.processes import alone_in
from aoq.retrieval.encoder import QueryEncoder
from aoq.retrieval.index import ENTRIES, INDEX, Index, Manifest, TeacherRecord
from aoq.retrieval.matcher import Matcher, existing_index, index_folder, load_teacher
from aoq.retrieval.parts import AddedPhotos, PartWriter
from aoq.retrieval.recall import SAMPLE, with_recall
from aoq.scoring.cross_attention import CrossAttention
from aoq.storage import remove_folder
from aoq.training.trained import own_data, result_on

PROPOSALS = 200


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What is to be indexed."""

    data: Path | str | None = None
    "A data set; default: the one the model was trained on."
    splits: Sequence[str] = ()
    "Of the data set; default: all."
    with_data: bool = True
    "Whether a data set is indexed at all."
    pictures: Sequence[Path | str] = ()
    "Folders of photos without captions."


@dataclass(frozen=True, kw_only=True)
class Proposing:
    """Who helps a model that is slow to score, and how much."""

    teacher: Path | str
    "A run of an embedding model."
    proposals: int = PROPOSALS
    "Images or texts that it names for every query."
    sample: int = SAMPLE
    "Images, and texts, on which it is tried out what that misses."


def build_index(
    run: Path | str,
    contents: Contents | None = None,
    *,
    out: Path | str | None = None,
    proposing: Proposing | None = None,
    force: bool = False,
    round: RoundName | None = None,  # noqa: A002
) -> Index:
    """Encode everything with the model of a run, and its teacher's, and write the index."""
    contents = contents or Contents()
    folder = index_folder(run, out, round=round)
    _require_free(folder, force=force)
    encoder = QueryEncoder.load(run, round=round)
    teacher = None if proposing is None else _load_proposer(encoder, Path(proposing.teacher))
    own = contents.data or own_data(encoder.run) if contents.with_data else None
    data = None if own is None else Path(own)
    splits = [] if data is None else _open_splits(data, contents.splits, encoder)
    with _writing(folder):
        _require_free(folder, force=force)  # somebody else may have made it in the meantime
        writer = PartWriter(folder, encoder, teacher=teacher)
        for dataset in splits:
            assert data is not None
            writer.write_split(dataset, data=data)
        for pictures in contents.pictures:
            writer.write_photos(Path(pictures))
        manifest = Manifest(
            model_name=encoder.trained.recipe.model.name,
            model_hash=encoder.model_hash,
            data=None if data is None else str(data.absolute()),
            fingerprints={dataset.split: dataset.fingerprint for dataset in splits},
            results={
                dataset.split: result
                for dataset in splits
                if (result := result_on(encoder.run, dataset, model_hash=encoder.model_hash))
            },
            source=encoder.known_source,
            teacher=_record(proposing, teacher),
            parts=tuple(writer.parts),
        )
        index = Index.of(folder, manifest)
        if proposing is not None:
            index = _tried(Matcher(encoder, index, proposer=teacher), sample=proposing.sample)
        index.manifest.save(folder)
    return index


def add_photos(run: Path | str, pictures: Path, *, index: Path | str | None = None) -> AddedPhotos:
    """Put the photos of a folder into the index of a run, but for those that it has already.

    How much a teacher finds among more images is another figure: the one that was noted is dropped.
    """
    folder = existing_index(run, index)
    with _writing(folder):
        before = Index.open(folder)
        encoder = QueryEncoder.load(run, source=before.manifest.source)
        before.require_model(encoder.model_hash, run=encoder.run)
        writer = PartWriter(folder, encoder, teacher=load_teacher(before), index=before)
        added = writer.write_photos(pictures)
        if not added.added:
            return added
        manifest = replace(before.manifest, parts=tuple(writer.parts))
        teacher = manifest.teacher
        if teacher is not None:
            added = replace(added, unmeasured=teacher.proposals)
            manifest = replace(manifest, teacher=replace(teacher, recall={}, recall_split=None))
        manifest.save(folder)
    return added


def change_proposals(
    run: Path | str, proposals: int, *, index: Path | str | None = None, sample: int = SAMPLE
) -> Index:
    """Let the teacher of an index propose more or fewer, and try out what that misses."""
    folder = existing_index(run, index)
    with _writing(folder):
        matcher = Matcher.load(run, index=folder)
        manifest = matcher.index.manifest
        if manifest.teacher is None:
            raise UserError(
                f"{folder} has no teacher whose proposals could be changed; make it again with "
                "--teacher RUN --force."
            )
        changed = replace(manifest, teacher=replace(manifest.teacher, proposals=proposals))
        matcher.index = replace(matcher.index, manifest=changed)
        tried = _tried(matcher, sample=sample)
        tried.manifest.save(folder)
    return tried


def _tried(matcher: Matcher, *, sample: int) -> Index:
    """The index with what it was found to miss."""
    manifest = matcher.index.manifest
    assert manifest.teacher is not None
    record = with_recall(manifest.teacher, matcher, sample=sample)
    return replace(matcher.index, manifest=replace(manifest, teacher=record))


def _open_splits(data: Path, splits: Sequence[str], encoder: QueryEncoder) -> list[PairDataset]:
    """The splits to index, if their regions are what the model knows."""
    _require_alike(RegionSource.of_dataset(data), encoder, of=data)
    chosen = dict.fromkeys(splits or _distinct_splits(data))
    datasets = [open_dataset(data, split) for split in chosen]
    for dataset in datasets:
        encoder.trained.require_width(dataset.features.shape[2], source=dataset.name)
    return datasets


def _distinct_splits(data: Path) -> list[str]:
    """All splits, but none that another contains, as COCO's testall does test."""
    found = splits_of(data)
    return [split for split in found if split != "test" or "testall" not in found]


def _require_alike(source: RegionSource | None, encoder: QueryEncoder, *, of: Path) -> None:
    """Refuse regions that are known to be made in another way than those a model learned from."""
    known = encoder.known_source
    if source is not None and known is not None and source != known:
        raise UserError(
            f"{of} has regions of {source.id} on a grid of {source.grid}, and {encoder.run} was "
            f"trained on those of {known.id} on a grid of {known.grid}; name one that was built "
            "alike."
        )


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
    return TeacherRecord(
        run=str(teacher.run.absolute()),
        model_hash=teacher.model_hash,
        proposals=proposing.proposals,
        recall={},
        recall_split=None,
    )


# The folder


def _require_free(folder: Path, *, force: bool) -> None:
    """Refuse a place that is taken; an index that nobody finished is free."""
    require_writable(folder)
    if (folder / INDEX).is_file() and not force:
        raise UserError(
            f"{folder} exists already; add photos with --add, or make it again with --force."
        )
    refuse_taken(folder, what="index", force=True)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Nobody else writes to an index; parts that it does not name in the end are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    create_manifest(folder, "index")
    with alone_in(folder, doing="written"):
        try:
            yield
        finally:
            _remove_unnamed(folder)


def _remove_unnamed(folder: Path) -> None:
    """Parts that were replaced, or that nobody finished the index for."""
    named: set[str] = set()
    if (folder / INDEX).exists():
        try:
            named = {part.name for part in Manifest.load(folder).parts}
        except UserError:  # damaged: what it names is not known
            return
    for part in folder.iterdir():
        if (part / ENTRIES).is_file() and part.name not in named:
            remove_folder(part)
