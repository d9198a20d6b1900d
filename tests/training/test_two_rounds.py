"""The stages of a recipe, what it leaves out, and the guards and the log of a round."""

from __future__ import annotations

import signal
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from aoq.config import LossConfig
from aoq.data.collate import Collator
from aoq.data.splits import open_dataset
from aoq.data.vocabulary import Vocabulary
from aoq.errors import UserError
from aoq.recipes import load_recipe
from aoq.runs.checkpoint import load_own_model, load_run, load_weights, save_weights
from aoq.runs.directory import RunDirectory
from aoq.runs.judge import evaluate_run
from aoq.runs.mine import mine_run
from aoq.runs.summary import RunSummary
from aoq.storage import append_json_line, locked, read_json_lines
from aoq.training import round as round_module
from aoq.training.inputs import TrainingData, open_training_data
from aoq.training.statistics import CollapseWatch
from aoq.training.two_rounds import run_recipe, train_round
from aoq.types import Encoding
from aoq.web.history import curves
from tests.conftest import write_precomp
from tests.kills import KilledError
from tests.training.cases import assert_same_weights, small_recipe, validations, weights


def events(path, kind):
    lines = read_json_lines(RunDirectory(path).events)
    return [line for line in lines if line["event"] == kind]


def with_round_two(recipe, **changes):
    return replace(recipe, round_two=replace(recipe.round_two, **changes))


def test_the_online_baseline_is_round_one_alone(tmp_path, precomp):
    recipe = replace(small_recipe(precomp), rounds="one")
    result = run_recipe(tmp_path / "run", recipe)
    assert result["split"] == "test"
    assert not (tmp_path / "run" / "round-two").exists()
    assert not RunDirectory(tmp_path / "run").candidates.exists()
    both = small_recipe(precomp)
    run_recipe(tmp_path / "both", both)
    assert_same_weights(tmp_path / "run" / "round-one", tmp_path / "both" / "round-one")


def test_with_a_teacher_s_lists_there_is_no_round_one(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "teacher", recipe)
    lists = RunDirectory(tmp_path / "teacher").candidates
    student = replace(
        recipe, candidates=str(lists), model=replace(recipe.model, name="bfan", focal="equal")
    )
    run_recipe(tmp_path / "student", student)
    assert not (tmp_path / "student" / "round-one").exists()
    assert (tmp_path / "student" / "round-two" / "model.safetensors").is_file()
    own = replace(recipe, candidates=str(lists))
    run_recipe(tmp_path / "own", own)
    assert_same_weights(tmp_path / "own" / "round-two", tmp_path / "teacher" / "round-two")


def test_fine_tuning_starts_from_the_best_weights_of_round_one(tmp_path, precomp):
    recipe = with_round_two(small_recipe(precomp), start_from="round_one", learning_rate=1e-12)
    run_recipe(tmp_path / "run", recipe)
    one = load_run(tmp_path / "run" / "round-one").model.state_dict()
    two = load_run(tmp_path / "run" / "round-two").model.state_dict()
    for name, value in one.items():
        if "running" not in name and "tracked" not in name:
            torch.testing.assert_close(two[name], value, atol=1e-6, rtol=0)
    data = open_training_data(recipe)
    with pytest.raises(UserError, match="--start"):
        train_round(
            tmp_path / "alone",
            recipe,
            data,
            which="two",
            candidates=RunDirectory(tmp_path / "run").candidates,
        )


def test_a_fine_tuned_round_is_not_continued_from_other_weights(tmp_path, precomp):
    recipe = with_round_two(small_recipe(precomp), start_from="round_one")
    run_recipe(tmp_path / "run", recipe)
    run_recipe(tmp_path / "other", replace(recipe, seed=5))
    with pytest.raises(UserError, match="started with another weights"):
        train_round(
            tmp_path / "run" / "round-two",
            recipe,
            open_training_data(recipe),
            which="two",
            candidates=RunDirectory(tmp_path / "run").candidates,
            start=tmp_path / "other" / "round-one",
        )


