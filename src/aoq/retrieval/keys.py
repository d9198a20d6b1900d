"""Keys of images and texts: whole numbers that stay the same when an index changes.

The number of an entry is its place in the index, and changes when entries before it are removed.
Its key is a hash of what it is: a photo's content, or its id where that is not known. Stores that
outlive a version of an index (an inverted file, Milvus) know vectors by their keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import numpy as np

from aoq.errors import UserError
from aoq.types import Ids

_BYTES = 8


def image_keys(images: Iterable[tuple[str | None, str, str | None]]) -> Ids:
    """Return the keys of images, given by split, id and hash of their content.

    A photo that belongs to no split is what its file holds, wherever that lies.
    """
    return _distinct(
        ["image", content] if split is None and content else ["image", split, name, content]
        for split, name, content in images
    )


def text_keys(texts: Iterable[tuple[str | None, str, str, int | None]]) -> Ids:
    """Return the keys of texts, given by split, id, words, and the key of their image."""
    return _distinct(["text", *text] for text in texts)


def _distinct(descriptions: Iterable[list[str | int | None]]) -> Ids:
    """Hash descriptions, which differ; their hashes have to."""
    keys = [
        int.from_bytes(hashlib.sha256(json.dumps(each).encode()).digest()[:_BYTES], "big") >> 1
        for each in descriptions
    ]
    found = np.array(keys, np.int64)
    if len(np.unique(found)) < len(found):  # by chance: one in a million for three million
        raise UserError("two entries of the index have the same key; index them apart.")
    return found
