"""A model of your own, trained with offline hard negatives.

aoq data build scenes --size tiny --out data/scenes
python examples/own_model.py data/scenes runs/own
torchrun --nproc-per-node 2 examples/own_model.py data/scenes runs/own    # or with two processes
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn
from torch.nn.functional import normalize

import aoq
from aoq.progress import say


class TwoTowers(aoq.InnerProduct, nn.Module):
    """The mean region and the mean word, each through a small network of its own."""

    def __init__(self, feature_width: int, n_words: int, width: int = 64) -> None:
        super().__init__()
        self.image_tower = nn.Sequential(
            nn.Linear(feature_width, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.words = nn.Embedding(n_words, width)
        self.text_tower = nn.Linear(width, width)

    def encode_images(self, regions: Tensor) -> aoq.Encoding:  # (B, R, F)
        return aoq.Encoding(normalize(self.image_tower(regions.mean(dim=1)), dim=1))

    def encode_texts(self, texts: aoq.Texts) -> aoq.Encoding:
        words = self.words(texts.tokens) * texts.mask[:, :, None]  # (B, T, width)
        means = words.sum(dim=1) / texts.lengths[:, None]
        return aoq.Encoding(normalize(self.text_tower(means), dim=1))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a small model of one's own with AOQ.")
    parser.add_argument("data", type=Path, help="folder of a data set")
    parser.add_argument("out", type=Path, help="folder of the run")
    chosen = parser.parse_args(arguments)

    recipe = replace(aoq.load_recipe("scenes-tiny"), data=str(chosen.data))
    with aoq.join_processes() as processes:
        data = aoq.open_training_data(recipe)

        def make_model() -> TwoTowers:
            assert data.feature_width is not None
            assert data.vocabulary is not None
            return TwoTowers(data.feature_width, len(data.vocabulary))

        result = aoq.run_recipe(
            chosen.out, recipe, data=data, make_model=make_model, processes=processes
        )
        if processes.is_first:
            say(f"{result['split']} rsum {result['rsum']:.1f}")
            model = aoq.load_own_model(
                chosen.out / "round-two", make_model, device=data.train.device
            )
            show_hardest(model, data.train)


def show_hardest(model: aoq.TrainableModel, train: aoq.Collator) -> None:
    """Mine with a trained model, and say what it still finds hardest about the first image."""
    dataset = train.dataset
    lists = aoq.mine(
        model,
        aoq.encode_dataset(model, train),
        dataset.positives,
        config=aoq.MiningConfig(depth_texts=10, depth_images=10),
        provenance=aoq.Provenance(teacher="own", data=dataset.fingerprint),
    )
    say(f"right for {dataset.image_ids[0]}: {dataset.captions[dataset.positives.texts_of(0)[0]]}")
    say(f"hardest wrong one: {dataset.captions[lists.i2t[0, 0]]}")


if __name__ == "__main__":
    try:
        main()
    except aoq.UserError as error:
        say(f"error: {error}")
        raise SystemExit(2) from None