def test_a_round_gives_up_when_validation_no_longer_improves(tmp_path, precomp):
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_one, epochs=30, patience=2, learning_rate=1e-9)
    recipe = replace(recipe, round_one=settings)
    data = open_training_data(recipe)
    state = train_round(tmp_path / "run", recipe, data, which="one")
    rsums = [line["rsum"] for line in validations(tmp_path / "run")]
    assert state.epoch == len(rsums) < 30
    assert max(rsums[-2:]) <= max(rsums[:-2])
    (stopped,) = events(tmp_path / "run", "stopped_early")
    assert stopped["epoch"] == state.epoch
    again = train_round(tmp_path / "run", recipe, data, which="one")
    assert again == state
    assert len(events(tmp_path / "run", "stopped_early")) == 1


def test_a_kill_before_an_early_end_is_logged_does_not_hide_it(tmp_path, precomp):
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_one, epochs=30, patience=1, learning_rate=1e-9)
    recipe = replace(recipe, round_one=settings)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one")
    log = RunDirectory(tmp_path / "run").events
    *lines, last = read_json_lines(log)
    assert last["event"] == "stopped_early"
    log.unlink()
    for line in lines:
        append_json_line(log, line)
    assert RunSummary.read(tmp_path / "run").stage == "training"
    train_round(tmp_path / "run", recipe, data, which="one")
    assert RunSummary.read(tmp_path / "run").stage == "stopped early"


def test_a_round_does_not_go_on_with_other_words(tmp_path, precomp):
    """As another version of the tokenizer would give."""
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one")
    other = replace(data, vocabulary=Vocabulary(data.vocabulary.words[::-1]))
    with pytest.raises(UserError, match="started with another vocabulary"):
        train_round(tmp_path / "run", recipe, other, which="one")


