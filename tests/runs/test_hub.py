"""Runs go to the hub and come back whole; nothing else comes from there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("huggingface_hub")

from huggingface_hub import constants, metadata_load

from aoq.config import ModelConfig
from aoq.data.build import build_dataset
from aoq.errors import UserError
from aoq.features.outputs import Output
from aoq.features.regions import RegionSource
from aoq.manifest import NAME as MANIFEST
from aoq.manifest import create_manifest, record_rest
from aoq.retrieval.encoder import QueryEncoder
from aoq.runs.best_round import best_round
from aoq.runs.bundle import is_known
from aoq.runs.checkpoint import load_run
from aoq.runs.hub import CARD, pull_run, push_run
from aoq.runs.judge import evaluate_run
from aoq.training.two_rounds import run_recipe
from tests.commands import aoq, aoq_process, assert_refused
from tests.end_to_end.test_towers import recipe_of, two_towers
from tests.hub_server import READ, WRITE, Files, Hub, at
from tests.retrieval.conftest import photo_records
from tests.towers import TinyModels

NAME = "someone/squares"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # of httpx


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, towers: TinyModels) -> Path:
    root = tmp_path_factory.mktemp("hub-data")
    source = RegionSource.of_backbone(str(towers.vit), output=Output("cls"))
    build_dataset(photo_records(root / "photos"), root / "data", name="squares", source=source)
    return root / "data"


@pytest.fixture(scope="module")
def models(towers: TinyModels) -> dict[str, ModelConfig]:
    return {
        "heads": two_towers(towers, "heads"),
        "lora": two_towers(towers, "lora"),
        "full": replace(two_towers(towers, "full"), image=str(towers.clip), text=""),
        "vse": ModelConfig(name="vse", joint_width=8),
        "scan on words": ModelConfig(name="scan", joint_width=8, words=str(towers.bert)),
    }


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, data: Path, models: dict[str, ModelConfig]
) -> dict[str, Path]:
    runs = {name: tmp_path_factory.mktemp("runs") / "run" for name in models}
    for name, model in models.items():
        rounds = "both" if name == "heads" else "one"
        recipe = recipe_of(data, model, rounds=rounds)
        if model.name != "towers":
            usual = replace(recipe.round_one, tower_learning_rate=None)
            recipe = replace(recipe, round_one=usual)
        run_recipe(runs[name], recipe)
    return runs


KINDS = ("heads", "lora", "full", "vse", "scan on words")


@pytest.mark.parametrize("kind", KINDS)
def test_a_pulled_run_is_the_model_that_was_pushed(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], data: Path, kind: str
) -> None:
    push_run(trained[kind], NAME)
    pulled = pull_run(NAME, tmp_path / "pulled")
    ours, theirs = load_run(trained[kind]), load_run(pulled.path)
    assert theirs.model_hash == ours.model_hash
    weights = ours.model.state_dict()
    assert weights.keys() == theirs.model.state_dict().keys()
    for name, weight in theirs.model.state_dict().items():
        assert torch.equal(weight, weights[name])
    test = evaluate_run(pulled.path, data=data, split="test")
    assert test == evaluate_run(trained[kind], split="test")


@pytest.mark.parametrize("kind", KINDS)
def test_a_pulled_run_reads_photos_and_texts_where_nothing_of_the_first_machine_is(
    hub: Hub,
    tmp_path: Path,
    trained: dict[str, Path],
    data: Path,
    towers: TinyModels,
    kind: str,
) -> None:
    photo = data.parent / "photos" / "test-0.png"
    ours = QueryEncoder.load(trained[kind])
    expected = ours.encode_texts(["a red ball"]).vectors, ours.encode_picture(photo).vectors
    push_run(trained[kind], NAME)
    hidden = [data, towers.vit, towers.bert, towers.clip]
    for folder in hidden:
        folder.rename(folder.with_name(f"hidden-{folder.name}"))
    try:
        theirs = QueryEncoder.load(pull_run(NAME, tmp_path / "pulled").path)
        found = theirs.encode_texts(["a red ball"]).vectors, theirs.encode_picture(photo).vectors
    finally:
        for folder in hidden:
            folder.with_name(f"hidden-{folder.name}").rename(folder)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)


def test_the_better_round_is_pushed_without_the_state_of_its_training(
    hub: Hub, trained: dict[str, Path]
) -> None:
    push_run(trained["heads"], NAME)
    best = best_round(trained["heads"]).path
    assert hub.files(NAME)["model.safetensors"] == (best / "model.safetensors").read_bytes()
    others = {".gitattributes", CARD, MANIFEST}
    assert all(is_known(file) for file in hub.files(NAME).keys() - others)
    assert not any(file.endswith((".pt", ".bin", ".py", ".npy")) for file in hub.files(NAME))


def test_a_pushed_run_names_no_place_of_this_machine(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], data: Path
) -> None:
    root = str(data.parents[1]).encode()
    for kind in KINDS:
        push_run(trained[kind], NAME)
        for file, content in hub.files(NAME).items():
            assert root not in content, (kind, file)


def test_a_run_that_was_pulled_can_be_pushed_again(
    hub: Hub, tmp_path: Path, trained: dict[str, Path]
) -> None:
    push_run(trained["lora"], NAME)
    first = pull_run(NAME, tmp_path / "first")
    push_run(first.path, "someone/again")
    second = pull_run("someone/again", tmp_path / "second")
    assert load_run(second.path).model_hash == load_run(trained["lora"]).model_hash
    assert hub.files("someone/again").keys() == hub.files(NAME).keys()


def test_a_second_push_replaces_the_files_of_the_first_and_no_others(
    hub: Hub, tmp_path: Path, trained: dict[str, Path]
) -> None:
    push_run(trained["lora"], NAME)
    first = set(hub.files(NAME))
    hub.commit(NAME, {**hub.files(NAME), "picture.png": b"of the owner"})
    push_run(trained["vse"], NAME)
    assert "vocabulary.json" in hub.files(NAME)
    assert "inputs.json" in first - hub.files(NAME).keys()
    assert hub.files(NAME)["picture.png"] == b"of the owner"
    pulled = pull_run(NAME, tmp_path / "pulled")
    assert load_run(pulled.path).model_hash == load_run(trained["vse"]).model_hash
    assert not (pulled.path / "picture.png").exists()
    assert "picture.png" not in hub.downloads


def test_an_older_push_is_pulled_by_its_commit(
    hub: Hub, tmp_path: Path, trained: dict[str, Path]
) -> None:
    push_run(trained["lora"], NAME)
    commit = list(hub.repositories[NAME])[-1]
    push_run(trained["vse"], NAME)
    pulled = pull_run(NAME, tmp_path / "old", revision=commit)
    assert load_run(pulled.path).model_hash == load_run(trained["lora"]).model_hash


# What is refused


@pytest.mark.parametrize("file", ["model.safetensors", "config.toml", "towers/0/vit/config.json"])
def test_a_file_that_is_not_what_was_pushed_leaves_nothing_behind(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], file: str
) -> None:
    push_run(trained["lora"], NAME)
    content = bytearray(hub.files(NAME)[file])
    content[len(content) // 2] ^= 1
    hub.commit(NAME, {**hub.files(NAME), file: bytes(content)})
    with pytest.raises(UserError, match=f"{file} of {NAME} is not what was pushed"):
        pull_run(NAME, tmp_path / "pulled")
    assert not [item for item in tmp_path.iterdir() if item.name != "hub-cache"]


def test_a_file_that_is_missing_on_the_hub_leaves_nothing_behind(
    hub: Hub, tmp_path: Path, trained: dict[str, Path]
) -> None:
    push_run(trained["lora"], NAME)
    files = hub.files(NAME)
    hub.commit(NAME, {name: files[name] for name in files if name != "model.safetensors"})
    with pytest.raises(UserError, match=f"{NAME} lacks model.safetensors"):
        pull_run(NAME, tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


@pytest.mark.parametrize(
    "file", ["trainer.pt", "towers/0/vit/modeling.py", "weights.bin", "round-one/config.toml"]
)
def test_a_listed_file_that_no_run_holds_is_refused_before_it_is_downloaded(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], file: str
) -> None:
    push_run(trained["lora"], NAME)
    forged = tmp_path / "forged"
    for name, content in {**hub.files(NAME), file: b"harm"}.items():
        if name not in (MANIFEST, CARD, ".gitattributes"):
            (forged / name).parent.mkdir(parents=True, exist_ok=True)
            (forged / name).write_bytes(content)
    create_manifest(forged, "run")
    record_rest(forged)
    listed = {p.relative_to(forged).as_posix(): p.read_bytes() for p in forged.rglob("*.*")}
    hub.commit(NAME, {name: content for name, content in listed.items() if content})
    hub.downloads.clear()
    with pytest.raises(UserError, match=f"lists {file}, which no run of aoq holds"):
        pull_run(NAME, tmp_path / "pulled")
    assert hub.downloads == [MANIFEST]
    assert not (tmp_path / "pulled").exists()


@pytest.mark.parametrize(
    "name",
    [
        "../config.toml",
        "towers/../../x.json",
        "/etc/x.json",
        "towers//x.json",
        "towers/.hidden/x.json",
        "towers/x\\..\\y.json",
        "towers/0/vit/pytorch_model.bin",
        "towers/0/vit/x.pkl",
        "other/x.json",
    ],
)
def test_a_name_outside_of_a_bundle_is_not_known(name: str) -> None:
    assert not is_known(name)


OTHERS: dict[str, Files] = {
    "a model": {"config.json": b"{}", "model.safetensors": b"x"},
    "a data set of aoq": {MANIFEST: b"", "dataset.json": b"{}"},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_name_that_something_else_has_is_neither_pushed_to_nor_pulled(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], kind: str
) -> None:
    files = dict(OTHERS[kind])
    if MANIFEST in files:
        create_manifest(tmp_path, "data set")
        files[MANIFEST] = (tmp_path / MANIFEST).read_bytes()
    hub.commit(NAME, files)
    with pytest.raises(UserError, match="is on the hub already, and is no run of aoq"):
        push_run(trained["vse"], NAME)
    assert hub.files(NAME) == files
    with pytest.raises(UserError, match=f"{NAME} is no run of aoq"):
        pull_run(NAME, tmp_path / "pulled")


def test_an_empty_repository_is_pushed_to(hub: Hub, trained: dict[str, Path]) -> None:
    hub.commit(NAME, {".gitattributes": b"", CARD: b"# to come"})
    push_run(trained["vse"], NAME)
    assert b"to come" not in hub.files(NAME)[CARD]


def test_a_folder_of_others_is_not_replaced(
    hub: Hub, tmp_path: Path, trained: dict[str, Path]
) -> None:
    push_run(trained["vse"], NAME)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="aoq did not write it as its run"):
        pull_run(NAME, tmp_path / "taken", force=True)
    assert (tmp_path / "taken" / "mine.txt").read_text() == "mine"


def test_a_push_without_a_token_is_refused(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert_refused(aoq("push", trained["vse"], NAME), "needs a token", "HF_TOKEN")
    assert NAME not in hub.repositories


def test_a_token_that_may_not_write_is_refused(
    hub: Hub, trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", READ)
    assert_refused(aoq("push", trained["vse"], NAME), "does not accept the token")
    assert NAME not in hub.repositories


def test_a_run_that_is_not_on_the_hub_is_refused(hub: Hub, tmp_path: Path) -> None:
    done = aoq("pull", NAME, "--out", tmp_path / "pulled")
    assert_refused(done, f"{NAME} is not on the hub")


@pytest.mark.parametrize("name", ["squares", "a/b/c", "/b", "some one/squares"])
def test_a_name_that_the_hub_does_not_allow_is_refused(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], name: str
) -> None:
    for done in (aoq("pull", name, "--out", tmp_path / "x"), aoq("push", trained["vse"], name)):
        assert_refused(done, "is not a name that the hub allows", "OWNER/NAME")


def test_an_unknown_revision_is_refused(hub: Hub, tmp_path: Path, trained: dict[str, Path]) -> None:
    push_run(trained["vse"], NAME)
    done = aoq("pull", NAME, "--out", tmp_path / "x", "--revision", "nowhere")
    assert_refused(done, "no such revision")


def test_a_hub_that_cannot_be_reached_is_one_sentence(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    at("http://127.0.0.1:9", monkeypatch)
    for done in (aoq("pull", NAME, "--out", tmp_path / "x"), aoq("push", trained["vse"], NAME)):
        assert_refused(done, "the connection to it failed", "HF_ENDPOINT")


def test_offline_only_what_is_in_the_cache_is_pulled(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    push_run(trained["vse"], NAME)
    pull_run(NAME, tmp_path / "online")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    pulled = pull_run(NAME, tmp_path / "offline")
    assert load_run(pulled.path).model_hash == load_run(trained["vse"]).model_hash
    done = aoq("pull", "someone/else", "--out", tmp_path / "x")
    assert_refused(done, "HF_HUB_OFFLINE is set", "HF_HOME")


# The card


def card_of(hub: Hub, tmp_path: Path) -> tuple[str, dict[str, object]]:
    (tmp_path / CARD).write_bytes(hub.files(NAME)[CARD])
    return hub.files(NAME)[CARD].decode(), metadata_load(tmp_path / CARD) or {}


def test_the_card_says_what_the_run_is_and_how_good(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], data: Path
) -> None:
    run = best_round(trained["heads"]).path
    done = aoq("evaluate", run, "--bootstrap", 20, "--json")
    assert done.returncode == 0, done.stderr
    test = json.loads(done.stdout)
    push_run(trained["heads"], NAME)
    card, metadata = card_of(hub, tmp_path)
    assert metadata["library_name"] == "aoq"
    assert metadata["license"] == "unknown"
    assert "base_model" not in metadata
    figures = next(iter(test.values())) if "rsum" not in test else test
    low, high = figures["intervals"]["rsum"]
    assert f"{figures['rsum']:.1f} [{low:.1f}, {high:.1f}]" in card
    assert "| data set | squares |" in card
    assert "| train | 12 images, 21 captions |" in card
    assert f"aoq pull {NAME} --out runs/squares" in card


def test_a_figure_or_licence_that_is_not_known_is_not_in_the_card(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], data: Path
) -> None:
    push_run(trained["lora"], NAME)
    run = pull_run(NAME, tmp_path / "pulled")
    for file in (run.events, run.results, run.data_facts):
        file.unlink()
    push_run(run.path, NAME)
    card, _ = card_of(hub, tmp_path)
    assert "The run holds no results." in card
    assert "data set" not in card
    assert "| vit | images | unknown |" in card


def test_the_licence_of_a_network_is_read_from_its_card(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], towers: TinyModels
) -> None:
    cards = [folder / CARD for folder in (towers.vit, towers.bert)]
    try:
        for card in cards:
            card.write_text("---\nlicense: mit\n---\n# A network\n")
        push_run(trained["lora"], NAME)
    finally:
        for card in cards:
            card.unlink()
    text, metadata = card_of(hub, tmp_path)
    assert "| vit | images | mit |" in text
    assert metadata["license"] == "mit"


def test_a_licence_can_be_named_and_one_that_is_none_is_refused(
    hub: Hub, tmp_path: Path, trained: dict[str, Path]
) -> None:
    assert_refused(
        aoq("push", trained["vse"], NAME, "--license", "wrong"), "does not accept the card"
    )
    done = aoq("push", trained["vse"], NAME, "--license", "apache-2.0")
    assert done.returncode == 0, done.stderr
    assert card_of(hub, tmp_path)[1]["license"] == "apache-2.0"


def test_a_plan_prints_the_files_and_the_card_and_pushes_nothing(
    hub: Hub, trained: dict[str, Path]
) -> None:
    done = aoq("push", trained["lora"], NAME, "--plan")
    assert done.returncode == 0, done.stderr
    assert "towers/0/vit/model.safetensors" in done.stderr
    assert "library_name: aoq" in done.stderr
    assert NAME not in hub.repositories


# A base on the hub, and the commands in processes of their own


def put_on_hub(hub: Hub, name: str, folder: Path) -> None:
    hub.commit(name, {file.name: file.read_bytes() for file in folder.iterdir()})


def test_a_tower_of_the_hub_is_named_and_not_uploaded(
    hub: Hub, tmp_path: Path, data: Path, towers: TinyModels
) -> None:
    put_on_hub(hub, "someone/tiny-clip", towers.clip)
    hub.cards["someone/tiny-clip"] = {"license": "mit"}
    model = ModelConfig(name="towers", image="someone/tiny-clip", joint_width=8, head="linear")
    run_recipe(tmp_path / "run", recipe_of(data, model, rounds="one"))
    push_run(tmp_path / "run", NAME)
    assert not [file for file in hub.files(NAME) if file.startswith("towers/")]
    text, metadata = card_of(hub, tmp_path)
    assert metadata["base_model"] == ["someone/tiny-clip"]
    assert metadata["license"] == "mit"
    assert "images and texts | mit |" in text
    pulled = pull_run(NAME, tmp_path / "pulled")
    assert load_run(pulled.path).model_hash == load_run(tmp_path / "run").model_hash


def test_the_commands_of_the_card_find_photos(
    hub: Hub, tmp_path: Path, trained: dict[str, Path], data: Path
) -> None:
    environment = {
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": WRITE,
    }
    run, photos = tmp_path / "pulled", data.parent / "photos"
    assert aoq("push", trained["lora"], NAME).returncode == 0
    done = aoq_process("pull", NAME, "--out", run, env=environment)
    assert done.returncode == 0, done.stderr
    for command in (
        ("index", run, "--pictures", photos, "--without-data"),
        ("search", run, "a small red ball"),
    ):
        done = aoq(*command)
        assert done.returncode == 0, done.stderr
    assert "test-0" in done.stdout + done.stderr or ".png" in done.stdout
