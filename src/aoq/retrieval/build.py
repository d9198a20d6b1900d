"""Makes indexes, whole or not at all, and adds photos to them.

The splits of a data set and the photos of folders become parts of an index. A part counts when
index.json names it, and is removed when index.json no longer does: an index stays as it is until
its replacement is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gethostname

from aoq.config import RoundName
from aoq.data.dataset import PairDataset
from aoq.data.splits import dataset_boxes, open_dataset, region_source, splits_of
from aoq.disk import require_writable
from aoq.distributed import ALONE, Processes
from aoq.errors import UserError
from aoq.features.pictures import find_pictures
from aoq.features.regions import Boxes, RegionSource
from aoq.folders import check_output_folder
from aoq.progress import warn
from aoq.retrieval.dev_queries import completed
from aoq.retrieval.encoder import QueryEncoder
from aoq.retrieval.finish import save_index, writing
from aoq.retrieval.index import INDEX, Index, IndexManifest, StoreRecord, TeacherRecord
from aoq.retrieval.location import existing_index, index_folder
from aoq.retrieval.matcher import Matcher, load_teacher, require_function
from aoq.retrieval.part_writer import AddedPhotos, PartWriter
from aoq.retrieval.photo_captions import PhotoCaptions, captions_record
from aoq.retrieval.ranking import compares_vectors
from aoq.retrieval.recall import SAMPLE, with_recall
from aoq.retrieval.shares import encode_in_shares, extract_in_shares
from aoq.runs.checkpoint import MakeModel
from aoq.runs.encodings import own_data
from aoq.runs.judge import result_on
from aoq.runs.named_model import NamedModel
from aoq.runs.query_reader import OwnPictures

PROPOSALS = 200


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What to index."""

    data: Path | str | None = None
    "A data set; default: the one the model was trained on."
    splits: Sequence[str] = ()
    "Splits of the data set; default: all."
    with_data: bool = True
    "Whether a data set is indexed at all."
    pictures: Sequence[Path | str] = ()
    "Folders of photos."
    captions: Path | str | None = None
    "A captions file of the photos of the first of these folders."
    store: str | None = None
    "Address of a store that holds the vectors; default: the index itself."


@dataclass(frozen=True, kw_only=True)
class Proposing:
    """A teacher that proposes candidates to a model that is slow to score."""

    teacher: Path | str
    "A run of an embedding model."
    proposals: int = PROPOSALS
    "Images or texts that it proposes for every query."
    sample: int = SAMPLE
    "Number of images, and of texts, on which the recall of proposals is measured."


def build_index(
    run: Path | str,
    contents: Contents | None = None,
    *,
    out: Path | str | None = None,
    proposing: Proposing | None = None,
    force: bool = False,
    round: RoundName | None = None,  # noqa: A002
    make_model: MakeModel | None = None,
    processes: Processes = ALONE,
) -> Index:
    """Encode everything with the model of a run and with its teacher, and write the index.

    `make_model` builds a model of your own, as in training. Several processes share the work, if
    all of them call this.
    """
    contents = contents or Contents()
    folder = index_folder(run, out, round=round)
    _require_free(folder, force=force)
    encoder = QueryEncoder.load(run, round=round, make_model=make_model)
    teacher = None
    if proposing is not None:
        teacher = _load_proposer(encoder, Path(proposing.teacher), make_model)
    data = _data_to_index(contents, encoder)
    splits = [] if data is None else _open_splits(data, contents.splits, encoder, processes)
    store = open_store(contents.store, encoder, folder) if processes.is_first else None
    for dataset, _ in splits:
        for each in (encoder, teacher) if teacher is not None else (encoder,):
            encode_in_shares(dataset, each, processes)
    for pictures in contents.pictures:
        extract_in_shares(find_pictures(Path(pictures)).pictures, encoder, processes)
    processes.barrier()
    if not processes.is_first:
        processes.barrier()
        return Index.open(folder)
    captions = _captions_of(contents)
    with writing(folder):
        _require_free(folder, force=force)  # another process may have made it in the meantime
        writer = PartWriter(folder, lambda: encoder, load_teacher=lambda: teacher)
        for dataset, boxes in splits:
            writer.write_split(dataset, boxes=boxes)
        for pictures in map(Path, contents.pictures):
            writer.write_photos(pictures, captions=captions.get(pictures))
        manifest = replace(
            empty_manifest(encoder, store=store, make_model=make_model),
            data=None if data is None else str(data.absolute()),
            fingerprints={dataset.split: dataset.fingerprint for dataset, _ in splits},
            results={
                dataset.split: result
                for dataset, _ in splits
                if (result := result_on(encoder.run, dataset, model_hash=encoder.model_hash))
            },
            teacher=_record(teacher, proposing),
            parts=tuple(writer.parts),
            captions_files={
                str(folder.absolute()): captions_record(Path(str(contents.captions)))
                for folder in captions
            },
        )
        matcher = Matcher(
            encoder, Index.of(folder, manifest), proposer=teacher, make_model=make_model
        )
        if proposing is not None:
            manifest = _measured(matcher, sample=proposing.sample).manifest
        made = save_index(
            folder,
            manifest,
            compares_vectors=compares_vectors(encoder.model),
            complete=lambda index: completed(matcher.with_index(index)),
        )
    processes.barrier()
    return made


