"""Attention of SCAN and BFAN on the patches of a vision model and the pieces of a text tower."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from PIL import Image

from aoq.config import ModelConfig
from aoq.data.build import build_dataset
from aoq.features.regions import PictureReader, RegionSource, grid_boxes
from aoq.features.tokenizers import PieceTokenizer
from aoq.retrieval.build import build_index
from aoq.retrieval.matcher import Matcher
from aoq.scoring.cross_attention import CrossAttention
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from tests.retrieval.conftest import photo_records
from tests.towers import TinyModels, write_vit
from tests.training.cases import ROUND, small_recipe

GRID = 3
TEXT = "an extraordinary snowball, above trees"
MODELS = {
    "scan": ModelConfig(name="scan", joint_width=8),
    "scan i2t": ModelConfig(name="scan", joint_width=8, direction="i2t"),
    "bfan": ModelConfig(name="bfan", joint_width=8),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RegionSource:
    vit = write_vit(tmp_path_factory.mktemp("patches") / "vit", patch=4)
    return RegionSource.of_backbone(str(vit), grid=GRID)


@pytest.fixture(scope="module")
def matchers(
    tmp_path_factory: pytest.TempPathFactory, source: RegionSource, towers: TinyModels
) -> dict[str, Matcher]:
    root = tmp_path_factory.mktemp("pieces")
    build_dataset(photo_records(root / "photos"), root / "data", name="squares", source=source)
    made = {}
    for name, model in MODELS.items():
        recipe = replace(
            small_recipe(root / "data", round_one=replace(ROUND, epochs=1)),
            model=replace(model, words=str(towers.bert)),
        )
        train_round(root / name, recipe, open_training_data(recipe), which="one")
        build_index(root / name)
        made[name] = Matcher.load(root / name)
    return made


@pytest.mark.parametrize("name", MODELS)
def test_a_word_has_the_mean_over_its_pieces_and_their_sum(
    matchers: dict[str, Matcher], name: str
) -> None:
    matcher = matchers[name]
    model, tokenizer = matcher.encoder.model, matcher.encoder.tokenizer
    assert isinstance(model, CrossAttention)
    seen = matcher.attention(0, TEXT)
    assert seen.words == ("an", "extraordinary", "snowball,", "above", "trees")
    places = [word.places for word in tokenizer.words_of(TEXT)]
    assert max(map(len, places)) > 1
    image = matcher.entry_query("images", [0]).own
    with torch.no_grad():
        maps = model.attention_maps(image, matcher.encoder.encode_texts([TEXT]))
    if "t2i" in maps:
        expected = [np.mean([maps["t2i"][0, p].numpy() for p in word], axis=0) for word in places]
        np.testing.assert_allclose(seen.by_word, expected, atol=1e-6)
        np.testing.assert_allclose(seen.by_word.sum(axis=1), 1, atol=1e-5)
    if "i2t" in maps:
        expected = [np.sum([maps["i2t"][0, :, p].numpy() for p in word], axis=0) for word in places]
        np.testing.assert_allclose(seen.by_region, np.stack(expected, axis=1), atol=1e-6)
        assert (seen.by_region.sum(axis=1) <= 1 + 1e-5).all()
    assert (seen.by_word is None) == ("t2i" not in maps)
    assert (seen.by_region is None) == ("i2t" not in maps)


def test_words_beyond_what_the_tower_reads_have_no_weight(matchers: dict[str, Matcher]) -> None:
    matcher = matchers["bfan"]
    text = " ".join(["red"] * 40)
    places = [word.places for word in matcher.encoder.tokenizer.words_of(text)]
    assert places[0]
    assert not places[-1]
    seen = matcher.attention(0, text)
    assert len(seen.words) == 40
    for weights in (seen.by_word, seen.by_region.T):
        assert np.isfinite(weights).all()
        assert (weights[-1] == 0).all()
    np.testing.assert_allclose(seen.by_word[0].sum(), 1, atol=1e-5)


@pytest.mark.parametrize("place", [0, 4, 5, 6])
def test_a_patch_is_drawn_where_it_is_in_the_photo(
    tmp_path: Path, matchers: dict[str, Matcher], source: RegionSource, place: int
) -> None:
    """What changes in one cell of a photo changes the region of that box most."""
    boxes = matchers["scan"].attention(0, "red ball").boxes
    np.testing.assert_allclose(boxes, grid_boxes(GRID))
    pixels = np.full((96, 144, 3), 90, np.uint8)
    left, top, right, bottom = boxes[place] * [144, 96, 144, 96]
    changed = pixels.copy()
    changed[round(top) : round(bottom), round(left) : round(right)] = 255
    reader = PictureReader(source)
    regions = []
    for number, picture in enumerate((pixels, changed)):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
        regions.append(reader.regions(tmp_path / f"{number}.png").astype(np.float32))
    differences = np.linalg.norm(regions[1] - regions[0], axis=1)
    assert differences.argmax() == place


def test_a_tokenizer_that_does_not_place_its_pieces_shows_no_attention(
    matchers: dict[str, Matcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PieceTokenizer, "knows_places", False)
    found = matchers["scan"]
    matcher = Matcher(found.encoder, found.index)
    assert not matcher.has_attention
    assert "does not say which of its pieces" in (matcher.attention_reason or "")
    assert matcher.images_for(TEXT).hits
