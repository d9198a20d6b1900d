"""Near-duplicates, grouped by a plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aoq.retrieval.duplicates import collapse

photos = st.lists(st.tuples(st.integers(0, 36), st.sampled_from([None, "x", "y"])), max_size=14)


def vectors_of(angles):
    """Unit vectors of the plane, ten degrees a step."""
    turned = np.radians(10 * np.array(angles, np.float32))
    return np.stack([np.cos(turned), np.sin(turned)], axis=1)


@given(photos, st.integers(1, 5))
def test_each_photo_joins_the_first_group_whose_first_it_duplicates(found, top):
    angles, contents = [angle for angle, _ in found], [content for _, content in found]
    groups = []
    for place in range(len(found)):
        for group in groups:
            apart = (angles[group[0]] - angles[place]) % 36
            equal = contents[place] is not None and contents[place] == contents[group[0]]
            if min(apart, 36 - apart) <= 1 or equal:  # cos 10 degrees is 0.985
                group.append(place)
                break
        else:
            groups.append([place])
    assert collapse(vectors_of(angles), contents, top=top, same=0.98) == groups[:top]


def test_a_chain_of_small_changes_is_cut():
    groups = collapse(vectors_of([0, 1, 2, 3]), [None] * 4, top=9, same=0.98)
    assert groups == [[0, 1], [2, 3]]
