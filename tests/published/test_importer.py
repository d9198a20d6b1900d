"""Published files become runs that evaluate and mine, or one sentence and no file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from aoq.config import SamplingConfig
from aoq.data.splits import open_dataset
from aoq.data.vocabulary import SPECIAL_WORDS, Vocabulary
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists
from aoq.published.importer import import_run
from aoq.recipes import load_recipe
from aoq.runs.checkpoint import load_run
from aoq.runs.directory import RunDirectory
from aoq.runs.judge import evaluate_run
from aoq.runs.mine import mine_run
from aoq.sampling import OfflineSampler
from aoq.storage import hash_file, locked, read_json_lines
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from tests.conftest import WORDS
from tests.published.cases import content
from tests.training.cases import VOCABULARY, published, small_recipe

KINDS = ["scan", "bfan", "vse", "vsrn_coco", "vsrn_f30k", "vsrn_original"]


def published_lists(precomp, *, depth_texts=None, depth_images=None):
    """As the published program ranks: everything, with the anchor's own at the end."""
    random = np.random.default_rng(0)
    positives = open_dataset(precomp, "train").positives

    def ranked(relation, depth):
        rows = []
        for anchor in range(relation.n_images):
            own = relation.texts_of(anchor)
            others = np.setdiff1d(np.arange(relation.n_texts), own)
            rows.append([*random.permutation(others), *own])
        return np.array(rows, dtype=np.int32)[:, :depth]

    return {"i2t": ranked(positives, depth_texts), "t2i": ranked(positives.swapped, depth_images)}


