"""`aoq index`: encode images and texts for search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from aoq.cli.base import (
    Count,
    Flag,
    ModelFunction,
    Which,
    app,
    command,
    next_steps,
    own_model,
    trained_round,
)
from aoq.errors import UserError

if TYPE_CHECKING:
    from aoq.distributed import Processes
    from aoq.retrieval.index import Index
    from aoq.retrieval.part_writer import AddedPhotos
    from aoq.retrieval.sync import Synced
    from aoq.retrieval.tuning import Tuning
    from aoq.runs.checkpoint import MakeModel

Several = Parameter(consume_multiple=True, negative=(), show_default=False)


@app.command
def index(
    target: Path,
    /,
    *,
    run: Path | None = None,
    captions: Path | None = None,
    sync: Flag = False,
    remove: Annotated[tuple[str, ...], Several] = (),
    store: str | None = None,
    data: Path | None = None,
    splits: Annotated[tuple[str, ...], Several] = (),
    pictures: Annotated[tuple[Path, ...], Several] = (),
    without_data: Flag = False,
    add: Path | None = None,
    teacher: Path | None = None,
    proposals: Count | None = None,
    sample: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    out: Path | None = None,
    force: Flag = False,
    round: Which = None,  # noqa: A002
    model: ModelFunction = None,
) -> None:
    """Encode images and texts once, so that they can be searched.

    The index of a folder of photos is kept in the user's cache; the same command brings it up to
    date.

    Parameters
    ----------
    target
        A folder of photos, or of a trained model; if that run has two rounds, the better one on
        dev is used.
    run
        Trained model for a folder of photos; default: the one that `aoq import --default` sets.
    captions
        Captions file of the photos, whose further columns can be used in filters.
    sync
        Bring the photos of an index up to date: added, changed, moved and removed ones.
    remove
        Photos to remove from an index: paths, folders, or patterns such as 'drafts/*'.
    store
        Keep the vectors elsewhere: milvus://HOST:PORT/COLLECTION, or a file for Milvus Lite such
        as lists.db.
    data
        Data set to index; default: the one the model was trained on.
    splits
        Splits of the data set; default: all.
    pictures
        Folders of photos without captions, to index beside the data set.
    without_data
        Index only the photos of --pictures.
    add
        Folder of photos to add to an existing index; photos that it already holds are skipped.
    teacher
        Run of an embedding model (vsrn, vse) that proposes what scan and bfan then score.
    proposals
        Number of images or texts that the teacher proposes for a query; default: 200. Given
        alone, it changes an existing index.
    sample
        Number of images, and of texts, on which the teacher's recall is measured; default: 100.
    out
        Folder of the index; default: `index` beside the model.
    force
        Replace an existing index.
    round
        Round to use of a run with two: one or two; default: the better one on dev.
    """
    from aoq.distributed import join_processes
    from aoq.retrieval.build import (
        PROPOSALS,
        Contents,
        Proposing,
        add_photos,
        build_index,
        change_proposals,
    )
    from aoq.retrieval.recall import SAMPLE
    from aoq.retrieval.sync import remove_photos, sync_photos
    from aoq.retrieval.target import is_photo_folder

    with join_processes() as processes:
        if is_photo_folder(target):
            others = (data, splits, pictures, without_data, add, teacher, proposals, sample)
            if any(others):
                raise UserError(
                    f"{target} is a folder of photos, for which --run, --captions, --store, "
                    "--remove, --out and --force are meant; name a run for the other options."
                )
            _index_photos(
                target,
                run=run,
                captions=captions,
                store=store,
                remove=remove,
                out=out,
                force=force,
                round=round,
                make_model=None
                if model is None
                else own_model(model, [trained_round(run or target)]),
                processes=processes,
            )
            return
        if run is not None:
            raise UserError(f"--run is for a folder of photos, and {target} is none; leave it out.")
        named, run = target, trained_round(target, round)
        make_model = own_model(model, [run])
        makes = any((data, splits, pictures, without_data, teacher, force, store, captions))
        if sync or remove:
            if makes or add is not None or proposals is not None or (sync and remove):
                raise UserError("--sync and --remove can only be combined with --out.")
            if not remove:
                synced = sync_photos(run, index=out, make_model=make_model, processes=processes)
                _report_synced(synced)
            elif processes.is_first:
                _report_removed(remove_photos(run, remove, index=out))
            return
        sample_size = SAMPLE if sample is None else sample
        if add is not None:
            if makes or proposals is not None or sample is not None:
                raise UserError("--add can only be combined with --out.")
            added = add_photos(run, add, index=out, make_model=make_model, processes=processes)
            _report_added(named, add, added, index=out, model=model)
            return
        if proposals is not None and not makes:
            if processes.is_first:
                changed = change_proposals(
                    run, proposals, index=out, sample=sample_size, make_model=make_model
                )
                _report_made(changed)
            return
        if teacher is None and (proposals is not None or sample is not None):
            raise UserError("--proposals and --sample need a teacher; name one with --teacher.")
        if without_data and not pictures:
            raise UserError("--without-data needs photos; name folders with --pictures.")
        if without_data and (data or splits):
            raise UserError("--without-data cannot be combined with --data or --splits.")
        proposing = None
        if teacher is not None:
            proposing = Proposing(
                teacher=trained_round(teacher), proposals=proposals or PROPOSALS, sample=sample_size
            )
        contents = Contents(
            data=data,
            splits=splits,
            with_data=not without_data,
            pictures=pictures,
            captions=captions,
            store=store,
        )
        made = build_index(
            run,
            contents,
            out=out,
            proposing=proposing,
            force=force,
            make_model=make_model,
            processes=processes,
        )
        _report_made(made)
        query = made.texts[-1].text if made.texts else "a dog in the snow"
        options = {"--index": out, "--round": round, "--model": model}
        given = [word for name, value in options.items() for word in _option(name, value)]
        next_steps(command("search", named, *given, query))


def _index_photos(
    photos: Path,
    *,
    run: Path | None,
    captions: Path | None,
    store: str | None,
    remove: tuple[str, ...],
    out: Path | None,
    force: bool,
    round: Which,  # noqa: A002
    make_model: MakeModel | None,
    processes: Processes,
) -> None:
    """Make or update the index of a folder of photos, or remove some of it."""
    from aoq.retrieval.sync import remove_photos
    from aoq.retrieval.target import open_target

    if force and remove:
        raise UserError("--remove keeps the index, and --force makes it again; leave one out.")
    target = open_target(
        photos,
        run=run,
        index=out,
        round=round,
        make_model=make_model,
        captions=captions,
        store=store,
        sync=not remove,
        force=force,
        processes=processes,
    )
    if remove:
        if processes.is_first:
            _report_removed(remove_photos(target.run, remove, index=target.index))
        return
    if not target.synced:
        _report_synced(target.synced)
    next_steps(command("search", photos, *_option("--run", run), "a dog in the snow"))


def _report_synced(synced: Synced) -> None:
    from aoq.progress import say
    from aoq.retrieval.target import described

    say(f"the index is up to date: {described(synced)}")


def _report_removed(count: int) -> None:
    from aoq.progress import count_of, say

    say(f"removed {count_of(count, 'photo')} from the index; the files are untouched")


def _report_made(made: Index) -> None:
    from aoq.progress import count_of, say, warn

    record = made.manifest.teacher
    for kind, engine in made.manifest.engines.items():
        say(
            f"{kind} are in {engine.groups:,} groups; a query visits {engine.probes:,} of them and "
            f"finds {engine.recall:.1%} of the nearest 10 ({engine.queries:,} {engine.asked_with} "
            "asked)"
        )
    images, texts = count_of(len(made.images), "image"), count_of(len(made.texts), "text")
    say(f"indexed {images} and {texts}: {made.folder}")
    _report_tuning(made.manifest.tuning)
    if record is not None:
        for direction, found in record.recall.items():
            what = "images of a text" if direction == "t2i" else "texts of an image"
            queries = count_of(int(found["queries"]), "query", "queries")
            tried = f"{queries} of {record.recall_split or 'all splits'}"
            say(
                f"{what}: {count_of(record.proposals, 'proposal')} "
                f"{'gives' if record.proposals == 1 else 'give'} {found['r1']:.1%} of the first, "
                f"{found['r5']:.1%} of the first 5 and {found['r10']:.1%} of the first 10 that "
                f"scoring everything gives ({tried})"
            )
    elif made.manifest.model_name in ("scan", "bfan"):
        warn(
            "every search scores all images or texts, which is exact but slow; with --teacher, a "
            "run of vsrn or vse proposes some, and only those are scored."
        )


def _report_tuning(tuning: Tuning | None) -> None:
    """Say how well photos are found on dev, and how much captions help."""
    from aoq.progress import count_of, say

    if tuning is None:
        return
    names = {"model": "by the model", "words": "by words of captions", "merged": "by both"}
    shares = [
        f"{tuning.recall[key]['r1']:.1%} {names[key]}" for key in names if key in tuning.recall
    ]
    asked = f"{count_of(tuning.queries, 'caption')} of {tuning.split}"
    say(f"first photo right, for {asked}: {', '.join(shares)}")


def _report_added(
    run: Path, folder: Path, added: AddedPhotos, *, index: Path | None, model: str | None
) -> None:
    from aoq.progress import count_of, say

    was = "was" if added.present == 1 else "were"
    present = f", {added.present:,} {was} there already" if added.present else ""
    say(f"added {count_of(added.added, 'photo')} of {folder}{present}")
    if added.unmeasured is not None:
        options = (*_option("--out", index), *_option("--model", model))
        measure = command("index", run, "--proposals", added.unmeasured, *options)
        say(f"the recall of the teacher's proposals must be measured again: {measure}")


def _option(name: str, value: Path | str | None) -> tuple[str, ...]:
    return () if value is None else (name, str(value))
