"""Exported folders are loaded by other libraries, which compute the vectors of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, normalize

pytest.importorskip("transformers")

from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    CLIPModel,
    SiglipModel,
    VisionTextDualEncoderModel,
)

from aoq.config import ModelConfig
from aoq.errors import UserError
from aoq.features.blocks import FromBlock
from aoq.features.outputs import Output
from aoq.features.pictures import decode
from aoq.features.vision_models import VisionModel
from aoq.models import build_model
from aoq.models.heads import Head
from aoq.models.tower_weights import learned_weights
from aoq.models.towers import Towers, tower_inputs
from aoq.recipes import save_recipe
from aoq.runs.checkpoint import TrainedRun, load_run, save_weights
from aoq.runs.directory import RunDirectory
from aoq.runs.export import Format, export_run
from aoq.runs.plain_models import head_layers
from aoq.storage import write_json
from tests.commands import aoq, assert_refused
from tests.towers import TinyModels, write_siglip2

TEXTS = ("a red ball on the left", "two green trees above a dog in the snow", "a cup")
EXACT = 1e-5


@dataclass(frozen=True)
class Case:
    """A model, and the kind of transformers' model that it becomes."""

    model: ModelConfig
    kind: type | None = None


def cases(towers: TinyModels) -> dict[str, Case]:
    def dual(folder: Path, learn: str, **more: Any) -> ModelConfig:
        settings = {"head": "none", "image_blocks": 1, "text_blocks": 2, "lora_rank": 2, **more}
        return ModelConfig(name="towers", image=str(folder), learn=learn, **settings)  # type: ignore[arg-type]

    def two(learn: str, **more: Any) -> ModelConfig:
        return dual(towers.vit, learn, text=str(towers.bert), joint_width=8, head_width=16, **more)

    mean = {"image_pooling": "mean", "text_pooling": "cls", "prompt": "a photo of {}"}
    return {
        "a clip, top": Case(dual(towers.clip, "top"), CLIPModel),
        "a clip, lora": Case(dual(towers.clip, "lora"), CLIPModel),
        "a clip, full": Case(dual(towers.clip, "full"), CLIPModel),
        "a siglip, lora": Case(dual(towers.siglip, "lora"), SiglipModel),
        "a siglip, full": Case(dual(towers.siglip, "full"), SiglipModel),
        "two towers, lora": Case(two("lora"), VisionTextDualEncoderModel),
        "two towers, full": Case(two("full"), VisionTextDualEncoderModel),
        "a residual head on a clip": Case(dual(towers.clip, "heads", head="residual")),
        "a residual head on two": Case(two("lora", head="residual")),
        "a linear head on two": Case(two("top", head="linear", text_pooling="mean")),
        "a linear head on a siglip": Case(dual(towers.siglip, "lora", head="linear", **mean)),
    }


NAMES = (
    "a clip, top",
    "a clip, lora",
    "a clip, full",
    "a siglip, lora",
    "a siglip, full",
    "two towers, lora",
    "two towers, full",
    "a residual head on a clip",
    "a residual head on two",
    "a linear head on two",
    "a linear head on a siglip",
)
PLAIN = NAMES[:7]


def write_run(folder: Path, model: ModelConfig) -> Path:
    """Write a run of towers whose weights are no longer those that they started from."""
    from aoq.config import Recipe

    inputs = tower_inputs(model)
    assert inputs.images is not None
    assert inputs.texts is not None
    width = inputs.images.load().width
    tower = inputs.texts.load()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = build_model(
            model,
            feature_width=width,
            vocabulary_size=len(tower.tokenizer),
            text_width=tower.width,
        )
        assert isinstance(built, Towers)
        with torch.no_grad():
            for parameter in filter(lambda each: each.requires_grad, built.parameters()):
                parameter += 0.1 * torch.randn_like(parameter)
            for head in (built.image_head, built.text_head):
                if head is not None:
                    head.standardise(torch.randn(50, len(head.mean)) * 3 + 1)
    run = RunDirectory(folder)
    save_recipe(Recipe(model=model), run.config)
    write_json(run.inputs, inputs.as_dict())
    save_weights(run.model, built, feature_width=width)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, towers: TinyModels) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = cases(towers)
    return {
        name: write_run(folder / str(number), made[name].model) for number, name in enumerate(NAMES)
    }


@pytest.fixture
def photos() -> list[Any]:
    """Pictures that are scaled down, up and not at all."""
    random = np.random.default_rng(1)
    sizes = ((90, 60), (20, 31), (32, 32))
    return [
        Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
        for height, width in sizes
    ]


