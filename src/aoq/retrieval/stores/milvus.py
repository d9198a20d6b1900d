"""A store in Milvus: a cluster or a server by its address, Milvus Lite in a file.

A collection holds the images of an index and another one its texts, with the columns that filters
name; what a filter lets through is decided there. The description of a collection says which model
made its vectors, so those of another one are refused. All vectors are compared (FLAT), which is
exact and which a cluster divides among its nodes, unless there are so many that a graph (HNSW) has
to find the nearest.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, Self, get_args
from weakref import finalize

import numpy as np

from aoq.errors import UserError, require_packages
from aoq.parsing import shown
from aoq.progress import progress_bar
from aoq.retrieval.metadata import Metadata
from aoq.retrieval.stores.protocol import Found, Selection
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import Modality
from aoq.types import Floats, Ids

TOKEN = "AOQ_MILVUS_TOKEN"
_EXPECTED = "expected milvus://HOST:PORT/COLLECTION or a file for Milvus Lite such as lists.db"
_SCHEMES = {"milvus": "http", "milvus+tls": "https"}
_PORT = 19530
_MOST = 16_384  # hits, the limit of Milvus
_AT_ONCE = 1_000  # vectors of a request
_MANY = 2_000_000  # vectors beyond which a graph finds the nearest
_TEXT = {"max_length": 65_535, "nullable": True}
_OWN = {"key", "vector", "id", "text"}  # fields that are not of the photo's metadata
_ABOUT = "aoq"  # property of a collection
_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class MilvusAddress:
    """Where a store is: the server or the file, and what its collections are called."""

    text: str
    uri: str
    prefix: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address; the path of a file is made absolute."""
        scheme, mark, rest = text.partition("://")
        if mark and scheme not in _SCHEMES:
            raise UserError(f"{shown(text)} is not the address of a store; {_EXPECTED}.")
        if not mark or rest.startswith("/"):
            path = Path(rest if mark else text).absolute()
            if path.suffix != ".db":
                raise UserError(f"{shown(text)} does not end in .db; {_EXPECTED}.")
            return cls(f"milvus://{path}", str(path), "aoq")
        host, _, prefix = rest.partition("/")
        prefix = prefix or "aoq"
        name, _, port = host.rpartition(":") if re.search(r":\d+$", host) else (host, "", _PORT)
        if not name or not _PREFIX.fullmatch(prefix):
            raise UserError(
                f"{shown(text)} is not the address of a store: a collection is named by letters, "
                f"digits and underscores; {_EXPECTED}."
            )
        return cls(text, f"{_SCHEMES[scheme]}://{name}:{port}", prefix)

    @property
    def is_file(self) -> bool:
        return self.uri.startswith("/")

    def collection(self, kind: Modality) -> str:
        return f"{self.prefix}_{kind}"


