"""The model that searches folders of photos when none is named."""

from __future__ import annotations

import shutil

import pytest

from aoq.errors import UserError
from aoq.retrieval.default_model import default_model, place_of, read_config, set_default_model
from tests.commands import aoq
from tests.retrieval.conftest import draw_photo
from tests.towers import write_clip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A user who has neither a configuration nor any model."""
    for name in ("AOQ_CACHE", "AOQ_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("AOQ_MODEL", raising=False)


def test_without_a_model_the_error_says_how_to_get_one():
    with pytest.raises(UserError, match="aoq import openai/clip-vit-base-patch32 --default"):
        default_model()


def test_a_model_is_imported_as_the_default_and_searches_photos(tmp_path):
    clip, photos = write_clip(tmp_path / "clip"), tmp_path / "photos"
    draw_photo(photos / "a.png", seed=600)
    assert aoq("import", clip).returncode == 2
    done = aoq("import", clip, "--default")
    assert done.returncode == 0, done.stderr
    assert default_model() == place_of(str(clip))
    found = aoq("search", photos, "a dog in the snow")
    assert found.returncode == 0, found.stderr
    assert "a.png" in found.stdout
    assert aoq("import", clip, "--default").returncode == 0, "it is there already"


def test_the_environment_goes_before_the_configuration_and_that_before_the_cache(
    tmp_path, monkeypatch
):
    places = {}
    for name in ("cache", "configured", "environment"):
        run = tmp_path / name
        run.mkdir()
        (run / "config.toml").touch()
        places[name] = run
    imported = place_of("some/model")
    shutil.copytree(places["cache"], imported)
    assert default_model() == imported
    set_default_model(places["configured"])
    assert read_config() == {"model": str(places["configured"])}
    assert default_model() == places["configured"]
    monkeypatch.setenv("AOQ_MODEL", str(places["environment"]))
    assert default_model() == places["environment"]
    monkeypatch.setenv("AOQ_MODEL", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"AOQ_MODEL names .*nowhere, which is no run"):
        default_model()


def test_a_dual_encoder_in_the_cache_of_hugging_face_is_imported(tmp_path, monkeypatch):
    snapshot = tmp_path / "hub" / "models--some--clip" / "snapshots" / "0a1b"
    write_clip(snapshot)
    imported = []

    def stand_in(out, name):
        imported.append((out, name))
        return type("Run", (), {"path": out})

    monkeypatch.setattr("aoq.published.dual_encoders.import_dual_encoder", stand_in)
    assert default_model() == place_of("some/clip")
    assert imported == [(place_of("some/clip"), "some/clip")]
