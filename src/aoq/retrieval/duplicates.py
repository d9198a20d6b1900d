"""Near-duplicates: photos that show the same, of which one is enough.

A burst of photos, or a photo in two sizes, fills the first hits with one subject. Photos of equal
content are duplicates, and photos whose vectors the model finds nearly equal are taken for such.
"""

from __future__ import annotations

from collections.abc import Sequence

from aoq.types import Floats

SAME = 0.93


def collapse(
    vectors: Floats, contents: Sequence[str | None], *, top: int, same: float
) -> list[list[int]]:
    """Group ranked photos by the first that each duplicates; return the first `top` groups.

    `vectors` (K, D) have unit length and are best first, like `contents`, the hashes of the files;
    `same` is the cosine from which two are near-duplicates.
    A group lists positions, first the photo to show. Photos are compared with that one only, so a
    chain of small changes does not end in a group of photos that have nothing in common.
    """
    groups: list[list[int]] = []
    for place, (vector, content) in enumerate(zip(vectors, contents, strict=True)):
        firsts = [group[0] for group in groups]
        close = vectors[firsts] @ vector >= same
        found = next(
            (
                group
                for group, is_close in zip(groups, close, strict=True)
                if is_close or (content is not None and contents[group[0]] == content)
            ),
            None,
        )
        if found is not None:
            found.append(place)
        else:
            groups.append([place])
    return groups[:top]
