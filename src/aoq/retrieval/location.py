"""Where the index of a run lies, and what to do if it is missing or belongs to another round."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from aoq.config import RoundName
from aoq.errors import UserError
from aoq.retrieval.encoder import QueryEncoder
from aoq.retrieval.index import INDEX, Index
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import hash_model
from aoq.runs.directory import ROUNDS

INDEX_FOLDER = "index"


def index_folder(
    run: Path | str,
    index: Path | str | None = None,
    *,
    round: RoundName | None = None,  # noqa: A002
) -> Path:
    """Return the folder of a run's index: `index` beside the model, unless one is named."""
    return best_round(run, round).path / INDEX_FOLDER if index is None else Path(index)


def existing_index(
    run: Path | str,
    index: Path | str | None = None,
    *,
    round: RoundName | None = None,  # noqa: A002
) -> Path:
    """Return the folder of an index that exists; the error says how to make one."""
    folder = index_folder(run, index, round=round)
    if not (folder / INDEX).is_file():
        place = "" if index is None else f" --out {quote(str(index))}"
        asked = "" if round is None else f" --round {round}"
        raise UserError(
            f"{folder} holds no index; make one with `aoq index {quote(str(run))}{place}{asked}`"
            f"{_hint_at_other_round(run, index, round)}."
        )
    return folder


def _hint_at_other_round(
    run: Path | str,
    index: Path | str | None,
    round: RoundName | None,  # noqa: A002
) -> str:
    """Add to the error that there is an index of the other round, if so."""
    choice = best_round(run, round)
    if index is not None or choice.other is None:
        return ""
    if not (choice.run / ROUNDS[choice.other] / INDEX_FOLDER / INDEX).is_file():
        return ""
    better = "is the better one on dev" if choice.best else "is the one that is used"
    why = "was asked for" if round else better
    return (
        f": its index is of round {choice.other}, and round {choice.used} {why}; --round "
        f"{choice.other} searches the index that is there"
    )


def require_same_round(index: Index, encoder: QueryEncoder) -> None:
    """Reject an index that was made with the other round of the same run."""
    if index.manifest.model_hash == encoder.model_hash:
        return
    own = encoder.run.absolute()
    for name, folder in ROUNDS.items():
        beside = own.parent / folder
        if own.name not in ROUNDS.values() or beside == own or not beside.is_dir():
            continue
        try:
            is_its_index = hash_model(beside) == index.manifest.model_hash
        except UserError:  # not trained
            continue
        if is_its_index:
            raise UserError(
                f"{index.folder} was made with round {name} of {own.parent}, and {encoder.run} is "
                f"used; take that round with --round {name}, or make the index again with `aoq "
                "index RUN --force`."
            )
