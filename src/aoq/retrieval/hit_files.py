"""Hits in files, for other programs and file managers: a table, JSON, or a folder of links."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aoq.disk import require_writable
from aoq.errors import UserError
from aoq.folders import check_output_file, remember_file
from aoq.retrieval.hits import Answer, Hit
from aoq.storage import is_vacant, write_json, write_text

_FILES = (".csv", ".json")
_COLUMNS = ("rank", "id", "score", "probability", "text", "picture", "count")


def require_export(path: Path, *, of_images: bool) -> None:
    """Reject a place that hits cannot be written to, before anything is searched."""
    if path.suffix in _FILES:
        check_output_file(path, force=False)
        return
    if not of_images:
        raise UserError(f"{path} would be a folder of links to photos, and texts are searched.")
    if path.suffix:
        raise UserError(
            f"{path} ends in neither {' nor '.join(_FILES)}; name such a file, or a folder for "
            "links to the photos."
        )
    require_writable(path)
    if not is_vacant(path):
        raise UserError(f"{path} exists already; name another folder.")


def export_hits(answer: Answer, path: Path) -> None:
    """Write the hits to a file by its ending, or links to their photos to a folder."""
    if path.suffix == ".json":
        write_json(path, answer_fields(answer))
    elif path.suffix == ".csv":
        write_text(path, hits_csv(answer.hits))
    else:
        _link(answer.hits, path)
        return
    remember_file(path)


def answer_fields(answer: Answer) -> dict[str, Any]:
    """Describe an answer for JSON."""
    known = answer.calibration
    return {
        "exact": answer.exact,
        "ranked_by": answer.ranked_by,
        "unknown_words": answer.unknown_words,
        "bar": answer.bar,
        "calibrated_on": known and {"split": known.split, "queries": known.queries},
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


def hits_csv(hits: Sequence[Hit]) -> str:
    """Write one row per hit."""
    lines = io.StringIO()
    rows = csv.writer(lines, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for rank, hit in enumerate(hits, start=1):
        rows.writerow([rank, *(getattr(hit, name) for name in _COLUMNS[1:])])
    return lines.getvalue()


def _link(hits: Sequence[Hit], folder: Path) -> None:
    """Link to the photos that are there, in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    width = len(str(len(hits)))
    for rank, hit in enumerate(hits, start=1):
        if hit.picture is not None and not hit.picture_gone:
            (folder / f"{rank:0{width}}-{hit.picture.name}").symlink_to(hit.picture)