def refusal(tmp_path, files, **options):
    """The sentence, after which nothing lies around that was not there before."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as caught:
        import_run(tmp_path / "runs" / "new", files, **options)
    assert sorted(tmp_path.rglob("*")) == before
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_run_evaluates_and_mines(tmp_path, precomp, kind):
    run = import_run(tmp_path / "run", published(tmp_path / "files", kind), data=precomp)
    metrics = evaluate_run(run.path)
    assert 0 <= metrics.rsum <= 600
    lists = mine_run(run.path, run.candidates)
    assert lists.i2t.shape == (12, 55)
    assert lists.require_fit(open_dataset(precomp, "train"), source="lists") is lists
    assert read_json_lines(run.events)[0]["event"] == "imported"


def test_weights_settings_words_and_hashes_are_kept(tmp_path, precomp):
    files = published(tmp_path / "files")
    run = import_run(tmp_path / "run", files, data=precomp)
    trained = load_run(run.path)
    image, text = content(words=len(VOCABULARY))["model"]
    state = trained.model.state_dict()
    assert torch.equal(state["image_encoder.projection.weight"], image["fc.weight"])
    assert torch.equal(state["text_encoder.gru.bias_hh_l0"], text["rnn.bias_hh_l0"])
    assert trained.tokenizer == VOCABULARY
    recipe = load_recipe(run.config)
    assert recipe.data == str(precomp)
    assert recipe.model.direction == "i2t"
    one = recipe.round_one
    assert (one.epochs, one.batch_size, one.decay_after) == (15, 64, 7)
    assert (one.learning_rate, one.clip_norm) == (0.0005, 2.0)
    assert (one.loss.name, one.loss.margin_online) == ("online", 0.25)
    origin = json.loads(run.origin.read_text())
    assert origin["imported"] == {
        "checkpoint": {"file": "model_best.pth.tar", "sha256": hash_file(files.checkpoint)},
        "vocabulary": {"file": "vocab.json", "sha256": hash_file(files.vocabulary)},
    }
    assert (origin["epoch"], origin["best_rsum"]) == (12, 431.5)


def test_what_was_found_is_said(tmp_path, capsys):
    import_run(tmp_path / "run", published(tmp_path / "files", "vsrn_f30k"))
    said = capsys.readouterr().err
    assert "regions of width 6, joint space of width 5" in said
    assert "15 words of width 4" in said
    assert "epoch 12, best_rsum 431.5" in said
    assert "warning" not in said


def test_without_data_the_run_takes_the_data_set_it_is_given(tmp_path, precomp):
    run = import_run(tmp_path / "run", published(tmp_path / "files"))
    assert load_recipe(run.config).data == ""
    assert evaluate_run(run.path, data=precomp).rsum >= 0


def test_settings_that_cannot_be_ours_are_left_at_their_defaults(tmp_path):
    odd = {"grad_clip": 0.0, "batch_size": 1, "num_epochs": 2.5, "max_violation": False}
    value = content(words=len(VOCABULARY))
    vars(value["opt"]).update(odd)
    run = import_run(tmp_path / "run", published(tmp_path / "files", value=value))
    one = load_recipe(run.config).round_one
    assert (one.clip_norm, one.batch_size, one.epochs) == (2.0, 128, 20)
    assert one.loss.name == "standard"


def test_options_that_are_assumed_are_named(tmp_path, capsys):
    value = content(words=len(VOCABULARY), options={})
    import_run(tmp_path / "run", published(tmp_path / "files", value=value), model="bfan")
    assert "does not state focal_type, lambda_softmax" in capsys.readouterr().err


# What is refused


def test_a_vocabulary_of_another_size_is_refused_with_both_numbers(tmp_path):
    files = published(tmp_path / "files")
    Vocabulary((*VOCABULARY.words, "more")).save(files.vocabulary)
    assert "has 16 words and the model of" in refusal(tmp_path, files)


def test_data_of_another_feature_width_is_refused(tmp_path, precomp):
    np.save(precomp / "train_ims.npy", np.ones((12, 4, 7), np.float32))
    sentence = refusal(tmp_path, published(tmp_path / "files"), data=precomp)
    assert "width 7; the model was trained on width 6" in sentence


def test_a_hostile_checkpoint_leaves_nothing_behind(tmp_path):
    files = published(tmp_path / "files")
    files.checkpoint.write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    assert "asks for posix.system" in refusal(tmp_path, files)


def test_an_existing_run_is_replaced_only_if_asked_for(tmp_path):
    out = tmp_path / "run"
    import_run(out, published(tmp_path / "files"))
    with pytest.raises(UserError, match=r"exists already; .* --force"):
        import_run(out, published(tmp_path / "files"))
    with locked(out), pytest.raises(UserError, match="by another process"):
        import_run(out, published(tmp_path / "files"), force=True)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"notes\.txt, which aoq did not write"):
        import_run(out, published(tmp_path / "files", "bfan"), force=True)
    (out / "notes.txt").unlink()
    run = import_run(out, published(tmp_path / "files", "bfan"), force=True)
    assert load_recipe(run.config).model.name == "bfan"


def test_killed_while_the_old_run_is_removed_the_one_in_place_is_whole(tmp_path, monkeypatch):
    out = tmp_path / "run"
    import_run(out, published(tmp_path / "files"))

    def killed(folder, **_):
        for config in list(Path(folder).rglob("config.toml")):
            config.unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            import_run(out, published(tmp_path / "files", "bfan"), force=True)
    assert load_recipe(RunDirectory(out).config).model.name == "bfan"
    assert load_run(out).tokenizer == VOCABULARY
    import_run(out, published(tmp_path / "files"), force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"files", "run"}


def test_the_old_run_comes_back_where_the_imported_one_cannot_take_its_place(tmp_path, monkeypatch):
    out, replace = tmp_path / "run", Path.replace
    import_run(out, published(tmp_path / "files"))

    def files():
        return sorted(path for path in tmp_path.rglob("*") if path.name != ".lock")

    before = files()

    def full(path, target):
        if target == out and path.suffix == ".part":
            raise OSError("no space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        import_run(out, published(tmp_path / "files"), force=True)
    assert files() == before
    assert load_run(out).tokenizer == VOCABULARY


def test_a_run_survives_a_refused_import_with_force(tmp_path):
    files = published(tmp_path / "files")
    import_run(tmp_path / "run", files)
    files.checkpoint.write_bytes(b"")
    with pytest.raises(UserError, match="truncated"):
        import_run(tmp_path / "run", files, force=True)
    assert load_run(tmp_path / "run").tokenizer == VOCABULARY


def test_a_folder_that_is_not_a_run_is_never_replaced(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    for out in (tmp_path / "letters", tmp_path / "letters" / "dear.txt"):
        with pytest.raises(UserError, match="aoq did not write it as its run"):
            import_run(out, published(tmp_path / "files"), force=True)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "dear"


def test_a_run_that_holds_the_files_is_not_replaced_by_them(tmp_path):
    import_run(tmp_path / "run", published(tmp_path / "files"))
    inside = published(tmp_path / "run")
    with pytest.raises(UserError, match="which is an input"):
        import_run(tmp_path / "run", inside, force=True)
    assert inside.checkpoint.exists()


# Candidate lists


def test_lists_are_stored_with_the_run_and_train_round_two(tmp_path, precomp):
    lists = published_lists(precomp, depth_texts=20, depth_images=8)
    run = import_run(tmp_path / "run", published(tmp_path / "files", **lists), data=precomp)
    stored = CandidateLists.load(run.candidates)
    np.testing.assert_array_equal(stored.i2t, lists["i2t"])
    np.testing.assert_array_equal(stored.t2i, lists["t2i"])
    assert np.isnan(stored.i2t_scores).all()
    assert stored.t2i_scores.shape == (60, 8)
    assert stored.provenance.teacher == "unknown"
    dataset = open_dataset(precomp, "train")
    stored.require_fit(dataset, source="lists")
    config = SamplingConfig(depth_texts=20, depth_images=8)
    sampler = OfflineSampler(stored, dataset.positives, config=config, seed=0)
    drawn = sampler.draw(np.array([0, 3]), np.array([1, 15]), epoch=0, step=0)
    assert drawn.texts[0] in lists["i2t"][0]
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "two", recipe, data, which="two", candidates=run.candidates)
    assert RunDirectory(tmp_path / "two").model.exists()


def test_lists_that_end_with_positives_are_cut_and_that_is_said(tmp_path, precomp, capsys):
    files = published(tmp_path / "files", **published_lists(precomp))
    run = import_run(tmp_path / "run", files, data=precomp)
    stored = CandidateLists.load(run.candidates)
    assert (stored.depth_texts, stored.depth_images) == (55, 11)
    stored.require_fit(open_dataset(precomp, "train"), source="lists")
    said = capsys.readouterr().err
    assert "cut to 55 texts of 60" in said
    assert "cut to 11 images of 12" in said


def damage(lists, precomp, kind):
    i2t, t2i = lists["i2t"], lists["t2i"]
    if kind == "expected 0 to 59":
        i2t[4, 2] = 60
    elif kind == "row 2, rank 0 holds 11":
        i2t[2, 0] = 11
    elif kind == "row 30, rank 3 holds 6":
        t2i[30, 3] = 6
    elif kind == "int64":
        i2t = i2t.astype(np.int64)
    elif kind == "one row for each of 12":
        i2t = i2t[:-1]
    elif kind == "int32 (480,)":
        t2i = t2i.reshape(-1)
    elif kind == "holds empty lists":
        t2i = t2i[:, :0]
    elif kind == "not a NumPy array of numbers":
        i2t = i2t.astype(object)
    return {"i2t": i2t, "t2i": t2i}


@pytest.mark.parametrize(
    "kind",
    [
        "expected 0 to 59",
        "row 2, rank 0 holds 11",
        "row 30, rank 3 holds 6",
        "int64",
        "one row for each of 12",
        "int32 (480,)",
        "holds empty lists",
        "not a NumPy array of numbers",
    ],
)
def test_lists_that_cannot_be_of_the_data_set_are_refused(tmp_path, precomp, kind):
    lists = damage(published_lists(precomp, depth_texts=20, depth_images=8), precomp, kind)
    assert kind in refusal(tmp_path, published(tmp_path / "files", **lists), data=precomp)


def test_truncated_and_missing_lists_are_refused(tmp_path, precomp):
    files = published(tmp_path / "files", **published_lists(precomp))
    files.t2i.write_bytes(files.t2i.read_bytes()[:-5])
    assert "truncated or damaged" in refusal(tmp_path, files, data=precomp)
    files.t2i.unlink()
    assert "t2i_x_precomp.npy does not exist" in refusal(tmp_path, files, data=precomp)


def test_lists_come_both_and_with_their_data(tmp_path, precomp):
    lists = published_lists(precomp)
    assert "add --data" in refusal(tmp_path, published(tmp_path / "files", **lists))
    alone = published(tmp_path / "files", i2t=lists["i2t"])
    assert "both --i2t and --t2i" in refusal(tmp_path, alone, data=precomp)


# The byte-string trap


def test_words_of_byte_strings_are_warned_about_and_explained(tmp_path, capsys):
    words = Vocabulary((*SPECIAL_WORDS, "b'a", "b'two", *WORDS))
    import_run(tmp_path / "run", published(tmp_path / "files", "vsrn_coco", vocabulary=words))
    said = capsys.readouterr().err
    assert '2 of 17 words are like "b\'a"' in said
    assert "never the plain first words of captions" in said


def test_captions_that_are_byte_strings_are_warned_about(tmp_path, precomp, capsys):
    path = precomp / "train_caps.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(f"b'{line}'" for line in lines) + "\n")
    import_run(tmp_path / "run", published(tmp_path / "files"), data=precomp)
    said = capsys.readouterr().err
    assert "train_caps.txt, line 1" in said
    assert "60 such captions in all" in said
