"""Re-ranking against the full matrix of the proposed pairs: exact, in parts, continued, by rule."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.config import MiningConfig
from aoq.distributed import Processes
from aoq.errors import UserError
from aoq.mining import rerank as rerank_module
from aoq.mining.agreement import Agreement, agreement
from aoq.mining.candidates import CandidateLists, Provenance, check_lists
from aoq.mining.mine import mine, mine_in_processes
from aoq.mining.proposals import ProposedMatrix
from aoq.mining.score_matrix import ScoreMatrix
from aoq.mining.toplists import NO_KEY, ids_of
from aoq.runs.directory import RunDirectory
from aoq.runs.mine import mine_run
from aoq.scoring.cross_attention import Attention, CrossAttention
from aoq.scoring.encoded import EncodedDataset, PackedEncoding
from aoq.scoring.ensemble import Ensemble
from aoq.scoring.inner_product import InnerProduct
from aoq.storage import read_json_lines
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from aoq.types import Encoding
from tests.commands import aoq
from tests.conftest import write_precomp
from tests.kills import KilledError
from tests.mining.cases import (
    NOWHERE,
    assert_close,
    best_of_rows,
    encoded_from,
    five_texts_an_image,
    matrix_of,
    negatives_of,
    proposed_pairs,
    threads,
)
from tests.mining.processes import run_in_threads
from tests.mining.rule_cases import COMBINATIONS, RULES, Case, Reference, case_of
from tests.training.cases import small_recipe

N_IMAGES, N_TEXTS = 30, 150
POSITIVES = five_texts_an_image(N_IMAGES, N_TEXTS)
MATRIX = matrix_of("without order", N_IMAGES, N_TEXTS)
CONFIG = MiningConfig(depth_texts=12, depth_images=5)


def proposals_of(matrix, positives, *, depth_texts, depth_images):
    """What a model with these scores proposes."""
    full = negatives_of(matrix, positives)
    i2t, t2i = best_of_rows(full, depth_texts), best_of_rows(full.T, depth_images)
    return CandidateLists(
        i2t.astype(np.int32),
        np.take_along_axis(full, i2t, axis=1),
        t2i.astype(np.int32),
        np.take_along_axis(full.T, t2i, axis=1),
        Provenance(teacher="the one who proposes", data=""),
    )


def some_proposals(*, depth_texts=40, depth_images=10):
    """Proposals that know something of the scores."""
    other = MATRIX + matrix_of("without order", N_IMAGES, N_TEXTS, seed=1)
    return proposals_of(other, POSITIVES, depth_texts=depth_texts, depth_images=depth_images)


ALL = proposals_of(MATRIX.T[::-1].T, POSITIVES, depth_texts=145, depth_images=29)


def reranked(proposals, *, matrix=MATRIX, config=CONFIG, **settings):
    return mine_in_processes(
        InnerProduct(),
        encoded_from(matrix),
        POSITIVES,
        proposals=proposals,
        config=config,
        provenance=NOWHERE,
        **settings,
    )


def assert_same(one, other):
    """Bit by bit."""
    for name in ("i2t", "i2t_scores", "t2i", "t2i_scores"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    assert one.provenance == other.provenance


# What is in the lists


@pytest.mark.parametrize("kind", ["without order", "by topic", "few scores", "one score"])
def test_proposals_that_hold_everything_give_the_exact_lists(kind):
    matrix = matrix_of(kind, N_IMAGES, N_TEXTS, seed=2)
    exact = mine(InnerProduct(), encoded_from(matrix), POSITIVES, config=CONFIG, provenance=NOWHERE)
    lists = reranked(ALL, matrix=matrix).lists
    assert_same(lists, replace(exact, provenance=lists.provenance))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 60), st.integers(1, 29), st.integers(1, 40), st.integers(0, 99))
def test_lists_are_the_top_of_what_either_side_proposes(
    depth_texts, depth_images, images_at_once, seed
):
    other = matrix_of("without order", N_IMAGES, N_TEXTS, seed=seed)
    proposals = proposals_of(other, POSITIVES, depth_texts=depth_texts, depth_images=depth_images)
    config = MiningConfig(depth_texts=min(7, depth_texts), depth_images=min(3, depth_images))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rerank_module, "_IMAGES_AT_ONCE", images_at_once)
        lists = reranked(proposals, config=config).lists
    among = np.where(proposed_pairs(proposals), negatives_of(MATRIX, POSITIVES), -np.inf)
    np.testing.assert_array_equal(lists.i2t, best_of_rows(among, config.depth_texts))
    np.testing.assert_array_equal(lists.t2i, best_of_rows(among.T, config.depth_images))
    np.testing.assert_array_equal(
        lists.i2t_scores, np.take_along_axis(MATRIX, lists.i2t.astype(np.int64), axis=1)
    )


class Slow(CrossAttention):
    """Attends both ways, as BFAN does."""

    def __init__(self):
        attention = Attention(temperature=9.0, focal="equal")
        self.attentions = {"t2i": attention, "i2t": attention}


def regions_and_words(seed=0):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (N_TEXTS,), generator=random)
    words = torch.randn(int(lengths.sum()), 6, generator=random)
    return EncodedDataset(
        Encoding(torch.randn(N_IMAGES, 4, 6, generator=random)), PackedEncoding(words, lengths)
    )


@pytest.mark.parametrize("taken_out", [1, 64 * 2**20])
def test_cross_attention_and_ensembles_of_it_are_re_ranked(monkeypatch, taken_out):
    monkeypatch.setattr("aoq.mining.proposals._TAKEN_OUT", taken_out)
    parts = [regions_and_words(0), regions_and_words(1)]
    scorer, encoded = Ensemble([Slow(), Slow()]), Ensemble.join(parts)
    matrix = scorer.score_matrix(encoded.images[:], encoded.texts[:]).numpy()
    lists = mine_in_processes(
        scorer, encoded, POSITIVES, proposals=ALL, config=CONFIG, provenance=NOWHERE
    ).lists
    assert_close(lists, matrix, POSITIVES)


def test_every_proposed_pair_is_scored_once_and_no_other(monkeypatch):
    pairs = []
    real = ProposedMatrix.score

    def spied(matrix, anchor, candidates):
        pairs.extend((anchor, candidate) for candidate in candidates.tolist())
        return real(matrix, anchor, candidates)

    monkeypatch.setattr(ProposedMatrix, "score", spied)
    proposals = some_proposals()
    reranked(proposals)
    expected = np.argwhere(proposed_pairs(proposals)).tolist()
    assert sorted(pairs) == list(map(tuple, expected))


def test_a_matrix_ranks_what_is_proposed_within_the_candidates_it_is_asked_for():
    proposals, some = some_proposals(), slice(7, 19)
    matrix = ScoreMatrix.of(
        "t2i", scorer=InnerProduct(), encoded=encoded_from(MATRIX), positives=POSITIVES
    )
    matrix = ProposedMatrix.restrict(matrix, proposals, at_most=64)
    anchors = np.array([3, 90, 149])
    lists = matrix.rank(anchors, depth=3, block_size=8, candidates=some)
    among = np.where(proposed_pairs(proposals), negatives_of(MATRIX, POSITIVES), -np.inf).T
    among[:, : some.start] = among[:, some.stop :] = -np.inf
    keys = lists.best(slice(0, 3))
    for row, best in zip(among[anchors], keys, strict=True):
        expected = [image for image in best_of_rows(row[None], 3)[0] if np.isfinite(row[image])]
        assert ids_of(best[best != NO_KEY]).tolist() == expected
    assert (keys != NO_KEY).any()


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_threads_changes_no_bit(count):
    encoded = regions_and_words()
    settings = {"config": CONFIG, "provenance": NOWHERE}
    proposals = some_proposals()
    settings |= {"proposals": proposals}
    with threads(2):
        expected = mine_in_processes(Slow(), encoded, POSITIVES, **settings).lists
    with threads(count):
        assert_same(mine_in_processes(Slow(), encoded, POSITIVES, **settings).lists, expected)


def test_lists_say_who_ranked_and_who_proposed():
    provenance = Provenance(teacher="slow", data="some")
    config = replace(CONFIG, precision="bfloat16", skip_first=1)
    lists = mine_in_processes(
        InnerProduct(),
        encoded_from(MATRIX),
        POSITIVES,
        proposals=some_proposals(),
        config=config,
        provenance=provenance,
    ).lists
    assert lists.provenance == Provenance(
        teacher="slow",
        data="some",
        rules=("skip first 1",),
        proposals="the one who proposes",
        precision="bfloat16",
    )


# Rules


@pytest.mark.parametrize("rules", COMBINATIONS, ids=" ".join)
def test_rules_leave_of_everything_proposed_what_they_leave_of_everything(rules):
    case = case_of(40, 200, seed=3)
    config = MiningConfig(
        depth_texts=10, depth_images=5, **{name: RULES[name][1] for name in rules}
    )
    proposals = proposals_of(-case.matrix, case.positives, depth_texts=195, depth_images=39)
    mined = reranked_case(case, proposals, config)
    for side, ids in enumerate((mined.lists.i2t, mined.lists.t2i)):
        reference = Reference(case, texts_are_anchors=bool(side), config=config)
        expected, _, _, n_excused = reference.lists(reference.usable_depth(ids.shape[1]))
        np.testing.assert_array_equal(ids, expected)
        assert mined.n_excused[side] == n_excused
    exact = case.mined(**{name: RULES[name][1] for name in rules}, depth_texts=10, depth_images=5)
    assert mined.lists.provenance.rules == exact.lists.provenance.rules
    for name in mined.n_dropped:
        if "score share" not in name:  # exact mining counts only what reaches a list
            assert mined.n_dropped[name] == exact.n_dropped[name]


def reranked_case(case: Case, proposals, config):
    return mine_in_processes(
        InnerProduct(),
        encoded_from(case.matrix),
        case.positives,
        proposals=proposals,
        config=config,
        provenance=NOWHERE,
        captions=case.captions,
    )


def test_a_struck_pair_counts_once_whoever_proposes_it():
    captions = [f"caption {number}" for number in range(N_TEXTS)]
    proposals = some_proposals()
    by_image = np.zeros((N_IMAGES, N_TEXTS), dtype=bool)
    np.put_along_axis(by_image, proposals.i2t.astype(np.int64), True, axis=1)
    by_text = proposed_pairs(replace(proposals, i2t=proposals.i2t[:, :0]))
    # An image proposes a text, a text an image, both each other, and neither the other.
    for case in (
        by_image & ~by_text,
        by_text & ~by_image,
        by_image & by_text,
        ~by_image & ~by_text,
    ):
        case[tuple(POSITIVES.pairs.T)] = False
        image, text = np.argwhere(case)[0]
        captions[text] = captions[5 * image]
    mined = reranked(proposals, config=replace(CONFIG, equal_captions=True), captions=captions)
    struck = {
        (image, text)
        for text, words in enumerate(captions)
        for image, own in enumerate(np.split(np.array(captions), N_IMAGES))
        if words in own and text // 5 != image
    }
    n_proposed = sum(proposed_pairs(proposals)[pair] for pair in struck)
    assert 0 < n_proposed < len(struck)
    assert mined.n_dropped == {"equal captions": (n_proposed, n_proposed)}


def test_an_anchor_that_rules_leave_too_few_keeps_the_best_of_its_own_proposals():
    """Everything scores above the positives, so a share of them leaves nothing."""
    matrix = np.abs(MATRIX) + 1
    matrix[tuple(POSITIVES.pairs.T)] = 0.5
    proposals = some_proposals()
    mined = reranked(proposals, matrix=matrix, config=replace(CONFIG, score_share=0.9))
    assert mined.n_excused == (N_IMAGES, N_TEXTS)
    assert_same(
        mined.lists,
        replace(reranked(proposals, matrix=matrix).lists, provenance=mined.lists.provenance),
    )


# Continued and shared


@pytest.mark.parametrize("calls", [1, 9, 17, 29])
def test_killed_and_continued_gives_the_same_lists_bit_by_bit(tmp_path, monkeypatch, capsys, calls):
    monkeypatch.setattr(rerank_module, "_IMAGES_AT_ONCE", 4)
    proposals, saved = some_proposals(), tmp_path / "half.saved"
    config = replace(CONFIG, score_share=0.9)
    expected = reranked(proposals, config=config)
    real, count = ProposedMatrix.score, 0

    def dying(matrix, anchor, candidates):
        nonlocal count
        count += 1
        if count == calls:
            raise KilledError
        return real(matrix, anchor, candidates)

    monkeypatch.setattr(ProposedMatrix, "score", dying)
    with pytest.raises(KilledError):
        reranked(proposals, config=config, saved=saved, save_every=0.0)
    continued = reranked(proposals, config=config, saved=saved, save_every=0.0)
    assert_same(continued.lists, expected.lists)
    assert continued.n_dropped == expected.n_dropped
    heard = capsys.readouterr().err
    assert ("mining continues after" in heard) == (calls > 4)


def test_what_other_proposals_left_half_finished_is_not_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(rerank_module, "_IMAGES_AT_ONCE", 4)
    saved = tmp_path / "half.saved"
    reranked(some_proposals(), saved=saved, save_every=0.0)
    assert saved.exists()
    fewer = some_proposals(depth_texts=20)
    assert_same(reranked(fewer, saved=saved).lists, reranked(fewer).lists)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_any_number_of_processes_gives_the_same_lists_and_the_same_agreement(size):
    encoded, proposals = regions_and_words(), some_proposals()
    config = replace(CONFIG, score_share=0.95)

    def work(processes):
        inputs, options = (Slow(), encoded, POSITIVES), {"config": config, "processes": processes}
        return (
            mine_in_processes(*inputs, proposals=proposals, provenance=NOWHERE, **options),
            agreement(*inputs, proposals, sample=20, **options),
        )

    (first, shares), *others = run_in_threads(size, work)
    alone, expected = work(Processes())
    assert_same(first.lists, alone.lists)
    assert (first.n_dropped, first.n_excused) == (alone.n_dropped, alone.n_excused)
    assert shares == expected
    assert others == [(None, {})] * (size - 1)


# Agreement


def test_proposals_that_hold_everything_agree_wholly():
    for part in agreement(
        Slow(), regions_and_words(), POSITIVES, ALL, config=CONFIG, sample=10
    ).values():
        assert part.found == part.found_first == 1.0


@pytest.mark.parametrize("sample", [1, 7, 1000])
def test_agreement_is_the_share_of_the_exact_lists_that_re_ranking_finds(sample):
    proposals = some_proposals(depth_texts=20, depth_images=6)
    config = MiningConfig(depth_texts=15, depth_images=5)
    parts = agreement(
        InnerProduct(), encoded_from(MATRIX), POSITIVES, proposals, config=config, sample=sample
    )
    lists, full = reranked(proposals, config=config).lists, negatives_of(MATRIX, POSITIVES)
    for found, ids, matrix, depth_first in (
        (parts["i2t"], lists.i2t, full, 10),
        (parts["t2i"], lists.t2i, full.T, 5),
    ):
        rows = np.unique(np.linspace(0, len(ids) - 1, sample).astype(int))
        assert found.n_anchors == len(rows)
        assert (found.depth, found.depth_first) == (ids.shape[1], depth_first)
        for depth, share in (
            (found.depth, found.found),
            (found.depth_first, found.found_first),
        ):
            exact = best_of_rows(matrix, depth)
            shared = [len({*exact[row]} & {*ids[row][:depth].tolist()}) for row in rows]
            assert share == pytest.approx(np.mean(shared) / depth)
            assert 0 < share < 1


def test_agreement_is_described_in_a_sentence():
    whole = Agreement("images", 100, depth=300, found=0.912, depth_first=10, found_first=0.998)
    assert whole.sentence == (
        "re-ranking found 91.2% of the 300 hardest texts of 100 sampled images, "
        "and 99.8% of the first 10"
    )


# What is refused


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"depth_texts": 41}, "leave 40 texts to image 0; expected at least 41, 41 to keep"),
        ({"depth_texts": 35, "skip_first": 6}, "expected at least 41, 35 to keep and 6 to skip"),
        ({"depth_images": 11}, "leave 10 images to text 0; expected at least 11"),
    ],
)
def test_proposals_that_are_not_deep_enough_are_refused(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        reranked(some_proposals(), config=replace(CONFIG, **changes))


def test_proposals_of_which_equal_captions_leave_too_few_are_refused():
    captions = [f"caption {number}" for number in range(N_TEXTS)]
    proposals = some_proposals(depth_texts=12)
    captions[proposals.i2t[7, 3]] = captions[35]  # a caption of image 7
    with pytest.raises(UserError, match="11 texts to image 7; expected at least 12"):
        reranked(proposals, config=replace(CONFIG, equal_captions=True), captions=captions)


def test_scores_that_are_not_numbers_are_refused():
    encoded = regions_and_words()
    encoded.images.vectors[4] = torch.nan
    with pytest.raises(UserError, match="anchor 4 gets scores that are not finite"):
        mine_in_processes(
            Slow(),
            encoded,
            POSITIVES,
            proposals=some_proposals(),
            config=CONFIG,
            provenance=NOWHERE,
        )


@pytest.mark.parametrize("size", [1, 4])
def test_a_budget_counts_the_proposals_and_the_lists_of_a_share(monkeypatch, size):
    """In bytes: ids and scores that are proposed, lists while they are filled, finished lists."""
    counted = []
    real = rerank_module.block_size_within

    def spied(memory, encoded, *, beside, blocks):
        counted.append(beside)
        return real(memory, encoded, beside=beside, blocks=blocks)

    monkeypatch.setattr(rerank_module, "block_size_within", spied)
    run_in_threads(size, lambda processes: reranked(some_proposals(), processes=processes))
    proposed = 8 * (N_IMAGES * 40 + N_TEXTS * 10)
    finished = 8 * (N_IMAGES * 12 + N_TEXTS * 5)
    shares = [Processes(rank, size).share(N_IMAGES) for rank in range(size)]
    filled = [
        8 * ((share.stop - share.start) * (2 * 12 + 32) + N_TEXTS * (2 * 5 + 32))
        for share in shares
    ]
    assert sorted(counted) == sorted(proposed + finished + lists for lists in filled)


def test_a_budget_that_is_too_small_is_refused():
    with pytest.raises(UserError, match="a memory of 1MiB is too small"):
        reranked(some_proposals(), config=replace(CONFIG, memory="1MiB"))


# From the command line


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A teacher with deep lists, and a slow student, trained on a tiny set."""
    folder = tmp_path_factory.mktemp("rerank")
    recipe = small_recipe(write_precomp(folder / "precomp"))
    recipe = replace(recipe, mining=MiningConfig(depth_texts=10, depth_images=4))
    for name in ("vse", "scan", "bfan"):
        other = replace(recipe, model=replace(recipe.model, name=name))
        train_round(folder / name, other, open_training_data(other), which="one")
    deep = MiningConfig(depth_texts=30, depth_images=8)
    mine_run(folder / "vse", folder / "deep.safetensors", config=deep)
    return folder


