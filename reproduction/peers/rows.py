"""The trainings that are compared, and what each set-up lets learn.

Rows that are not `judged` chose settings on dev, with one seed; they are shown, and never see test.
aoq is not tuned: its rows are the recipe `towers`. What is tuned is the peer: the kind and scale of
its loss, its learning rate, and how it mines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from aoq.config import LossName, ModelConfig, Recipe
from aoq.recipes import load_recipe

SetupName = Literal["heads", "text"]
Library = Literal["aoq", "sentence-transformers"]
LossKind = Literal["query_to_doc", "symmetric", "gte"]
Anchor = Literal["caption", "photo"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What learns, and for how long; the image tower is frozen in both."""

    name: SetupName
    epochs: int
    model: Mapping[str, Any]
    "Changes of the recipe's model."
    tower_learning_rate: float | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    "bfloat16: mixed, as both libraries offer it."

    def model_config(self, recipe: Recipe, *, image: str, text: str, dropout: float) -> ModelConfig:
        named: dict[str, Any] = {"image": image, "text": text, "image_precision": "bfloat16"}
        dropped: dict[str, Any] = {"feature_dropout": dropout, "word_dropout": dropout}
        return replace(recipe.model, **named, **dropped, **self.model)


SETUPS: Mapping[SetupName, Setup] = {
    "heads": Setup(name="heads", epochs=12, model={"learn": "heads"}),
    "text": Setup(
        name="text",
        epochs=3,
        model={"learn": "top", "image_blocks": 0, "text_blocks": 2},
        tower_learning_rate=5e-5,
        precision="bfloat16",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Mining:
    """Parameters of `mine_hard_negatives`, by its names."""

    anchors: tuple[Anchor, ...] = ("caption",)
    "What negatives are mined for: photos for captions, captions for photos, or both."
    num_negatives: int = 3
    relative_margin: float = 0.05
    range_min: int = 0
    range_max: int | None = None
    sampling_strategy: Literal["top", "random"] = "top"

    def parameters(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "anchors"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to train, with any seed."""

    label: str
    library: Library
    setup: SetupName
    batch_size: int = 128
    learning_rate: float = 1e-3
    teacher: str = ""
    "The row whose model mines what this one learns from; its time is part of this row's."
    judged: bool = True
    loss: LossName = "online"
    "aoq: equation of the loss."
    kind: LossKind = "symmetric"
    "Peer: which similarities its softmax is over."
    scale: float = 20.0
    "Softmax losses: the cosines are multiplied by this."
    hardness: float = 0.0
    "Peer: weight of the cosine that is added to in-batch negatives (hardness_strength)."
    mining: Mining | None = None
    "Peer: how it mines; aoq mines as its recipe says."
    dropout: float = 0.0
    "Of the towers' vectors before the heads, in either library."

    @property
    def name(self) -> str:
        """The label as part of a folder's name."""
        return re.sub(r"[^a-z0-9.]+", "-", self.label.lower())

    def settings(self) -> dict[str, Any]:
        """Return what the result of this row depends on, as a record holds it."""
        settings = asdict(self) | {"setup": asdict(SETUPS[self.setup])}
        if not self.dropout:
            del settings["dropout"]  # as in records from before there was one
        recorded: dict[str, Any] = json.loads(json.dumps(settings))
        return recorded

    def recipe(self, *, data: str, image: str, text: str, seed: int) -> Recipe:
        """Return aoq's recipe with this row's settings."""
        recipe, setup = load_recipe("towers"), SETUPS[self.setup]
        changed: dict[str, Any] = {
            "epochs": setup.epochs,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "tower_learning_rate": setup.tower_learning_rate,
            "precision": setup.precision,
        }
        one, two = recipe.round_one, recipe.round_two
        if self.loss == "infonce":
            changed |= {"warmup_epochs": 0}
            one = replace(one, loss=replace(one.loss, name=self.loss, temperature=1 / self.scale))
        elif self.teacher:
            two = replace(two, loss=replace(two.loss, name=self.loss))
        return replace(
            recipe,
            data=data,
            seed=seed,
            rounds="both" if self.teacher else "one",
            model=setup.model_config(recipe, image=image, text=text, dropout=self.dropout),
            round_one=replace(one, **changed),
            round_two=replace(two, **changed),
        )


def _own(label: str, setup: SetupName, **settings: Any) -> Row:
    return Row(label=f"aoq: {label}", library="aoq", setup=setup, **settings)


def _peer(label: str, setup: SetupName, **settings: Any) -> Row:
    label = f"sentence-transformers: {label}"
    return Row(label=label, library="sentence-transformers", setup=setup, **settings)


def _judged(setup: SetupName) -> Iterator[Row]:
    """Yield the rows of a set-up, those of the two libraries in turn."""
    yield (online := _own("online", setup))
    yield (mnrl := _peer("MNRL", setup))
    yield _own("InfoNCE", setup, loss="infonce")
    yield _peer("MNRL, its default", setup, kind="query_to_doc")
    yield _own("online, batch 512", setup, batch_size=512)
    yield _peer("MNRL, batch 512", setup, batch_size=512)
    yield _own("InfoNCE, batch 512", setup, loss="infonce", batch_size=512)
    yield _own("AdapOffQuin", setup, teacher=online.label, loss="adap_off_quin")
    yield _peer("MNRL, mined", setup, teacher=mnrl.label, mining=Mining())


def _tried(setup: SetupName) -> Iterator[Row]:
    """Yield what settings were chosen from; each differs from MNRL in what it names."""
    for scale in (10.0, 40.0):
        yield _peer(f"tried scale {scale:g}", setup, judged=False, scale=scale)
    yield _peer("tried gte", setup, judged=False, kind="gte")
    yield _peer("tried hardness 9", setup, judged=False, hardness=9.0)
    for rate in (5e-4, 2e-3):
        yield _peer(f"tried learning rate {rate:g}", setup, judged=False, learning_rate=rate)


def _dropped() -> Iterator[Row]:
    """Yield rows with the dropout of vectors that the recipe `towers` has."""
    yield _own("online, batch 512, dropout", "heads", batch_size=512, dropout=0.2)
    yield _peer("MNRL, batch 512, dropout", "heads", batch_size=512, dropout=0.2)
    yield _own("InfoNCE, dropout", "text", loss="infonce", dropout=0.2)
    yield _peer("MNRL, dropout", "text", dropout=0.2)


ROWS: Sequence[Row] = (*_judged("heads"), *_tried("heads"), *_judged("text"), *_dropped())


def find_row(setup: SetupName, label: str) -> Row:
    (row,) = (row for row in ROWS if (row.setup, row.label) == (setup, label))
    return row
