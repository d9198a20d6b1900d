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
    """Hash descriptions; a repeated one is counted, so that keys differ."""
    counts: dict[bytes, int] = {}
    keys = []
    for description in descriptions:
        content = json.dumps(description, ensure_ascii=False).encode(errors="surrogatepass")
        count = counts[content] = counts.get(content, 0) + 1
        digest = hashlib.sha256(content + bytes([0]) * (count - 1)).digest()
        keys.append(int.from_bytes(digest[:_BYTES], "big") >> 1)
    found = np.array(keys, np.int64)
    if len(np.unique(found)) < len(found):  # one in a million for three million entries
        raise UserError("two entries of the index have the same key; make a smaller index.")
    return found