def vectors_of_run(run: TrainedRun, photos: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Encode by the run, without the half precision in which it keeps the states of photos."""
    assert run.inputs.images is not None
    backbone = run.inputs.images.load()
    assert isinstance(backbone, VisionModel)
    regions = []
    for photo in photos:
        content = BytesIO()
        photo.save(content, format="PNG")
        pixels = [decode(content.getvalue(), backbone.canvas)]
        if Output.parse(run.inputs.images.output).kind == "states":
            regions.append(backbone.network(**backbone.prepare(pixels))[0])
        else:
            finished = run.inputs.images.finish(backbone(pixels)[0])
            regions.append(torch.from_numpy(finished).float())
    texts = run.model.encode_texts(run.read_texts(TEXTS)).vectors
    return texts, run.model.encode_images(torch.stack(regions)).vectors


@pytest.mark.parametrize("name", PLAIN)
def test_transformers_computes_the_vectors_of_the_run(
    tmp_path: Path,
    runs: dict[str, Path],
    towers: TinyModels,
    photos: list[Any],
    name: str,
) -> None:
    folder = export_run(runs[name], tmp_path / "plain")
    model = AutoModel.from_pretrained(folder).eval()
    kind = cases(towers)[name].kind
    assert kind is not None
    assert isinstance(model, kind)
    padding = "max_length" if "siglip" in name else True
    words = AutoTokenizer.from_pretrained(folder)(
        list(TEXTS), padding=padding, truncation=True, return_tensors="pt"
    )
    pixels = AutoImageProcessor.from_pretrained(folder)(images=photos, return_tensors="pt")
    with torch.no_grad():
        by_text = normalize(model.get_text_features(**words).pooler_output)
        by_photo = normalize(model.get_image_features(**pixels).pooler_output)
    run = load_run(runs[name])
    with torch.no_grad():
        expected = vectors_of_run(run, photos)
    torch.testing.assert_close(by_text, expected[0], atol=EXACT, rtol=0)
    torch.testing.assert_close(by_photo, expected[1], atol=EXACT, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_sentence_transformers_computes_the_vectors_of_the_run(
    tmp_path: Path,
    runs: dict[str, Path],
    photos: list[Any],
    name: str,
) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = export_run(runs[name], tmp_path / "plain", format="sentence-transformers")
    assert not [*folder.rglob("*.py"), *folder.rglob("*.bin")]
    model = library.SentenceTransformer(str(folder), device="cpu")
    by_text = model.encode(list(TEXTS), convert_to_tensor=True, show_progress_bar=False)
    by_photo = model.encode(photos, convert_to_tensor=True, show_progress_bar=False)
    run = load_run(runs[name])
    with torch.no_grad():
        expected = vectors_of_run(run, photos)
    torch.testing.assert_close(by_text, expected[0], atol=EXACT, rtol=0)
    torch.testing.assert_close(by_photo, expected[1], atol=EXACT, rtol=0)


@pytest.mark.parametrize("kind", ["linear", "residual"])
def test_layers_of_a_head_compute_the_head(kind: str) -> None:
    head = Head(ModelConfig(name="towers", head=kind, joint_width=5, head_width=7), 6).eval()  # type: ignore[arg-type]
    vectors = 3 * torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) + 2
    head.standardise(vectors)
    seen = vectors
    for layer in head_layers(head):
        seen = seen @ layer.weight.T + (0.0 if layer.bias is None else layer.bias)
        seen = gelu(seen) if layer.is_gelu else seen
    torch.testing.assert_close(seen, head(vectors), atol=EXACT, rtol=0)


def test_learned_weights_have_their_names_in_the_whole_network(
    runs: dict[str, Path], towers: TinyModels
) -> None:
    model = load_run(runs["a clip, top"]).model
    assert isinstance(model, Towers)
    assert model.text_trunk is not None
    assert isinstance(model.text_trunk.network, FromBlock)
    learned = learned_weights(model.text_trunk)
    assert any(".layers.1." in name for name in learned)
    assert any(".layers.2." in name for name in learned)
    assert not any(".layers.0." in name for name in learned)
    assert not any("embeddings" in name for name in learned)


@pytest.mark.parametrize("form", ["transformers", "sentence-transformers"])
def test_gemma_s_tokenizer_is_exported_in_lower_case(tmp_path: Path, form: Format) -> None:
    folder = write_siglip2(tmp_path / "siglip2")
    model = ModelConfig(name="towers", image=str(folder), learn="full", head="none")
    export_run(write_run(tmp_path / "run", model), tmp_path / "plain", format=form)
    places = [path.parent for path in (tmp_path / "plain").rglob("tokenizer.json")]
    for place in {*places}:
        tokenizer = AutoTokenizer.from_pretrained(place)
        ids = tokenizer(["A Red BALL", "a red ball", "a red cup"])["input_ids"]
        assert ids[0] == ids[1] != ids[2]
    assert places


# What is refused


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a residual head on two", ("has heads", "--format sentence-transformers")),
        ("a linear head on a siglip", ("has heads", "--model.head none")),
    ],
)
def test_heads_are_refused_for_transformers(
    tmp_path: Path, runs: dict[str, Path], name: str, words: tuple[str, ...]
) -> None:
    assert_refused(aoq("export", runs[name], "--out", tmp_path / "plain"), *words)
    assert not (tmp_path / "plain").exists()


def test_what_no_library_knows_is_refused_with_the_setting_to_choose(
    tmp_path: Path, towers: TinyModels
) -> None:
    clip = ModelConfig(name="towers", image=str(towers.clip), learn="full", head="none")
    for number, (changes, words) in enumerate(
        (
            ({"image_pooling": "generalised", "head": "linear"}, "image-pooling"),
            ({"prompt": "{} in a photo"}, "--model.prompt"),
            ({"image_pooling": "mean", "text": str(towers.bert)}, "--model.image-pooling own"),
        )
    ):
        run = write_run(tmp_path / str(number), replace(clip, **changes))  # type: ignore[arg-type]
        form = "transformers" if number == 2 else "sentence-transformers"
        with pytest.raises(UserError, match=words):
            export_run(run, tmp_path / "plain", format=form)  # type: ignore[arg-type]
        assert not (tmp_path / "plain").exists()


def test_a_folder_that_computes_something_else_is_not_kept(
    tmp_path: Path, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aoq.runs.plain_models._kind_of", lambda tower: "mean")
    with pytest.raises(UserError, match="are not those of the run"):
        export_run(runs["two towers, full"], tmp_path / "plain", format="sentence-transformers")
    assert not (tmp_path / "plain").exists()


def test_a_folder_of_others_is_not_replaced(tmp_path: Path, runs: dict[str, Path]) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    done = aoq("export", runs["a clip, full"], "--out", tmp_path / "taken", "--force")
    assert_refused(done, "aoq did not write it as its exported model")