def empty_manifest(
    encoder: QueryEncoder,
    *,
    store: StoreRecord | None = None,
    make_model: MakeModel | None = None,
) -> IndexManifest:
    """Describe an index of a model that holds nothing yet."""
    return IndexManifest(
        model_name=encoder.trained.recipe.model.name,
        model_hash=encoder.model_hash,
        data=None,
        fingerprints={},
        results={},
        source=encoder.region_source,
        teacher=None,
        parts=(),
        store=store,
        model_function=_name_of(make_model, encoder),
    )


def open_store(text: str | None, encoder: QueryEncoder, folder: Path) -> StoreRecord | None:
    """Read the address of a store for an index, if the model makes vectors that it can compare."""
    if text is None:
        return None
    from aoq.retrieval.stores.milvus import MilvusAddress, require_own

    if not compares_vectors(encoder.model):
        raise UserError(
            f"{encoder.run} scores pairs, and a store finds the nearest of single vectors; leave "
            "--store out, or name a run of vsrn, vse or pretrained towers."
        )
    address = MilvusAddress.parse(text)
    owner = f"{gethostname()}:{folder.absolute()}"
    require_own(address, owner)  # before anything is encoded
    return StoreRecord(address.text, width=0, longest={}, owner=owner)


def _captions_of(contents: Contents) -> dict[Path, PhotoCaptions]:
    """Read the captions file of the photos, by their folder."""
    if contents.captions is None:
        return {}
    if not contents.pictures:
        raise UserError("--captions is about photos; name their folder with --pictures.")
    folder = Path(contents.pictures[0])
    photos = find_pictures(folder).pictures
    return {folder: PhotoCaptions.read(Path(contents.captions), folder=folder, photos=photos)}


def _data_to_index(contents: Contents, encoder: QueryEncoder) -> Path | None:
    """Choose the data set to index: none if only photos are wanted, or nothing else is there."""
    if not contents.with_data:
        return None
    if contents.data is not None:
        return Path(contents.data)
    only_photos = bool(contents.pictures and not contents.splits)
    if encoder.trained.recipe.data:
        own = own_data(encoder.run)
        if own.exists() or not only_photos:
            return own
        warn(f"{own}, which {encoder.run} was trained on, is not there; only photos are indexed.")
        return None
    if only_photos:
        return None
    raise UserError(
        f"{encoder.run} names no data set; name what to index with --data FOLDER, --pictures "
        "FOLDER, or both."
    )


def _name_of(make_model: MakeModel | None, encoder: QueryEncoder) -> str | None:
    is_own = encoder.trained.recipe.model.name == "own"
    return make_model.name if is_own and isinstance(make_model, NamedModel) else None


def add_photos(
    run: Path | str,
    pictures: Path,
    *,
    index: Path | str | None = None,
    make_model: MakeModel | None = None,
    processes: Processes = ALONE,
) -> AddedPhotos:
    """Add the photos of a folder to the index of a run, except those it has already.

    The recall of a teacher's proposals is dropped, because it differs among more images. Several
    processes share the work, if all of them call this; the first one knows what was added.
    """
    folder = existing_index(run, index)
    if processes.size > 1:
        source = Index.open(folder).manifest.source
        reader = QueryEncoder.load(run, source=source, make_model=make_model)
        extract_in_shares(find_pictures(pictures).pictures, reader, processes)
    if not processes.is_first:
        return AddedPhotos(0, 0)
    with writing(folder):
        before = Index.open(folder)
        require_function(before, run, make_model)
        encoder = QueryEncoder.load(run, source=before.manifest.source, make_model=make_model)
        before.require_model(encoder.model_hash, run=encoder.run)
        teacher = load_teacher(before, make_model)
        writer = PartWriter(folder, lambda: encoder, load_teacher=lambda: teacher, index=before)
        photos, added = writer.write_photos(pictures)
        if not added.added:
            return added
        manifest = replace(
            before.manifest,
            parts=tuple(writer.parts),
            left_out=tuple(
                each for each in before.manifest.left_out if each not in photos.contents
            ),
        )
        record = manifest.teacher
        if record is not None:
            added = replace(added, unmeasured=record.proposals)
            manifest = replace(manifest, teacher=replace(record, recall={}, recall_split=None))
        save_index(folder, manifest, compares_vectors=compares_vectors(encoder.model))
    return added