class MilvusStore:
    """The vectors of the images, or of the texts, of one index."""

    def __init__(self, name: str, address: MilvusAddress, *, exact: bool, longest: float) -> None:
        self._client = connect(address)
        self._leave = finalize(self, disconnect, address)
        self._leave.atexit = False
        self._address = address
        self._name = name
        self.exact = exact
        self.longest = longest
        self._count = self._read_count()

    @classmethod
    def open(
        cls, address: MilvusAddress, kind: Modality, *, model_hash: str, longest: float
    ) -> Self:
        """Open the collection of an index; refuse one of another model."""
        name = address.collection(kind)
        with _connected(address) as client:
            described = describe(client, name)
            if described is None:
                raise UserError(
                    f"{address.text} has no collection {name}; make the index again with `aoq "
                    "index RUN --force`, or bring the store back."
                )
            if described.get("model") != model_hash:
                raise UserError(
                    f"the collection {name} of {address.text} holds vectors of another model; make "
                    "the index again with `aoq index RUN --force`, or name another collection."
                )
            client.load_collection(name)
            return cls(name, address, exact=bool(described["exact"]), longest=longest)

    @classmethod
    def create(
        cls,
        address: MilvusAddress,
        kind: Modality,
        *,
        model_hash: str,
        width: int,
        expected: int,
        owner: str = "",
    ) -> Self:
        """Open the collection of an index, made if there is none; one of its old model is replaced.

        `owner` is the index, if it has a collection to itself; that of another one is refused.
        """
        name = address.collection(kind)
        with _connected(address) as client:
            described = describe(client, name)
            _require_owner(described, owner, name=name, address=address)
            if described is not None and described["model"] != model_hash:
                client.drop_collection(name)
                described = None
            if described is None:
                exact = expected <= _MANY
                about = json.dumps({"model": model_hash, "exact": exact, "owner": owner})
                _create(client, name, about=about, width=width, exact=exact, address=address)
            else:
                exact = bool(described["exact"])
            client.load_collection(name)
            return cls(name, address, exact=exact, longest=0.0)

    def __len__(self) -> int:
        return self._count

    def keys(self) -> Ids:
        found: list[int] = []
        with _explained(self._address):
            pages = self._client.query_iterator(
                self._name, filter="", output_fields=["key"], batch_size=_MOST // 2
            )
            while page := pages.next():
                found += [row["key"] for row in page]
            pages.close()
        return np.sort(np.array(found, np.int64))

    def add(self, keys: Ids, vectors: Floats, rows: Metadata | None = None) -> None:
        columns: Mapping[str, Any] = {} if rows is None else rows.columns
        bar = progress_bar("store", total=len(keys), unit="vectors")
        with _explained(self._address), bar as update:
            for block in ranges(len(keys), _AT_ONCE):
                page = [
                    {name: column[number] for name, column in columns.items()}
                    | {"key": int(keys[number]), "vector": vectors[number]}
                    for number in range(block.start, block.stop)
                ]
                self._client.upsert(self._name, page)
                update(advance=len(page))
        if len(vectors):
            self.longest = max(self.longest, float(np.linalg.norm(vectors, axis=1).max()))
        self._count = self._read_count()

    def remove(self, keys: Ids) -> None:
        with _explained(self._address):
            for block in ranges(len(keys), _MOST):
                self._client.delete(self._name, ids=keys[block].tolist())
        self._count = self._read_count()

    def search(self, queries: Floats, *, top: int, among: Selection | None = None) -> Found:
        top = min(top, _MOST)
        with _explained(self._address):
            pages = self._client.search(
                self._name,
                data=list(queries),
                limit=top,
                filter="" if among is None else _expression(among),
                search_params={} if self.exact else {"params": {"ef": max(256, 2 * top)}},
            )
        keys = np.full((len(queries), max(map(len, pages), default=0)), -1, np.int64)
        scores = np.full(keys.shape, -np.inf, np.float32)
        for row, page in enumerate(pages):
            keys[row, : len(page)] = [hit["key"] for hit in page]
            scores[row, : len(page)] = [hit["distance"] for hit in page]
        return Found(keys, scores)

    def vectors(self, keys: Ids) -> Floats:
        distinct, places = np.unique(keys, return_inverse=True)
        found: dict[int, Any] = {}
        with _explained(self._address):
            for block in ranges(len(distinct), _AT_ONCE):
                wanted = distinct[block].tolist()
                page = self._client.get(self._name, ids=wanted, output_fields=["key", "vector"])
                found |= {row["key"]: row["vector"] for row in page}
        missing = [key for key in distinct.tolist() if key not in found]
        if missing:
            raise UserError(
                f"the collection {self._name} has lost {len(missing):,} vectors of the index; run "
                "`aoq index RUN --sync`, or make the index again with --force."
            )
        rows = np.array([found[key] for key in distinct.tolist()], np.float32)
        return rows[places]

    def close(self) -> None:
        self._leave()

    def _read_count(self) -> int:
        with _explained(self._address):
            (row,) = self._client.query(self._name, filter="", output_fields=["count(*)"])
        return int(row["count(*)"])


@dataclass
class _Connection:
    """A client, and how many stores of this process use it."""

    client: Any
    users: int = 0


_connections: dict[str, _Connection] = {}
_lock = RLock()  # a store may be collected, and disconnect, while another connects


