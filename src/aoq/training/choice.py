"""Chooses a recipe for who names none, by what there is: towers, pairs, a GPU.

docs/recipes.md lists the rules. A choice is a name and the reason for it, so that the same run can
be repeated with the name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aoq.config import Recipe
from aoq.data.splits import open_dataset
from aoq.distributed import default_device
from aoq.mining.captions import same_in_batch
from aoq.recipes import dotted_settings, load_recipe

_FEW_PAIRS = 5_000
_LIKE_F30K = 100_000
_LIKE_COCO = 400_000
_ALIKE = 0.05  # texts in a batch that say the same as a given one; 0.0001 on Flickr8k
_BATCH = 128


@dataclass(frozen=True)
class Choice:
    """A recipe, and why it is the one."""

    recipe: str
    reason: str

    def arguments(self, settings: Recipe) -> list[str]:
        """Return the words of a command line that give these settings by the recipe's name."""
        usual, wanted = (dotted_settings(each) for each in (load_recipe(self.recipe), settings))
        flags = [
            (f"--{name.replace('_', '-')}", value)
            for name, value in wanted.items()
            if value != usual[name]
        ]
        return [self.recipe, *(word for flag in flags for word in _words(*flag))]


def choose_recipe(data: Path | str, *, image: str = "") -> Choice:
    """Choose a recipe for a data set, and for the image tower that is named, if any."""
    if image:
        return Choice(
            "towers",
            f"An image tower is named ({image}): heads on what frozen towers see take minutes, and "
            "need fewer captions than models that learn from nothing.",
        )
    train = open_dataset(data, "train")
    pairs = len(train.positives.pairs)
    has_gpu = default_device() != "cpu"
    size = f"{pairs:,} pairs of photos and captions"
    if pairs < _FEW_PAIRS:
        return Choice(
            "cca",
            f"The training split has {size}: too few to learn by steps without learning them by "
            "heart. CCA is solved in closed form, in seconds.",
        )
    if not has_gpu and pairs >= _LIKE_F30K:
        return Choice(
            "bow-small",
            f"There is no GPU, and the training split has {size}: bags of words take "
            "minutes, and models that take hours here have to be above them first.",
        )
    alike = same_in_batch(train.positives, train.captions, batch_size=_BATCH)
    shared = (
        f"Many images share a caption: in a batch of {_BATCH}, {alike:.2g} other captions say the "
        "same as a given one, so the hardest negatives are often right."
    )
    if not has_gpu and alike >= _ALIKE:
        return Choice(
            "bow-small",
            f"There is no GPU, and the training split has {size}. {shared} Bags of words learn by "
            "InfoNCE, which does not depend on the hardest alone.",
        )
    if alike >= _ALIKE:
        return Choice(
            "bfan-small+alike-captions",
            f"There is a GPU, and the training split has {size}. {shared} BFAN learns by softmax "
            "losses, which do not depend on the hardest alone, and offline negatives count as far "
            "as they are wrong.",
        )
    if pairs < _LIKE_F30K:
        return Choice(
            "vse-small+fall-back",
            f"The training split has {size}: VSE with regularised inputs is the best of the models "
            "that learn from such a set alone; if its hardest negatives do not help, it goes on "
            "with all negatives. A pretrained image tower (--model.image) finds far more.",
        )
    name, like = ("vsrn-coco", "COCO") if pairs >= _LIKE_COCO else ("vsrn-f30k", "Flickr30K")
    return Choice(
        name,
        f"There is a GPU, and the training split has {size}, about as many as {like}: VSRN with "
        "the paper's settings for it, mining and the second round.",
    )


def _words(flag: str, value: object) -> list[str]:
    """Spell a setting as words of a command line.

    >>> _words("--seed", 3), _words("--force", True), _words("--round-one.ema", None)
    (['--seed', '3'], ['--force'], ['--round-one.ema', 'none'])
    """
    if isinstance(value, bool):
        return [flag if value else f"{flag}=false"]
    return [flag, "none" if value is None else str(value)]