@pytest.mark.parametrize("name", ["scan", "bfan"])
def test_a_slow_run_mines_its_own_lists_and_reports_agreement(trained, tmp_path, capsys, name):
    lists = mine_run(
        trained / name,
        tmp_path / "own.safetensors",
        proposals=trained / "deep.safetensors",
        sample=5,
    )
    deep = CandidateLists.load(trained / "deep.safetensors")
    assert lists.i2t.shape == (12, 10)
    assert lists.t2i.shape == (60, 4)
    assert lists.provenance.proposals == deep.provenance.teacher != lists.provenance.teacher
    dataset = open_training_data(small_recipe(trained / "precomp")).train.dataset
    check_lists(lists.i2t, dataset.positives, source="i2t")
    rows, columns = np.indices(lists.i2t.shape)
    assert proposed_pairs(deep)[rows, lists.i2t[rows, columns]].all()
    event = read_json_lines(RunDirectory(trained / name).events)[-1]
    assert event["event"] == "mined"
    assert event["agreement_i2t"]["depth"] == 10
    assert event["agreement_t2i"]["n_anchors"] == 5
    found = event["agreement_t2i"]["found"]
    heard = capsys.readouterr().err
    assert f"found {found:.1%} of the 4 hardest images of 5 sampled texts" in heard
    assert "of the 10 hardest texts of 5 sampled images\n" in heard
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["own.report.json", "own.safetensors"]


def test_the_command_takes_proposals_and_leaves_the_sample_out_on_request(trained, tmp_path):
    out = tmp_path / "own.safetensors"
    command = ("mine", trained / "scan", "--out", out, "--proposals", trained / "deep.safetensors")
    done = aoq(*command, "--sample", 0, "--depth-texts", 20)
    assert done.returncode == 0
    assert "mined 20 texts for each of 12 images" in done.stderr
    assert "re-ranking found" not in done.stderr
    last = json.loads(RunDirectory(trained / "scan").events.read_text().splitlines()[-1])
    assert last["event"] == "mined"
    assert "agreement_i2t" not in last
    refused = aoq(*command, "--depth-texts", 31, "--force")
    assert refused.returncode == 2
    assert "--depth-texts of 62 or more" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_proposals_of_another_data_set_are_refused(trained, tmp_path):
    other = write_precomp(tmp_path / "other", seed=1)
    with pytest.raises(UserError, match="another data set"):
        mine_run(
            trained / "scan",
            tmp_path / "own.safetensors",
            data=other,
            proposals=trained / "deep.safetensors",
        )