def test_a_signal_in_the_last_validation_does_not_hide_that_the_round_gave_up(
    tmp_path, precomp, monkeypatch
):
    """A stop between the validation and the end waits for what is to be written."""
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_one, epochs=30, patience=1, learning_rate=1e-9)
    recipe = replace(recipe, round_one=replace(settings, validate_every=1))
    data, real = open_training_data(recipe), round_module.save_trainer

    signals = iter([signal.SIGINT])

    def interrupted(path, model, optimizer, state, **options):
        if state.waited:
            for number in signals:
                signal.raise_signal(number)
        real(path, model, optimizer, state, **options)

    monkeypatch.setattr(round_module, "save_trainer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_round(tmp_path / "run", recipe, data, which="one")
    assert len(events(tmp_path / "run", "stopped_early")) == 1


def test_a_stop_in_a_validation_does_not_wait_for_it_and_it_is_done_again(
    tmp_path, precomp, monkeypatch
):
    """The scores of dev decide which weights are kept: a validation that is cut off counts."""
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_one, validate_every=2, checkpoint_every=100)
    recipe = replace(recipe, round_one=settings)
    data, real = open_training_data(recipe), round_module.evaluate
    state = train_round(tmp_path / "whole", recipe, data, which="one")
    finished, count = [], 0

    def interrupted(*args, **options):
        nonlocal count
        count += 1
        if count in (1, 4):
            signal.raise_signal(signal.SIGINT)
        finished.append(count)
        return real(*args, **options)

    monkeypatch.setattr(round_module, "evaluate", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train_round(tmp_path / "stopped", recipe, data, which="one")
    assert finished == [2, 3]
    assert train_round(tmp_path / "stopped", recipe, data, which="one") == state
    assert validations(tmp_path / "stopped") == validations(tmp_path / "whole")
    assert_same_weights(tmp_path / "stopped", tmp_path / "whole")


def test_a_stop_between_the_steps_and_the_validation_keeps_the_loss_of_the_epoch(
    tmp_path, precomp, monkeypatch
):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    with monkeypatch.context() as patch:
        patch.setattr(round_module, "evaluate", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_round(tmp_path / "run", recipe, data, which="one")
    train_round(tmp_path / "run", recipe, data, which="one")
    first, again, *_ = events(tmp_path / "run", "epoch")
    assert (first["epoch"], again["epoch"], again["steps"]) == (1, 1, 0)
    assert first["loss"]
    assert not again["loss"]
    (curve,) = curves(tmp_path / "run").rounds
    assert all(epoch.loss is not None for epoch in curve.epochs)


def test_parts_of_a_step_add_up_to_its_gradient(tmp_path, precomp):
    """Without in-batch negatives, the parts know all that the whole knows."""
    recipe = small_recipe(precomp)
    recipe = replace(recipe, model=replace(recipe.model, name="vse"))
    data = open_training_data(recipe)
    train_round(tmp_path / "teacher", recipe, data, which="one")
    mine_run(tmp_path / "teacher", tmp_path / "lists.safetensors")
    final = []
    for parts in (1, 3):
        settings = {"loss": LossConfig(name="only_offline"), "accumulate": parts, "epochs": 1}
        train_round(
            tmp_path / f"{parts}",
            with_round_two(recipe, **settings),
            data,
            which="two",
            candidates=tmp_path / "lists.safetensors",
        )
        final.append(weights(tmp_path / f"{parts}"))
    for name, value in final[0].items():
        torch.testing.assert_close(final[1][name], value, atol=1e-5, rtol=1e-4)


def test_the_log_tells_terms_active_hinges_scores_and_weights(tmp_path, precomp):
    recipe = with_round_two(small_recipe(precomp), log_every=2)
    run_recipe(tmp_path / "run", recipe)
    lines = events(tmp_path / "run" / "round-two", "steps")
    assert [line["step"] for line in lines[:2]] == [2, 4]
    for line in lines:
        terms = {f"{side}_{kind}" for side in ("i2t", "t2i") for kind in ("online", "derived")}
        assert terms <= set(line["loss"])
        assert terms <= set(line["active"])
        assert set(line["scores"]) == {"positive", "online", "offline"}
        assert 0 <= line["weights"]["below_zero"] <= 1
    assert "weights" not in events(tmp_path / "run" / "round-one", "steps")[0]


def test_a_collapsed_loss_is_told_once_with_what_to_do_and_at_the_end(
    tmp_path, precomp, monkeypatch, capsys
):
    monkeypatch.setattr(
        CollapseWatch,
        "for_epochs_of",
        classmethod(lambda cls, n_steps, *, margin: cls(margin, patience=3)),
    )
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_one, learning_rate=1e-12)
    model = replace(recipe.model, name="own")

    class Constant(nn.Module):
        """Scores everything alike."""

        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.zeros(1))

        def encode_images(self, regions):
            return Encoding(torch.ones(len(regions), 2) + self.value)

        def encode_texts(self, texts):
            return Encoding(torch.ones(len(texts.tokens), 2) + self.value)

        def score_matrix(self, images, texts):
            return images.vectors @ texts.vectors.T

        def score_pairs(self, images, texts):
            return (images.vectors * texts.vectors).sum(dim=1)

    recipe = replace(recipe, round_one=settings, model=model)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one", make_model=Constant)
    assert len(events(tmp_path / "run", "collapsed")) == 2  # when it is seen, and at the end
    message = " ".join(capsys.readouterr().err.split())
    assert message.count("2 x batch x margin") == 1
    assert message.count("ended on the plateau") == 1
    assert RunSummary.read(tmp_path / "run").collapsed
    assert "warmup-epochs" in message


def test_a_run_of_one_s_own_model_can_only_be_opened_by_who_brings_it(tmp_path, precomp):
    recipe = replace(small_recipe(precomp), rounds="one")
    data = open_training_data(recipe)
    build = data.builder(recipe.model)
    run_recipe(tmp_path / "run", recipe, data=data, make_model=build)
    with pytest.raises(UserError, match="make_model"):
        load_run(tmp_path / "run" / "round-one")
    model = load_own_model(tmp_path / "run" / "round-one", build)
    assert not model.training
    plain = run_recipe(tmp_path / "plain", recipe)
    own = run_recipe(tmp_path / "run", recipe, data=data, make_model=build)
    assert own["rsum"] == plain["rsum"]


