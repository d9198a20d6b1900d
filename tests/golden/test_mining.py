"""Candidate lists against the published mining."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.config import MiningConfig
from aoq.mining.candidates import Provenance
from aoq.mining.mine import mine
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding
from tests.golden.cases import in_order


@pytest.mark.parametrize("block_size", [3, 64, 1000])
def test_both_kinds_of_list_are_the_published_ones(golden, block_size):
    arrays = golden("mining")
    images, captions = arrays["in.img_embs"], arrays["in.cap_embs"]
    names = {
        direction: next(n for n in arrays.arrays if n.startswith(f"{direction}.top")).split("_")[0]
        for direction in ("i2t", "t2i")
    }
    config = MiningConfig(
        depth_texts=arrays.numpy(names["i2t"]).shape[1],
        depth_images=arrays.numpy(names["t2i"]).shape[1],
    )
    lists = mine(
        InnerProduct(),
        EncodedDataset(Encoding(images), Encoding(captions)),
        in_order(len(images), len(captions)),
        config=config,
        provenance=Provenance(teacher="", data=""),
        block_size=block_size,
    )
    for direction, name in names.items():
        np.testing.assert_array_equal(getattr(lists, direction), arrays.numpy(name))
        np.testing.assert_allclose(
            getattr(lists, f"{direction}_scores"), arrays.numpy(f"{name}_scores"), atol=1e-5
        )
