"""CxC and ECCV Caption by the real package, where it is or can be installed."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from aoq.data.dataset import PairDataset
from aoq.errors import UserError
from aoq.evaluation.extended import ExtendedJudge, open_package
from aoq.evaluation.metrics import Metrics
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Positives
from tests.evaluation.cases import ranks_in_blocks


def coco_test_set(package, *, extra_captions=0):
    """COCO's test set as far as ids go; the last captions are of the first image, and unknown."""
    image_ids, caption_ids, pairs = [], [], []
    for number, (image, captions) in enumerate(package.coco_gts["i2t"].items()):
        image_ids.append(str(image))
        pairs += [(number, len(caption_ids) + k) for k in range(len(captions))]
        caption_ids += map(str, captions)
    for number in range(extra_captions):
        pairs.append((0, len(caption_ids)))
        caption_ids.append(str(10**9 + number))
    return PairDataset.of(
        np.zeros((len(image_ids), 1, 2), np.float32),
        ["a caption"] * len(caption_ids),
        pairs,
        name="coco",
        split="test",
        image_ids=image_ids,
        caption_ids=caption_ids,
    )


def encode(dataset, *, width=16):
    random = torch.Generator().manual_seed(0)
    images = torch.randn(len(dataset), width, generator=random)
    texts = torch.randn(dataset.n_texts, width, generator=random)
    owners = torch.empty(dataset.n_texts, dtype=torch.int64)
    owners[dataset.positives.pairs[:, 1]] = torch.from_numpy(dataset.positives.pairs[:, 0].copy())
    return EncodedDataset(Encoding(images), Encoding(images[owners] + texts))


def ranked(scores_of, queries, candidates, *, depth=100):
    """Lists of ids by torch's own selection, some queries at a time."""
    lists = {}
    for start in range(0, len(queries), 500):
        best = scores_of(slice(start, start + 500)).topk(depth, dim=1).indices.numpy()
        lists |= zip(queries[start : start + 500], candidates[best].tolist(), strict=True)
    return lists


def test_figures_are_the_packages_on_lists_ranked_another_way(eccv_caption, capfd):
    dataset = coco_test_set(eccv_caption)
    encoded = encode(dataset)
    found = ExtendedJudge.of(dataset).judge(InnerProduct(), encoded)
    assert capfd.readouterr().err == ""
    images, texts = encoded.images.vectors, encoded.texts.vectors
    image_ids, caption_ids = (
        np.array(list(map(int, ids))) for ids in (dataset.image_ids, dataset.caption_ids)
    )
    i2t = ranked(lambda rows: images[rows] @ texts.T, image_ids.tolist(), caption_ids)
    t2i = ranked(lambda rows: texts[rows] @ images.T, caption_ids.tolist(), image_ids)
    with contextlib.redirect_stderr(io.StringIO()):
        expected = eccv_caption.compute_all_metrics(
            i2t,
            t2i,
            target_metrics=("cxc_recalls", "eccv_map_at_r", "eccv_rprecision", "eccv_r1"),
            Ks=(1, 5, 10),
        )
    for name, sides in expected.items():
        for direction, value in sides.items():
            # Two of 25,000 queries may differ: scores 1e-7 apart are rounded differently.
            assert found[f"{direction}_{name}"] == pytest.approx(100 * value, abs=0.009)
    ours = Metrics.from_ranks(ranks_in_blocks(InnerProduct(), encoded, dataset.positives))
    for name, value in ours.figures().items():
        if name.rpartition("_")[2] in ("r1", "r5", "r10"):
            direction, cut = name.split("_")
            assert found[f"{direction}_coco_5k_{cut}"] == pytest.approx(value, abs=0.009)


def test_captions_that_the_package_does_not_know_are_left_out(eccv_caption):
    known, more = coco_test_set(eccv_caption), coco_test_set(eccv_caption, extra_captions=3)
    encoded = encode(more, width=4)
    encoded.texts.vectors[-3:] *= 100  # would be retrieved first
    without = EncodedDataset(encoded.images, encoded.texts[: known.n_texts])
    found = ExtendedJudge.of(more).judge(InnerProduct(), encoded)
    assert found == ExtendedJudge.of(known).judge(InnerProduct(), without)


@pytest.mark.slow
def test_a_model_that_scores_everything_alike_finds_nearly_nothing(eccv_caption):
    dataset = coco_test_set(eccv_caption)
    same = torch.full((dataset.n_texts, 2), 0.3)
    encoded = EncodedDataset(Encoding(same[: len(dataset)]), Encoding(same))
    assert max(ExtendedJudge.of(dataset).judge(InnerProduct(), encoded).values()) < 1


def renamed(dataset, **ids):
    return replace(dataset, **{name: tuple(values) for name, values in ids.items()})


def test_data_sets_without_cocos_ids_are_refused_with_what_to_do(eccv_caption):
    coco = coco_test_set(eccv_caption)
    captions = list(coco.caption_ids)
    wrong = {
        "image id 'test:0' is not one of COCO's": renamed(
            coco, image_ids=[f"test:{number}" for number in range(len(coco))]
        ),
        "caption id '1#0' is not one of COCO's": renamed(coco, caption_ids=["1#0", *captions[1:]]),
        "the image 1 is not in COCO's test set": renamed(
            coco, image_ids=["1", *coco.image_ids[1:]]
        ),
        "does not belong to the image": renamed(coco, caption_ids=[*captions[5:], *captions[:5]]),
        "24,999 captions with COCO's ids; expected the 25,000": renamed(
            coco, caption_ids=["1000000000", *captions[1:]]
        ),
    }
    for sentence, dataset in wrong.items():
        with pytest.raises(UserError, match=r"dataset_coco\.json") as refused:
            ExtendedJudge.of(dataset)
        assert sentence in str(refused.value)


def test_a_part_of_the_test_set_is_refused(eccv_caption):
    coco = coco_test_set(eccv_caption)
    pairs = coco.positives.pairs[:5000]
    part = replace(
        coco,
        features=coco.features[:1000],
        image_ids=coco.image_ids[:1000],
        captions=coco.captions[:5000],
        caption_ids=coco.caption_ids[:5000],
        positives=Positives.from_pairs(pairs, n_images=1000, n_texts=5000),
    )
    with pytest.raises(UserError, match="has 1,000 images; expected the 5,000"):
        ExtendedJudge.of(part)


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "eccv_caption", None)
    with pytest.raises(UserError, match=r'pip install "aoq\[coco\]"'):
        open_package()
