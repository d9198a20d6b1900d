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
    from aoq.retrieval.index import Index
    from aoq.retrieval.part_writer import AddedPhotos

Several = Parameter(consume_multiple=True, negative=(), show_default=False)


@app.command
def index(
    run: Path,
    /,
    *,
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

    Parameters
    ----------
    run
        Folder of a trained model; if the run has two rounds, the better one on dev is used.
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
    from aoq.retrieval.build import (
        PROPOSALS,
        Contents,
        Proposing,
        add_photos,
        build_index,
        change_proposals,
    )
    from aoq.retrieval.recall import SAMPLE

    named, run = run, trained_round(run, round)
    make_model = own_model(model, [run])
    makes = bool(data or splits or pictures or without_data or teacher or force)
    sample_size = SAMPLE if sample is None else sample
    if add is not None:
        if makes or proposals is not None or sample is not None:
            raise UserError("--add can only be combined with --out.")
        added = add_photos(run, add, index=out, make_model=make_model)
        _report_added(named, add, added, index=out, model=model)
        return
    if proposals is not None and not makes:
        _report_made(
            change_proposals(run, proposals, index=out, sample=sample_size, make_model=make_model)
        )
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
    contents = Contents(data=data, splits=splits, with_data=not without_data, pictures=pictures)
    made = build_index(
        run, contents, out=out, proposing=proposing, force=force, make_model=make_model
    )
    _report_made(made)
    query = made.texts[-1].text if made.texts else "a dog in the snow"
    options = {"--index": out, "--round": round, "--model": model}
    given = [word for name, value in options.items() for word in _option(name, value)]
    next_steps(command("search", named, *given, query))


def _report_made(made: Index) -> None:
    from aoq.progress import count_of, say, warn

    record = made.manifest.teacher
    images, texts = count_of(len(made.images), "image"), count_of(len(made.texts), "text")
    say(f"indexed {images} and {texts}: {made.folder}")
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
