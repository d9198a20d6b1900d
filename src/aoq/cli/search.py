"""`aoq search`, `aoq score` and `aoq encode`: query a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from aoq.cli.base import (
    Count,
    Flag,
    Json,
    ModelFunction,
    Which,
    app,
    console_for,
    importing,
    natural_width,
    own_model,
    print_json,
    trained_round,
)
from aoq.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from aoq.retrieval.encoder import QueryEncoder
    from aoq.retrieval.hits import Answer
    from aoq.retrieval.matcher import Matcher

Words = Literal["auto", "only", "off"]
_WORDS_SHOWN = 20  # a file of texts can hold thousands of unknown words


_ASK = Group("What to look for", sort_key=1)
_KEEP = Group("Which hits to show", sort_key=2)
_READ = Group("What to search, and how to print", sort_key=3)
_Share = Annotated[float | None, Parameter(group=_KEEP, validator=Number(gt=0, lt=1))]


@app.command
def search(
    target: Path,
    /,
    *texts: str,
    like: Annotated[tuple[Path, ...], Parameter(group=_ASK, show_default=False)] = (),
    without: Annotated[tuple[str, ...], Parameter(group=_ASK, show_default=False)] = (),
    weights: Annotated[
        tuple[float, ...], Parameter(group=_ASK, consume_multiple=True, show_default=False)
    ] = (),
    image: Annotated[Path | None, Parameter(group=_ASK)] = None,
    words: Annotated[Words, Parameter(group=_ASK)] = "auto",
    where: Annotated[str | None, Parameter(group=_KEEP)] = None,
    top: Annotated[Count, Parameter(group=_KEEP)] = 10,
    min_score: Annotated[float | None, Parameter(group=_KEEP)] = None,
    min_precision: _Share = None,
    collapse: Annotated[Flag, Parameter(group=_KEEP)] = False,
    run: Annotated[Path | None, Parameter(group=_READ)] = None,
    captions: Annotated[Path | None, Parameter(group=_READ)] = None,
    sync: Annotated[bool, Parameter(group=_READ, negative="--no-sync", show_default=False)] = True,
    index: Annotated[Path | None, Parameter(group=_READ)] = None,
    round: Annotated[Which, Parameter(group=_READ)] = None,  # noqa: A002
    model: Annotated[ModelFunction, Parameter(group=_READ)] = None,
    export: Annotated[Path | None, Parameter(group=_READ)] = None,
    as_json: Annotated[Json, Parameter(group=_READ)] = False,
) -> None:
    """Find photos for sentences and photos, or texts for a picture.

    Parameters
    ----------
    target
        A folder of photos, or of a trained model that was indexed with `aoq index`. The index of
        a folder of photos is made when it is first searched, and kept.
    texts
        Sentences; several are added up.
    like
        A picture file: photos like it are found; several, and sentences, are added up.
    without
        Words for what should not be there; may be repeated.
    weights
        One per sentence, then one per --like; default: 1 each.
    image
        A picture file: texts are found.
    words
        Whether captions are searched for the sentences, beside photos: auto, only or off.
    where
        Photos that may be found: 'folder = trips and date >= 2023-06 and not split = test'.
    top
        Number of hits.
    min_score
        Lowest score of a hit.
    min_precision
        Share of the hits that should be right, such as 0.8, as measured on dev.
    collapse
        Show photos that are nearly the same as one hit.
    run
        Trained model for a folder of photos; default: the one that `aoq import --default` sets.
    captions
        Captions file of the photos, which are searched too.
    sync
        Bring the index of a folder of photos up to date first.
    index
        Folder of the index; default: `index` beside the model, or the cache for photos.
    round
        Round to use of a run with two: one or two; default: the better one on dev.
    export
        Write the hits to a .csv or .json file, or links to their photos to a folder.
    as_json
        Print JSON for programs.
    """
    if image is not None and (texts or like or without):
        raise UserError("--image finds texts for a picture and goes alone; --like finds photos.")
    if image is None and not texts and not like:
        raise UserError('give a sentence or a picture: "a dog", --like dog.jpg or --image dog.jpg.')
    from aoq.retrieval.hit_files import answer_fields, export_hits, require_export

    if export is not None:
        require_export(export, of_images=image is None)
    asked: dict[str, Any] = {
        "texts": texts,
        "without": without,
        "weights": weights,
        "find": "images" if image is None else "texts",
        "where": where,
        "top": top,
        "min_score": min_score,
        "min_precision": min_precision,
        "words": words,
        "collapse": collapse,
    }
    answer = None
    if not (like or image or any((run, captions, index, round, model)) or not sync):
        from aoq.retrieval.running import ask_server

        answer = ask_server(target, asked)
    if answer is None:
        with importing():
            from aoq.retrieval.queries import Query

        query = Query(**asked, images=like if image is None else (image,))
        matcher = _open(target, run, captions, index, round, model, sync=sync)
        answer = matcher.find(query)
        matcher.encoder.keep_for_queries()
    _warn_unknown(answer.unknown_words)
    if export is not None:
        export_hits(answer, export)
    if as_json:
        given = {
            "texts": texts,
            "like": [str(each) for each in like],
            "without": without,
            "image": image and str(image),
        }
        print_json({"query": given, **answer_fields(answer)})
    elif answer.hits:
        _print_answer(answer, of_images=image is None)
    else:
        _report_nothing(answer)


def _open(
    target: Path,
    run: Path | None,
    captions: Path | None,
    index: Path | None,
    round: Which,  # noqa: A002
    model: ModelFunction,
    *,
    sync: bool,
) -> Matcher:
    """Load the model and the index of a run or of a folder of photos."""
    with importing():
        from aoq.retrieval.matcher import Matcher
        from aoq.retrieval.target import is_photo_folder, open_target

    make_model = None
    if not is_photo_folder(target):
        make_model = own_model(model, [trained_round(target, round)])  # prints which round is used
    elif model is not None:
        make_model = own_model(model, [trained_round(run or target, round)])
    opened = open_target(
        target,
        run=run,
        index=index,
        round=round,
        make_model=make_model,
        captions=captions,
        sync=sync,
    )
    return Matcher.load(opened.run, index=opened.index, round=round, make_model=make_model)


@app.command
def score(
    run: Path,
    picture: Path,
    /,
    *texts: str,
    round: Which = None,  # noqa: A002
    model: ModelFunction = None,
    as_json: Json = False,
) -> None:
    """Score how well a picture fits some sentences; higher is closer.

    Parameters
    ----------
    run
        Folder of a trained model.
    picture
        A picture file.
    texts
        Sentences.
    round
        Round to use of a run with two: one or two; default: the better one on dev.
    as_json
        Print JSON for programs.
    """
    if not texts:
        raise UserError("no text is given; add one or more sentences.")
    from aoq.retrieval.encoder import QueryEncoder

    folder = trained_round(run, round)
    encoder = QueryEncoder.load(folder, make_model=own_model(model, [folder]))
    read = [encoder.read_query(text) for text in texts]
    scores = encoder.score(encoder.encode_picture(picture), texts)
    shares = _probabilities(encoder, scores)
    _warn_unknown([word for one in read for word in one.unknown_words])
    if as_json:
        rows = [
            {"text": text, "score": value, "probability": share, "unknown_words": one.unknown_words}
            for text, value, share, one in zip(texts, scores, shares, read, strict=True)
        ]
        print_json({"picture": str(picture), "scores": rows})
    else:
        best_first = sorted(zip(scores, shares, texts, strict=True), key=lambda row: -row[0])
        _print_rows(
            [
                {"score": f"{value:.4f}", **_percentage(share), "text": text}
                for value, share, text in best_first
            ]
        )


def _probabilities(encoder: QueryEncoder, scores: Sequence[float]) -> Sequence[float | None]:
    """Return what a dual encoder that was imported makes of scores of one picture.

    A softmax says nothing of a single sentence: its share would be 1.
    """
    logits = encoder.trained.logits
    if logits is None or (logits.bias is None and len(scores) == 1):
        return [None] * len(scores)
    return logits.among(scores)


def _percentage(share: float | None) -> dict[str, str]:
    return {} if share is None else {"probability": f"{share:.1%}"}


@app.command
def encode(
    run: Path,
    /,
    *,
    texts: Path | None = None,
    pictures: Path | None = None,
    out: Path,
    force: Flag = False,
    round: Which = None,  # noqa: A002
    model: ModelFunction = None,
) -> None:
    """Write the vectors of texts or pictures to a file.

    Parameters
    ----------
    run
        Folder of a trained model.
    texts
        File of texts, one per line.
    pictures
        Folder of pictures.
    out
        File to write: .safetensors, or .npy with the ids in a .json file beside it.
    force
        Replace `out`, and the .json file beside it, if they exist.
    round
        Round to use of a run with two: one or two; default: the better one on dev.
    """
    if (texts is None) == (pictures is None):
        raise UserError("give one of the two: --texts FILE or --pictures FOLDER.")
    from aoq.folders import check_output_file, remember_file
    from aoq.progress import count_of, say
    from aoq.retrieval.encoder import QueryEncoder, ReadText
    from aoq.retrieval.vector_file import encode_folder, encode_lines, files_of, require_form

    for file in files_of(out):
        check_output_file(file, force=force)
    folder = trained_round(run, round)
    encoder = QueryEncoder.load(folder, make_model=own_model(model, [folder]))
    require_form(out, encoder, "images" if texts is None else "texts")
    if texts is not None:
        encoded = encode_lines(encoder, texts)
        read = (ReadText.of(text, encoder.tokenizer) for text in encoded.ids)
        _warn_unknown([word for one in read for word in one.unknown_words])
    else:
        assert pictures is not None
        encoded = encode_folder(encoder, pictures)
    encoded.save(out)
    for file in files_of(out):
        remember_file(file)
    say(f"wrote {count_of(len(encoded.ids), encoded.kind.removesuffix('s'))} to {out}")


def _warn_unknown(words: Sequence[str]) -> None:
    from aoq.progress import warn

    names = list(dict.fromkeys(words))
    if names:
        more = len(names) - _WORDS_SHOWN
        listed = ", ".join(names[:_WORDS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
        warn(f"the model does not know these words and treats them all alike: {listed}")


def _report_nothing(answer: Answer) -> None:
    from aoq.progress import say

    if answer.nothing_fits:
        say(f"nothing fits: no hit reaches a score of {answer.bar:.4f}")
    else:
        say("nothing was found")


def _print_answer(answer: Answer, *, of_images: bool) -> None:
    """Print one row per hit."""
    is_collapsed = any(hit.duplicates for hit in answer.hits)
    rows = [
        {
            "rank": str(rank),
            "score": f"{hit.score:.4f}",
            **_percentage(hit.probability),
            **({"alike": str(hit.count)} if is_collapsed else {}),
            "image" if of_images else "text": hit.id,
            "caption": hit.text,
            "picture": f"{hit.picture or ''}{' (gone)' if hit.picture_gone else ''}",
        }
        for rank, hit in enumerate(answer.hits, start=1)
    ]
    _print_rows(rows if of_images else [_without(row, "picture") for row in rows])


def _print_rows(rows: Sequence[Mapping[str, str]]) -> None:
    """Print one line per row; in a narrow terminal, pictures go below captions."""
    table = _table(rows)
    console = console_for(table)
    if "picture" in rows[0] and natural_width(table) > console.width:
        table = _table(
            [
                _without(row, "picture")
                | {"caption": f"{row['caption']}\n{row['picture']}".strip()}
                for row in rows
            ]
        )
    console.print(table)


def _table(rows: Sequence[Mapping[str, str]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in rows[0]:
        is_figure = name in ("rank", "score", "probability", "alike")
        table.add_column(
            name, justify="right" if is_figure else "left", overflow="fold", no_wrap=is_figure
        )
    for row in rows:
        table.add_row(*map(Text, row.values()))
    return table


def _without(row: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in row.items() if key != name}
