"""`aoq search`, `aoq score` and `aoq encode`: query a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aoq.cli.base import (
    Count,
    Flag,
    Json,
    ModelFunction,
    Which,
    app,
    console_for,
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

_WORDS_SHOWN = 20  # a file of texts can hold thousands of unknown words


@app.command
def search(
    run: Path,
    text: str | None = None,
    /,
    *,
    image: Path | None = None,
    top: Count = 10,
    index: Path | None = None,
    round: Which = None,  # noqa: A002
    model: ModelFunction = None,
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
        Number of hits.
    index
        Folder of the index; default: `index` beside the model.
    round
        Round to use of a run with two: one or two; default: the better one on dev.
    as_json
        Print JSON for programs.
    """
    if (text is None) == (image is None):
        raise UserError('give either a sentence or a picture: "a dog" or --image dog.jpg.')
    from aoq.retrieval.matcher import Matcher

    make_model = own_model(model, [trained_round(run, round)])  # prints which round is used
    matcher = Matcher.load(run, index=index, round=round, make_model=make_model)
    query = image if text is None else text
    assert query is not None
    answer = matcher.search(query, top=top)
    _warn_unknown(answer.unknown_words)
    if as_json:
        print_json(
            {
                "query": {"text": text, "image": None if image is None else str(image)},
                "exact": answer.exact,
                "unknown_words": answer.unknown_words,
                "hits": [
                    {
                        "rank": rank,
                        **vars(hit),
                        "picture": hit.picture and str(hit.picture),
                        "picture_gone": hit.picture_gone,
                    }
                    for rank, hit in enumerate(answer.hits, start=1)
                ],
            }
        )
    else:
        _print_answer(answer, of_images=image is None)


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


def _print_answer(answer: Answer, *, of_images: bool) -> None:
    """Print one row per hit."""
    rows = [
        {
            "rank": str(rank),
            "score": f"{hit.score:.4f}",
            **_percentage(hit.probability),
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
        is_figure = name in ("rank", "score", "probability")
        table.add_column(
            name, justify="right" if is_figure else "left", overflow="fold", no_wrap=is_figure
        )
    for row in rows:
        table.add_row(*map(Text, row.values()))
    return table


def _without(row: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in row.items() if key != name}