def connect(address: MilvusAddress) -> Any:
    """Connect to the server, or open the file, of an address; `disconnect` ends it.

    The stores of a process share a client, so a server whose index changes keeps its own.
    """
    require_packages("pymilvus", extra="milvus")
    if address.is_file:
        require_packages("milvus_lite", extra="milvus")
        Path(address.uri).parent.mkdir(parents=True, exist_ok=True)
    for library in ("pymilvus", "grpc"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # errors are raised
    import pymilvus

    with _lock, _explained(address):
        connection = _connections.get(address.uri)
        if connection is None:
            token = os.environ.get(TOKEN, "")
            client = pymilvus.MilvusClient(address.uri, token=token, timeout=10)
            connection = _connections.setdefault(address.uri, _Connection(client))
        connection.users += 1
        return connection.client


def disconnect(address: MilvusAddress) -> None:
    """Close a client that nobody else uses."""
    with _lock:
        connection = _connections[address.uri]
        connection.users -= 1
        if not connection.users:
            del _connections[address.uri]
            connection.client.close()


@contextmanager
def _connected(address: MilvusAddress) -> Iterator[Any]:
    """Connect for a moment; stores that are opened in it keep the client."""
    client = connect(address)
    try:
        with _explained(address):
            yield client
    finally:
        disconnect(address)


def describe(client: Any, name: str) -> dict[str, Any] | None:
    """Return what aoq wrote of a collection; None if there is none."""
    if not client.has_collection(name):
        return None
    found = client.describe_collection(name)
    try:
        described = json.loads(found["properties"].get(_ABOUT) or found["description"])
        return {
            "model": str(described["model"]),
            "exact": bool(described["exact"]),
            "owner": str(described.get("owner", "")),
        }
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"the collection {name} was not made by aoq; name another one, as in "
            "milvus://HOST:PORT/COLLECTION."
        ) from None


def require_own(address: MilvusAddress, owner: str) -> None:
    """Reject a store that cannot be reached, or whose collections are those of another index."""
    with _connected(address) as client:
        for kind in get_args(Modality):
            name = address.collection(kind)
            _require_owner(describe(client, name), owner, name=name, address=address)


def _require_owner(
    described: Mapping[str, Any] | None, owner: str, *, name: str, address: MilvusAddress
) -> None:
    if described is not None and described["owner"] != owner:
        raise UserError(
            f"the collection {name} of {address.text} holds the vectors of another index, "
            f"{described['owner'] or 'which is not named'}; name another one, as in "
            "milvus://HOST:PORT/COLLECTION, or another file."
        )


def _create(
    client: Any, name: str, *, about: str, width: int, exact: bool, address: MilvusAddress
) -> None:
    """Make a collection; Milvus Lite keeps no description, but properties of any name."""
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=True, description=about)
    schema.add_field("key", DataType.INT64, is_primary=True)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
    for column in ("id", "folder", "name", "date", "split"):
        schema.add_field(column, DataType.VARCHAR, **_TEXT)
    for column in ("width", "height"):
        schema.add_field(column, DataType.INT64, nullable=True)
    index = client.prepare_index_params()
    graph = {"M": 32, "efConstruction": 256}
    index.add_index(
        "vector",
        index_type="FLAT" if exact else "HNSW",
        metric_type="IP",
        params={} if exact else graph,
    )
    properties = {"properties": {_ABOUT: about}} if address.is_file else {}
    client.create_collection(
        name, schema=schema, index_params=index, consistency_level="Strong", **properties
    )


def _expression(among: Selection) -> str:
    if among.where is not None and _OWN.isdisjoint(among.where.named()):
        return among.where.expression(among.columns)
    return f"key in {among.keys.tolist()}"


@contextmanager
def _explained(address: MilvusAddress) -> Iterator[None]:
    """Say in a sentence why a store cannot be reached."""
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except (MilvusException, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{address.text} cannot be used ({reason}); is Milvus running there, and is the token "
            f"in {TOKEN} right? A file of Milvus Lite is used by one process at a time."
        ) from None