def test_data_that_no_model_of_the_library_reads_ask_for_one_that_does(tmp_path, precomp):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    bare = TrainingData(
        train=Collator(data.train.dataset, lambda caption: [1, 2]),
        dev=Collator(data.dev.dataset, lambda caption: [1, 2]),
    )
    with pytest.raises(UserError, match="make_model"):
        run_recipe(tmp_path / "run", recipe, data=bare)


def test_the_images_of_a_batch_that_breaks_the_loss_are_named(tmp_path, precomp):
    features = np.load(precomp / "train_ims.npy")
    recipe = replace(small_recipe(precomp), rounds="one")
    data = open_training_data(recipe)
    features[3] = np.nan  # after the check
    broken = replace(data.train.dataset, features=features)
    data = replace(data, train=data.train.with_dataset(broken))
    with pytest.raises(UserError, match="no longer finite") as error:
        train_round(tmp_path / "run", recipe, data, which="one")
    (line,) = events(tmp_path / "run", "not_finite")
    assert len(line["images"]) == len(line["captions"]) == recipe.round_one.batch_size
    assert broken.image_ids[3] in line["images"]
    assert line["images"][0] in str(error.value)


def test_weights_that_are_shared_or_turned_are_kept(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(4, 3)
            self.output = nn.Linear(3, 4, bias=False)
            self.output.weight = self.words.weight
            self.turned = nn.Parameter(torch.randn(2, 3).T)

    first, second = Tied(), Tied()
    save_weights(tmp_path / "model.safetensors", first, feature_width=None)
    load_weights(tmp_path / "model.safetensors", second)
    for name, value in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], value)
    assert second.output.weight is second.words.weight


def test_patience_within_an_epoch_ends_there_and_a_continued_round_ends_alike(
    tmp_path, precomp, monkeypatch
):
    recipe = small_recipe(precomp)
    settings = replace(
        recipe.round_one, epochs=30, patience=2, validate_every=1, learning_rate=1e-9
    )
    recipe = replace(recipe, round_one=replace(settings, checkpoint_every=1))
    data = open_training_data(recipe)
    state = train_round(tmp_path / "whole", recipe, data, which="one")
    assert state.waited == 2
    assert len(events(tmp_path / "whole", "stopped_early")) == 1

    real, count = round_module.evaluate, 0

    def dying(*args, **options):
        nonlocal count
        count += 1
        if count == 3:
            raise KilledError
        return real(*args, **options)

    monkeypatch.setattr(round_module, "evaluate", dying)
    with pytest.raises(KilledError):
        train_round(tmp_path / "killed", recipe, data, which="one")
    assert train_round(tmp_path / "killed", recipe, data, which="one") == state
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


def test_a_round_without_a_single_step_is_refused(tmp_path, precomp):
    recipe = small_recipe(precomp)
    settings = replace(recipe.round_one, batch_size=400, accumulate=100)
    recipe = replace(recipe, round_one=settings)
    with pytest.raises(UserError, match="fewer than 2 pairs"):
        train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")


def test_force_looks_at_what_a_run_reads_before_it_removes_anything(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)
    lists = tmp_path / "other" / ".." / "run" / "candidates.safetensors"
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="which is an input"):
        run_recipe(tmp_path / "run", replace(recipe, candidates=str(lists)), force=True)
    elsewhere = write_precomp(tmp_path / "elsewhere", seed=9)
    wrong = replace(small_recipe(elsewhere), candidates=str(lists.resolve()))
    run_recipe(tmp_path / "victim", recipe)
    with pytest.raises(UserError, match="another data set"):
        run_recipe(tmp_path / "victim", wrong, force=True)
    assert (tmp_path / "victim" / "round-two" / "model.safetensors").is_file()
    with pytest.raises(UserError, match="another data set"):
        run_recipe(tmp_path / "fresh", wrong)
    assert not (tmp_path / "fresh").exists()