def change_proposals(
    run: Path | str,
    proposals: int,
    *,
    index: Path | str | None = None,
    sample: int = SAMPLE,
    make_model: MakeModel | None = None,
) -> Index:
    """Let the teacher of an index propose more or fewer, and measure the recall."""
    folder = existing_index(run, index)
    with writing(folder):
        matcher = Matcher.load(run, index=folder, make_model=make_model)
        manifest = matcher.index.manifest
        if manifest.teacher is None:
            raise UserError(
                f"{folder} has no teacher whose proposals could be changed; make it again with "
                "--teacher RUN --force."
            )
        changed = replace(manifest, teacher=replace(manifest.teacher, proposals=proposals))
        matcher.index = replace(matcher.index, manifest=changed)
        measured = _measured(matcher, sample=sample)
        measured.manifest.save(folder)
    return measured


def _measured(matcher: Matcher, *, sample: int) -> Index:
    """Measure the recall of proposals, and return the index that records it."""
    manifest = matcher.index.manifest
    assert manifest.teacher is not None
    record = with_recall(manifest.teacher, matcher, sample=sample)
    return replace(matcher.index, manifest=replace(manifest, teacher=record))


def _open_splits(
    data: Path, splits: Sequence[str], encoder: QueryEncoder, processes: Processes
) -> list[tuple[PairDataset, Boxes | None]]:
    """Open the splits to index, if the model fits their regions, and boxes that form no grid."""
    source, trained = region_source(data), encoder.trained
    reads_regions = trained.feature_width is not None  # those of the data set, not its photos
    if trained.inputs.images is None and reads_regions:
        _require_same_source(source, encoder, of=data)
    chosen = dict.fromkeys(splits or _distinct_splits(data))
    datasets = [trained.view(open_dataset(data, split), processes=processes) for split in chosen]
    has_boxes = source is None and reads_regions
    return [
        (dataset, dataset_boxes(data, dataset.split) if has_boxes else None) for dataset in datasets
    ]


def _distinct_splits(data: Path) -> list[str]:
    """List all splits except those that another contains, as COCO's testall does test."""
    found = splits_of(data)
    return [split for split in found if split != "test" or "testall" not in found]


def _require_same_source(source: RegionSource | None, encoder: QueryEncoder, *, of: Path) -> None:
    """Reject regions of another source than those a model was trained on, if both are known."""
    known = encoder.region_source
    if source is not None and known is not None and source != known:
        raise UserError(
            f"{of} has regions of {source.id} on a grid of {source.grid}, and {encoder.run} was "
            f"trained on those of {known.id} on a grid of {known.grid}; name one that was built "
            "alike."
        )


def _load_proposer(encoder: QueryEncoder, run: Path, make_model: MakeModel | None) -> QueryEncoder:
    """Load a teacher that can propose to this model."""
    if compares_vectors(encoder.model):
        raise UserError(
            f"{encoder.run} is searched exactly and fast without a teacher; leave --teacher out."
        )
    teacher = QueryEncoder.load(run, make_model=make_model)
    if not compares_vectors(teacher.model):
        raise UserError(
            f"{teacher.run} is as slow to score as the model it is to help; name a run of vsrn or "
            "vse as the teacher."
        )
    if teacher.known_source == encoder.known_source:
        return teacher
    if OwnPictures in {type(teacher.known_source), type(encoder.known_source)}:
        raise UserError(
            f"{teacher.run} and {encoder.run} read pictures differently, so one cannot propose to "
            "the other; name a teacher that reads the same regions."
        )
    _require_same_source(teacher.region_source, encoder, of=teacher.run)
    return teacher


def _record(teacher: QueryEncoder | None, proposing: Proposing | None) -> TeacherRecord | None:
    """Describe a teacher for index.json, before its recall is measured."""
    if teacher is None or proposing is None:
        return None
    run = str(teacher.run.absolute())
    return TeacherRecord(run, teacher.model_hash, proposing.proposals, recall={}, recall_split=None)


def _require_free(folder: Path, *, force: bool) -> None:
    """Reject a folder that is taken; one with an unfinished index is free."""
    require_writable(folder)
    if (folder / INDEX).is_file() and not force:
        raise UserError(
            f"{folder} exists already; add photos with --add, or make it again with --force."
        )
    check_output_folder(folder, what="index", force=True)
