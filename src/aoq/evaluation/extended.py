"""Figures on COCO's test set with more right answers than COCO itself has.

COCO calls a caption right for one image only, though it may describe others just as well, and a
good model is penalised for finding them. CxC and ECCV Caption have human judgements on more pairs;
the package `eccv-caption` holds both and computes the figures: recalls of COCO 5K and CxC, and R@1,
R-Precision and mAP@R of ECCV Caption. It needs ranked lists of COCO's own ids.

Lists are ranked only as deep as the figures need, by mining's sweep without leaving out positives,
so the score matrix is never held. The package's COCO 1K would need complete rankings; use folds
for it. Equal scores rank by the order of the data set.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
import torch

from aoq.config import MiningConfig
from aoq.data.dataset import PairDataset
from aoq.errors import UserError, require_packages
from aoq.evaluation.folds import SomeRows
from aoq.mining.candidates import Provenance
from aoq.mining.mine import mine
from aoq.parsing import shown
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.protocol import Scorer
from aoq.types import Ids, Positives

E = TypeVar("E")
Answers = Mapping[int, Sequence[int]]
EXTRA = "coco"
CUTS = (1, 5, 10)
MOST_DIGITS = 15
_TARGETS = ("coco_5k_recalls", "cxc_recalls", "eccv_r1", "eccv_rprecision", "eccv_map_at_r")
_REMEDY = (
    "A data set built from Karpathy's dataset_coco.json, or from COCO's captions JSON, has them; "
    "precomp folders do not."
)


@dataclass(frozen=True, eq=False)
class ExtendedJudge:
    """The package, and its ids of the images and texts of a data set.

    The package knows five captions per image; Karpathy's split has a sixth or seventh for a few
    images, which are left out.
    """

    package: Any
    image_ids: Ids  # (N,)
    caption_ids: Ids  # (texts,)
    texts: Ids  # (texts,), which of the data set's texts are judged

    @classmethod
    def of(cls, dataset: PairDataset) -> ExtendedJudge:
        """Create a judge; raise a `UserError` unless the data are COCO's test set with its ids."""
        package = open_package()
        image_ids = _as_numbers(dataset.image_ids, dataset, what="image")
        caption_ids = _as_numbers(dataset.caption_ids, dataset, what="caption")
        texts = _known_texts(dataset, image_ids, caption_ids, package.coco_gts)
        return cls(package, image_ids, caption_ids[texts], texts)

    def judge(
        self, scorer: Scorer[E], encoded: EncodedDataset[E], *, memory: str | None = None
    ) -> dict[str, float]:
        """Compute all figures in percent: `i2t_eccv_map_at_r`, `t2i_cxc_r1`, ..."""
        texts = SomeRows(encoded.texts, torch.from_numpy(self.texts))
        lists = mine(
            scorer,
            EncodedDataset(encoded.images, texts, encoded.device),
            Positives.from_pairs([], n_images=len(encoded.images), n_texts=len(texts)),
            config=MiningConfig(
                depth_texts=self._depth("i2t"), depth_images=self._depth("t2i"), memory=memory
            ),
            provenance=Provenance(teacher="", data=""),
        )
        images, captions = self.image_ids, self.caption_ids
        return self._figures(
            i2t=dict(zip(images.tolist(), captions[lists.i2t].tolist(), strict=True)),
            t2i=dict(zip(captions.tolist(), images[lists.t2i].tolist(), strict=True)),
        )

    def _depth(self, direction: str) -> int:
        """Return the depth of lists that the figures need: R is the number of right answers."""
        return max(*CUTS, *map(len, self.package.eccv_gts[direction].values()))

    def _figures(self, *, i2t: Answers, t2i: Answers) -> dict[str, float]:
        with contextlib.redirect_stderr(io.StringIO()):  # the package always shows a bar
            figures = self.package.compute_all_metrics(i2t, t2i, target_metrics=_TARGETS, Ks=CUTS)
        return {
            f"{direction}_{name}": 100 * float(value)
            for name, sides in figures.items()
            for direction, value in sides.items()
        }


def open_package() -> Any:
    """Create the judge of `eccv-caption`, if the package is installed."""
    require_packages("eccv_caption", extra=EXTRA)
    with warnings.catch_warnings():  # about a missing faster JSON reader
        warnings.simplefilter("ignore")
        return import_module("eccv_caption").Metrics()


def _as_numbers(ids: Sequence[str], dataset: PairDataset, *, what: str) -> Ids:
    for identifier in ids:
        if not (identifier.isascii() and identifier.isdecimal() and len(identifier) <= MOST_DIGITS):
            raise UserError(
                f"{_place(dataset)}: the {what} id {shown(identifier)} is not one of COCO's; "
                f"expected a number. {_REMEDY}"
            )
    return np.array([int(identifier) for identifier in ids])


def _known_texts(
    dataset: PairDataset, image_ids: Ids, caption_ids: Ids, known: Mapping[str, Answers]
) -> Ids:
    """Return the texts that are captions of COCO's test set, and check that it is complete."""
    for image in image_ids.tolist():
        if image not in known["i2t"]:
            raise UserError(
                f"{_place(dataset)}: the image {image} is not in COCO's test set (Karpathy's "
                f"split); expected its {len(known['i2t']):,} images. {_REMEDY}"
            )
    texts = [text for text, caption in enumerate(caption_ids.tolist()) if caption in known["t2i"]]
    for text in texts:
        image, caption = known["t2i"][caption_ids[text]][0], caption_ids[text]
        if image_ids[dataset.positives.images_of(text)].tolist() != [image]:
            raise UserError(
                f"{_place(dataset)}: the caption {caption} does not belong to the image {image}, "
                f"as it does in COCO; expected COCO's ids. {_REMEDY}"
            )
    for what, count, wanted in (
        ("images", len(image_ids), len(known["i2t"])),
        ("captions with COCO's ids", len(texts), len(known["t2i"])),
    ):
        if count != wanted:
            raise UserError(
                f"{_place(dataset)} has {count:,} {what}; expected the {wanted:,} of COCO's test "
                f"set (Karpathy's split). {_REMEDY}"
            )
    return np.array(texts)


def _place(dataset: PairDataset) -> str:
    return f"{dataset.name} ({dataset.split})"