def test_force_removes_nothing_for_a_run_that_cannot_be(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)
    data = replace(open_training_data(recipe), vocabulary=None)
    with pytest.raises(UserError, match="bring a model that reads them"):
        run_recipe(tmp_path / "run", recipe, data=data, force=True)
    own = replace(recipe, model=replace(recipe.model, name="own"))
    with pytest.raises(UserError, match="built by your own program"):
        run_recipe(tmp_path / "run", own, force=True)
    round_one = tmp_path / "run" / "round-one"
    with pytest.raises(UserError, match="built by your own program"):
        train_round(round_one, own, open_training_data(recipe), which="one", force=True)
    for name in ("round-one", "round-two"):
        assert (tmp_path / "run" / name / "model.safetensors").is_file()


def test_force_does_not_take_a_run_from_who_is_training_it(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)
    with locked(tmp_path / "run"), pytest.raises(UserError, match="by another process"):
        run_recipe(tmp_path / "run", recipe, force=True)
    assert (tmp_path / "run" / "round-two" / "model.safetensors").is_file()
    run_recipe(tmp_path / "run", recipe, force=True)


def test_harmless_changes_continue_a_run_and_others_are_named(tmp_path, precomp):
    recipe = small_recipe(precomp)
    result = run_recipe(tmp_path / "run", recipe)
    moved = precomp.rename(tmp_path / "moved")
    later = replace(
        recipe,
        data=str(moved),
        mining=replace(recipe.mining, memory="1GiB"),
        round_one=replace(recipe.round_one, log_every=3, checkpoint_every=2),
    )
    assert run_recipe(tmp_path / "run", later) == result
    other = with_round_two(later, epochs=4, loss=LossConfig(name="adap_off_quin", alpha=0.4))
    with pytest.raises(UserError, match=r"round_two\.loss\.alpha, round_two\.epochs") as error:
        run_recipe(tmp_path / "run", other)
    assert "log_every" not in str(error.value)


def configs(run):
    return [load_recipe(config) for config in sorted(run.rglob("config.toml"))]


def test_a_run_that_goes_on_knows_where_its_data_are_now(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)
    train_round(tmp_path / "round", recipe, open_training_data(recipe), which="one")
    moved = precomp.rename(tmp_path / "moved")
    later = replace(recipe, data=str(moved))
    run_recipe(tmp_path / "run", later)
    train_round(tmp_path / "round", later, open_training_data(later), which="one")
    assert configs(tmp_path / "run") == [later] * 3
    assert configs(tmp_path / "round") == [later]
    for run in ("run", "round"):
        assert evaluate_run(tmp_path / run).rsum > 0


def test_other_data_are_refused_and_leave_no_trace_in_the_recipe(tmp_path, precomp):
    recipe = replace(small_recipe(precomp), rounds="one")
    run_recipe(tmp_path / "run", recipe)
    before = configs(tmp_path / "run")
    other = replace(recipe, data=str(write_precomp(tmp_path / "other", seed=9)))
    with pytest.raises(UserError, match="started with another data"):
        run_recipe(tmp_path / "run", other)
    assert configs(tmp_path / "run") == before


def test_a_folder_is_never_a_round_and_a_run_at_once(tmp_path, precomp):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "round", recipe, data, which="one")
    with pytest.raises(UserError, match=r"round holds a single round, .* add --force"):
        run_recipe(tmp_path / "round", recipe)
    assert not (tmp_path / "round" / "round-one").exists()
    run_recipe(tmp_path / "run", recipe)
    with pytest.raises(UserError, match=r"run holds a run of a whole recipe, .* add --force"):
        train_round(tmp_path / "run", recipe, data, which="one")
    assert not RunDirectory(tmp_path / "run").model.exists()
    train_round(tmp_path / "run", recipe, data, which="one", force=True)
    assert not (tmp_path / "run" / "round-two").exists()


