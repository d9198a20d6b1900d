"""`aoq index`, `aoq search`, `aoq score` and `aoq encode`: a trained model at work."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from aoq.cli.base import Count, Flag, Json, app, next_steps, vacant
from aoq.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aoq.retrieval.index import Index
    from aoq.retrieval.indexing import AddedPhotos
    from aoq.retrieval.matcher import Answer

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
    sample: Annotated[int, Parameter(validator=Number(gte=0))] = 100,
    out: Path | None = None,
    force: Flag = False,
) -> None:
    """Encode images and texts once, so that they can be searched.

    Parameters
    ----------
    run
        Folder of a trained model; of a run with two rounds, the last is taken.
    data
        Data set to index; default: the one the model was trained on.
    splits
        Splits of the data set; default: all.
    pictures
        Folders of photos without captions, to index beside the data set.
    without_data
        Index the photos of --pictures alone.
    add
        Folder of photos to add to an index that exists; those it has already are left out.
    teacher
        Run of an embedding model (vsrn, vse) that proposes what scan and bfan then score.
    proposals
        How many images or texts the teacher proposes for a query, 200 unless told; alone, it
        changes an index that exists.
    sample
        Images, and texts, on which it is tried out what the teacher misses.
    out
        Folder of the index; default: `index` beside the model.
    force
        Make the index again where there is one.
    """
    from aoq.retrieval.indexing import (
        PROPOSALS,
        Contents,
        Proposing,
        add_photos,
        build_index,
        change_proposals,
    )

    makes = bool(data or splits or pictures or without_data or teacher or force)
    if add is not None:
        if makes or proposals:
            raise UserError("--add puts photos into an index that exists; leave all but --out out.")
        _tell_added(add, add_photos(run, add, index=out))
        return
    if proposals is not None and teacher is None:
        if makes:
            raise UserError("--proposals is for a teacher; name one with --teacher.")
        _tell_made(change_proposals(run, proposals, index=out, sample=sample))
        return
    if without_data and (data or splits or not pictures):
        raise UserError("--without-data indexes the photos of --pictures alone; name some.")
    proposing = None
    if teacher is not None:
        proposing = Proposing(teacher=teacher, proposals=proposals or PROPOSALS, sample=sample)
    contents = Contents(data=data, splits=splits, with_data=not without_data, pictures=pictures)
    _tell_made(build_index(run, contents, out=out, proposing=proposing, force=force))
    place = "" if out is None else f" --index {out}"
    next_steps(f'aoq search {run}{place} "a dog in the snow"')


@app.command
def search(
    run: Path,
    text: str | None = None,
    /,
    *,
    image: Path | None = None,
    top: Count = 10,
    index: Path | None = None,
    as_json: Json = False,
) -> None:
    """Find images for a sentence, or texts for a picture.

    Parameters
    ----------
    run
        Folder of a trained model that was indexed with `aoq index`.
    text
        A sentence: images are found.
    image
        A picture file: texts are found.
    top
        How many.
    index
        Folder of the index; default: `index` beside the model.
    as_json
        Print JSON for programs.
    """
    if (text is None) == (image is None):
        raise UserError('give one of the two, a sentence or a picture: "a dog" or --image dog.jpg.')
    from aoq.retrieval.matcher import Matcher

    matcher = Matcher.load(run, index=index)
    query = image if text is None else text
    assert query is not None
    answer = matcher.search(query, top=top)
    _warn_unknown(answer.unknown_words)
    if as_json:
        _print_json(
            {
                "query": {"text": text, "image": None if image is None else str(image)},
                "exact": answer.exact,
                "unknown_words": answer.unknown_words,
                "hits": [
                    {"rank": rank, **vars(hit), "picture": hit.picture and str(hit.picture)}
                    for rank, hit in enumerate(answer.hits, start=1)
                ],
            }
        )
    else:
        _print_answer(answer, of_images=image is None)


@app.command
def score(run: Path, picture: Path, /, *texts: str, as_json: Json = False) -> None:
    """Say how well a picture fits some sentences; higher is closer.

    Parameters
    ----------
    run
        Folder of a trained model.
    picture
        A picture file.
    texts
        Sentences.
    as_json
        Print JSON for programs.
    """
    if not texts:
        raise UserError("no text is given; add one or more sentences.")
    from aoq.retrieval.encoder import QueryEncoder

    encoder = QueryEncoder.load(run)
    read = [encoder.read(text).require_known() for text in texts]
    scores = encoder.score(encoder.encode_pictures([picture]), texts)
    _warn_unknown([word for one in read for word in one.unknown_words])
    if as_json:
        rows = [
            {"text": text, "score": value, "unknown_words": one.unknown_words}
            for text, value, one in zip(texts, scores, read, strict=True)
        ]
        _print_json({"picture": str(picture), "scores": rows})
    else:
        best_first = sorted(zip(scores, texts, strict=True), key=lambda row: -row[0])
        _print_rows([{"score": f"{value:.4f}", "text": text} for value, text in best_first])


@app.command
def encode(
    run: Path,
    /,
    *,
    texts: Path | None = None,
    pictures: Path | None = None,
    out: Path,
    force: Flag = False,
) -> None:
    """Write the vectors that a model makes of texts or pictures to a file.

    Parameters
    ----------
    run
        Folder of a trained model.
    texts
        File of texts, one a line.
    pictures
        Folder of pictures.
    out
        File to write: .safetensors, or .npy with the ids in a .json file beside it.
    force
        Replace `out` if it exists.
    """
    if (texts is None) == (pictures is None):
        raise UserError("give one of the two: --texts FILE or --pictures FOLDER.")
    vacant(out, force=force)
    from aoq.progress import say
    from aoq.retrieval.encoder import QueryEncoder
    from aoq.retrieval.vectors import encode_folder, encode_lines, require_form

    encoder = QueryEncoder.load(run)
    require_form(out, encoder, "images" if texts is None else "texts")
    if texts is not None:
        encoded = encode_lines(encoder, texts)
    else:
        assert pictures is not None
        encoded = encode_folder(encoder, pictures)
    encoded.save(out)
    say(f"wrote {len(encoded.ids):,} {encoded.kind} to {out}")


# What is printed


def _tell_made(made: Index) -> None:
    from aoq.progress import say, warn

    record, n_images, n_texts = made.manifest.teacher, len(made.images), len(made.texts)
    say(f"indexed {n_images:,} images and {n_texts:,} texts: {made.folder}")
    if record is not None:
        for direction, found in record.recall.items():
            what = "images of a text" if direction == "t2i" else "texts of an image"
            say(
                f"{what}: {record.proposals} proposals give {found['r1']:.1%} of the first, "
                f"{found['r5']:.1%} of the first 5 and {found['r10']:.1%} of the first 10 that "
                f"scoring everything gives ({found['queries']} queries)"
            )
    elif made.manifest.model_name in ("scan", "bfan"):
        warn(
            "every search scores all images or texts, which is exact but slow; with --teacher, a "
            "run of vsrn or vse proposes some, and only those are scored."
        )


def _tell_added(folder: Path, added: AddedPhotos) -> None:
    from aoq.progress import say

    present = f", {added.present:,} were there already" if added.present else ""
    say(f"added {added.added:,} photos of {folder}{present}")


def _warn_unknown(words: Sequence[str]) -> None:
    from aoq.progress import warn

    if words:
        names = ", ".join(dict.fromkeys(words))
        warn(f"the model does not know these words, and so did not see them: {names}")


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def _print_answer(answer: Answer, *, of_images: bool) -> None:
    """One row a hit."""
    rows = [
        {
            "rank": str(rank),
            "score": f"{hit.score:.4f}",
            "image" if of_images else "text": hit.id,
            "caption": hit.text,
            "picture": str(hit.picture or ""),
        }
        for rank, hit in enumerate(answer.hits, start=1)
    ]
    _print_rows(rows if of_images else [_without(row, "picture") for row in rows])


def _print_rows(rows: Sequence[Mapping[str, str]]) -> None:
    """A table by its headings. A pipe or a file gets every row on a line.

    Where a terminal is too narrow for that, pictures stand below captions.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    width = sum(2 + max(len(name), *(len(row[name]) for row in rows)) for name in rows[0])
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = width
    if console.width < width and "picture" in rows[0]:
        rows = [
            _without(row, "picture") | {"caption": f"{row['caption']}\n{row['picture']}".strip()}
            for row in rows
        ]
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in rows[0]:
        is_figure = name in ("rank", "score")
        table.add_column(
            name, justify="right" if is_figure else "left", overflow="fold", no_wrap=is_figure
        )
    for row in rows:
        table.add_row(*map(Text, row.values()))
    console.print(table)


def _without(row: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in row.items() if key != name}
