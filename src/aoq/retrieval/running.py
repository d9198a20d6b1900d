"""Lets a command ask a server of the same index, which has the model in memory already.

A server writes where it listens, what it serves and a token into a file that only its user can
read. A command that is pointed at the same run or folder, and would choose the same model, asks it
over HTTP, in a tenth of the time that loading a model takes, and looks up the photos of the hits in
the index. Whatever goes wrong, the command answers itself. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoq.errors import UserError
from aoq.retrieval.default_model import default_model
from aoq.retrieval.hits import Answer, Hit
from aoq.retrieval.tuning import Tuning
from aoq.storage import cache_folder, hash_parts

_CONNECT, _ANSWER = 0.5, 15.0  # seconds
_INDEX_HASH = re.compile(r"\?index=([0-9a-f]+)")


@dataclass(frozen=True)
class Served:
    """A run that a server serves."""

    target: str
    "The run or the folder of photos that the server was started for, as an absolute path."
    name: str
    "Of the run in the addresses of the server."
    index: str
    model: str | None = None
    "The default model when the server was started, if it searches a folder of photos."


@contextmanager
def announced(url: str, token: str | None, served: Sequence[Served]) -> Iterator[None]:
    """Let commands of the same user find a server while it runs."""
    path = _folder() / f"{os.getpid()}.json"
    about = {"url": url, "token": token, "served": [vars(each) for each in served]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # of a killed server with this number
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(about, file)
    except OSError:  # a read-only cache: commands answer themselves
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def ask_server(target: Path, query: Mapping[str, Any]) -> Answer | None:
    """Ask a running server that serves a target; None if there is none, or it cannot answer.

    `query` has the fields of `POST /api/runs/{run}/search`.
    """
    from http.client import HTTPException

    place = str(target.absolute())
    for about in _running():
        for served in about["served"]:
            if served["target"] == place and _is_default(served.get("model")):
                with suppress(OSError, ValueError, TypeError, LookupError, HTTPException):
                    found = _post(about, served["name"], query)
                    return _answer_of(found, Path(served["index"]), query)
    return None


def _is_default(model: str | None) -> bool:
    """Return whether the command would search with this model too, if it searches photos."""
    if model is None:
        return True
    with suppress(UserError):
        return str(default_model()) == model
    return False


def _running() -> Iterator[dict[str, Any]]:
    """Yield what servers have announced; files of those that were killed are removed."""
    for path in _folder().glob("*.json"):
        with suppress(OSError, ValueError):
            if not path.stem.isdecimal() or path.stat().st_uid != os.getuid():
                continue
            try:
                os.kill(int(path.stem), 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)
                continue
            about = json.loads(path.read_bytes())
            if isinstance(about, dict) and isinstance(about.get("served"), list):
                yield about


def _post(about: Mapping[str, Any], run: str, query: Mapping[str, Any]) -> dict[str, Any]:
    from http.client import HTTPConnection
    from urllib.parse import quote, urlsplit

    place = urlsplit(about["url"])
    connection = HTTPConnection(place.hostname or "", place.port, timeout=_CONNECT)
    try:
        connection.connect()
        connection.sock.settimeout(_ANSWER)
        headers = {"Content-Type": "application/json"}
        if about.get("token"):
            headers["Authorization"] = f"Bearer {about['token']}"
        path = f"/api/runs/{quote(run, safe='')}/search"
        connection.request("POST", path, json.dumps(query), headers)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(f"the server answers {response.status}")
    found: dict[str, Any] = json.loads(content)
    return found


def _answer_of(found: Mapping[str, Any], index: Path, query: Mapping[str, Any]) -> Answer:
    """Turn the server's answer to that of a matcher, with the files of the photos."""
    manifest = json.loads((index / "index.json").read_bytes())
    own_hash = hash_parts(*(part["entries_hash"].encode() for part in manifest["parts"]))[:12]
    hashes = {match for hit in found["hits"] for match in _INDEX_HASH.findall(hit["picture"] or "")}
    if hashes - {own_hash}:
        raise ValueError("the index has changed since the server opened it")
    of_images = query.get("find", "images") == "images"
    pictures = _pictures(index, manifest, [hit["number"] for hit in found["hits"]])
    hits = []
    for fields in found["hits"]:
        picture = pictures[fields["number"]] if of_images else None
        known = {name: fields[name] for name in Hit.__dataclass_fields__ if name in fields}
        changed = {"picture": picture, "duplicates": tuple(fields.get("duplicates", ()))}
        hits.append(Hit(**{**known, **changed}))
    tuning = manifest.get("tuning") and Tuning.from_dict(manifest["tuning"])
    ranked_by = found["ranked_by"]
    calibrations = tuning.calibrations if tuning else {}
    return Answer(
        tuple(hits),
        tuple(found["unknown_words"]),
        exact=found["exact"],
        ranked_by=ranked_by,
        calibration=calibrations.get(ranked_by if of_images else "texts")
        if found.get("calibration")
        else None,
        bar=found.get("bar"),
    )


def _pictures(
    index: Path, manifest: Mapping[str, Any], numbers: Sequence[int]
) -> dict[int, Path | None]:
    """Return the files of some images, read from the parts that hold them."""
    found: dict[int, Path | None] = {}
    first = 0
    for part in manifest["parts"]:
        here = [number for number in numbers if first <= number < first + part["n_images"]]
        if here:
            entries = json.loads((index / part["name"] / "entries.json").read_bytes())
            for number in here:
                path = entries["images"][number - first][1]
                found[number] = None if path is None else Path(path)
        first += part["n_images"]
    return found


def _folder() -> Path:
    return cache_folder() / "servers"