def test_a_run_that_mines_does_not_go_on_with_given_lists_nor_the_other_way_round(
    tmp_path, precomp
):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "mines", recipe)
    lists = RunDirectory(tmp_path / "mines").candidates
    given = replace(recipe, candidates=str(lists))
    with pytest.raises(UserError, match=r"other settings \(candidates;"):
        run_recipe(tmp_path / "mines", given)
    run_recipe(tmp_path / "given", given)
    with pytest.raises(UserError, match=r"other settings \(candidates;"):
        run_recipe(tmp_path / "given", recipe)
    moved = lists.rename(tmp_path / "moved.safetensors")
    run_recipe(tmp_path / "given", replace(recipe, candidates=str(moved)))


def test_a_round_goes_on_with_the_same_lists_whoever_names_them(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)
    lists = RunDirectory(tmp_path / "run").candidates
    data = open_training_data(recipe)
    state = train_round(tmp_path / "two", recipe, data, which="two", candidates=lists)
    named = replace(recipe, candidates=str(lists))
    assert train_round(tmp_path / "two", named, data, which="two") == state


def test_folders_and_files_may_be_named_by_text(tmp_path, precomp):
    recipe = replace(small_recipe(precomp), rounds="one")
    data = open_training_data(recipe)
    run, last = str(tmp_path / "run"), str(tmp_path / "run" / "round-one")
    result = run_recipe(run, recipe)
    assert evaluate_run(run, data=str(precomp)).rsum == pytest.approx(result["rsum"])
    expected = load_run(tmp_path / "run" / "round-one").model.state_dict()
    own = load_own_model(last, data.builder(recipe.model)).state_dict()
    for state in (load_run(last).model.state_dict(), own):
        assert all(torch.equal(state[name], value) for name, value in expected.items())
    lists = mine_run(run, str(tmp_path / "lists.safetensors"))
    again = mine_run([last], tmp_path / "again", proposals=str(tmp_path / "lists.safetensors"))
    np.testing.assert_array_equal(again.i2t, lists.i2t)
    opened = open_dataset(str(precomp), "train")
    assert opened.fingerprint == data.train.dataset.fingerprint


def test_a_finished_run_is_left_as_it_is(tmp_path, precomp):
    recipe = small_recipe(precomp)
    run_recipe(tmp_path / "run", recipe)

    def files():
        paths = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
        return {path: path.read_bytes() for path in paths}

    before = files()
    run_recipe(tmp_path / "run", recipe)
    assert files() == before


def test_a_folder_is_trained_by_one_program_at_a_time(tmp_path, precomp):
    recipe = small_recipe(precomp)
    data = open_training_data(recipe)
    train_round(tmp_path / "run", recipe, data, which="one")
    with locked(tmp_path / "run"), pytest.raises(UserError, match="by another process"):
        train_round(tmp_path / "run", recipe, data, which="one")
    train_round(tmp_path / "run", recipe, data, which="one")


def test_scores_are_float32_where_encoders_are_not(tmp_path, precomp):
    seen = set()

    class Careless(nn.Module):
        """Scores in whatever precision it is given."""

        def __init__(self):
            super().__init__()
            self.images, self.words = nn.Linear(6, 4), nn.Embedding(40, 4)

        def encode_images(self, regions):
            return Encoding(self.images(regions.mean(dim=1)))

        def encode_texts(self, texts):
            return Encoding(self.images.weight.new_zeros(1) + self.words(texts.tokens).mean(dim=1))

        def score_matrix(self, images, texts):
            matrix = images.vectors @ texts.vectors.T
            seen.add(matrix.dtype)
            return matrix

        def score_pairs(self, images, texts):
            return (images.vectors * texts.vectors).sum(dim=1)

    recipe = small_recipe(precomp)
    recipe = replace(recipe, round_one=replace(recipe.round_one, epochs=1, precision="bfloat16"))
    recipe = replace(recipe, model=replace(recipe.model, name="own"))
    train_round(
        tmp_path / "run", recipe, open_training_data(recipe), which="one", make_model=Careless
    )
    assert seen == {torch.float32}
