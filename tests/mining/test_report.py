"""The mining report against plain loops over the full score matrix, and as people see it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from rich.console import Console

from aoq.cli.mining_report import report_view
from aoq.config import MiningConfig
from aoq.errors import UserError
from aoq.mining import report as module
from aoq.mining import score_matrix
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.captions import words_of
from aoq.mining.mine import mine_in_processes
from aoq.mining.product import ProductReport
from aoq.mining.report import MiningReport, mining_report, report_file
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding
from tests.conftest import WORDS, uneven_dataset
from tests.mining.cases import best_of_rows, negatives_of, proposed_pairs

PERCENTILES = (5, 25, 50, 75, 95)
NO_RULES = MiningConfig(depth_texts=6, depth_images=4)
EVERY_RULE = replace(
    NO_RULES, equal_captions=True, score_share=0.75, near_captions=0.6, skip_first=2
)


def few_words(dataset):
    """A copy of a data set with captions of so few words that many are alike."""
    random = np.random.default_rng(0)
    captions = tuple(
        " ".join(random.choice(WORDS[:7], size=random.integers(2, 5))) for _ in dataset.captions
    )
    return replace(dataset, captions=captions)


DATASET = few_words(uneven_dataset(images=40, seed=3))


def encode(dataset, *, whole_numbers=True, seed=0):
    """Texts near their images. Products of small whole numbers are exact, and often equal."""
    random = np.random.default_rng(seed)
    images = random.normal(size=(len(dataset), 6)) * 3
    texts = images[dataset.positives.swapped.pairs[:, 1]]
    texts = texts + random.normal(size=texts.shape) * 2
    parts = [part.round() if whole_numbers else part + 20 for part in (images, texts)]
    return EncodedDataset(*(Encoding(torch.from_numpy(part).float()) for part in parts))


def mine_and_report(config, dataset=DATASET, encoded=None, proposals=None, **options):
    encoded = encoded or encode(dataset)
    scorer, captions = InnerProduct(), dataset.captions
    mined = mine_in_processes(
        scorer,
        encoded,
        dataset.positives,
        config=config,
        provenance=Provenance("", ""),
        captions=captions,
        proposals=proposals,
    )
    return mined, mining_report(scorer, encoded, dataset, mined, config=config, **options)


def some_proposals(dataset, *, depth_texts=40, depth_images=16):
    """Proposals of a model that knows nothing."""
    shape = len(dataset), dataset.n_texts
    random = negatives_of(np.random.default_rng(1).normal(size=shape), dataset.positives)
    i2t = best_of_rows(random, depth_texts).astype(np.int32)
    t2i = best_of_rows(random.T, depth_images).astype(np.int32)
    i2t_scores, t2i_scores = (np.full(ids.shape, np.nan, np.float32) for ids in (i2t, t2i))
    return CandidateLists(i2t, i2t_scores, t2i, t2i_scores, Provenance("proposes", ""))


def full_matrix(encoded, dtype=torch.float32):
    images, texts = (part.vectors.to(dtype).double() for part in (encoded.images, encoded.texts))
    return (images @ texts.T).numpy()


def hardest_first(row, own):
    """What is neither the anchor's own nor out of the running."""
    others = [other for other, score in enumerate(row) if other not in own and score > -np.inf]
    return sorted(others, key=lambda candidate: (-row[candidate], candidate))


def plainly_dropped(config, dataset, scores, *, of_texts, anchors):
    """By rule: (score, anchor, candidate) of all that the rules keep out of lists, one by one."""
    relation, depth = dataset.positives, config.depth_texts
    if of_texts:
        scores, relation, depth = scores.T, relation.swapped, config.depth_images
    words = [words_of(caption) for caption in dataset.captions]

    def likenesses(anchor, candidate):
        image, text = (candidate, anchor) if of_texts else (anchor, candidate)
        for own in dataset.positives.texts_of(image):
            one, other = set(words[own]), set(words[text])
            yield words[own] == words[text], len(one & other) / len(one | other)

    dropped = {"equal captions": [], "score share": [], "near captions": [], "skip first": []}
    for anchor in anchors:
        row, own = scores[anchor], relation.texts_of(anchor)
        best = row[own].max()
        rule_of = {}
        for candidate in hardest_first(row, own):
            if any(equal for equal, _ in likenesses(anchor, candidate)):
                rule_of[candidate] = "equal captions"
            elif row[candidate] > best - (1 - config.score_share) * abs(best):
                rule_of[candidate] = "score share"
            elif any(share >= config.near_captions for _, share in likenesses(anchor, candidate)):
                rule_of[candidate] = "near captions"
            else:
                rule_of[candidate] = None
        last = config.skip_first + depth
        if list(rule_of.values()).count(None) < last:
            rule_of = {c: r if r == "equal captions" else None for c, r in rule_of.items()}
        n_left = 0
        for candidate, rule in rule_of.items():
            if rule is None:
                n_left += 1
                rule = "skip first" if n_left <= config.skip_first else None
            if n_left == last:
                break
            if rule is not None:
                dropped[rule].append((row[candidate], anchor, candidate))
    return dropped


def check_scores(found, values):
    assert found.n_sampled == len(values)
    wanted = dict(
        zip(("p5", "p25", "p50", "p75", "p95"), np.percentile(values, PERCENTILES), strict=True)
    )
    assert found.percentiles == pytest.approx(wanted, abs=1e-4)


def among(proposals, scores, positives):
    """The scores with all but positives and what is proposed masked with -inf."""
    counts = proposed_pairs(proposals)
    counts[tuple(positives.pairs.T)] = True
    return np.where(counts, scores, -np.inf)


def check_dropped(config, report, *, dataset=DATASET, anchors=None, proposals=None):
    """Compare what each rule dropped, and the examples of it, with plain loops."""
    scores = full_matrix(encode(dataset))
    if proposals is not None:
        scores = among(proposals, scores, dataset.positives)
    for of_texts, direction in ((False, report.i2t), (True, report.t2i)):
        everyone = range(dataset.n_texts if of_texts else len(dataset))
        those = everyone if anchors is None else anchors[of_texts]
        wanted = plainly_dropped(config, dataset, scores, of_texts=of_texts, anchors=those)
        assert direction.n_ranked == len(those)
        assert [part.rule.rstrip(" .0123456789") for part in direction.dropped] == list(wanted)
        for part, values in zip(direction.dropped, wanted.values(), strict=True):
            check_scores(part.scores, [score for score, *_ in values])
            hardest = {}
            for score, anchor, candidate in values:
                hardest.setdefault(anchor, (score, anchor, candidate))
            first = sorted(hardest.values(), key=lambda one: (-one[0], one[1]))[: module.EXAMPLES]
            assert len(part.examples) == len(first)
            for example, (score, anchor, candidate) in zip(part.examples, first, strict=True):
                image, text = (candidate, anchor) if of_texts else (anchor, candidate)
                assert (example.image, example.text) == (
                    dataset.image_ids[image],
                    dataset.caption_ids[text],
                )
                assert example.words == dataset.captions[text]
                own = dataset.positives.texts_of(image)
                assert example.caption in [dataset.captions[one] for one in own]
                positives = (
                    scores[dataset.positives.images_of(text), text]
                    if of_texts
                    else scores[image, own]
                )
                assert (example.score, example.best_positive) == (score, positives.max())


@pytest.mark.parametrize("at_once", [7, 512])
def test_what_each_rule_dropped_is_what_plain_loops_drop(monkeypatch, at_once):
    monkeypatch.setattr(score_matrix, "_CANDIDATES_AT_ONCE", at_once)
    config = EVERY_RULE
    mined, report = mine_and_report(config)
    assert mined.n_excused == (0, 0)
    check_dropped(config, report)
    # Every anchor is in the sample, so that mining has counted the same; but for equal captions,
    # which it counts wherever they rank.
    for direction in (report.i2t, report.t2i):
        equal, *others = direction.dropped
        assert equal.scores.n > equal.scores.n_sampled > 0
        assert all(part.scores.n == part.scores.n_sampled > 0 for part in others)


def test_an_image_is_shown_by_its_caption_that_is_most_like_the_text():
    _, report = mine_and_report(EVERY_RULE)
    for direction in (report.i2t, report.t2i):
        equal = direction.dropped[0]
        assert all(words_of(one.caption) == words_of(one.words) for one in equal.examples)


def test_an_excused_anchor_loses_nothing_to_scores_and_near_captions():
    config = replace(EVERY_RULE, score_share=0.25, depth_texts=50, depth_images=20)
    mined, report = mine_and_report(config)
    assert 0 < mined.n_excused[0] < len(DATASET)
    assert 0 < mined.n_excused[1] < DATASET.n_texts
    assert (report.i2t.n_excused, report.t2i.n_excused) == mined.n_excused
    check_dropped(config, report)


def test_some_anchors_stand_for_all_evenly_spread():
    _, report = mine_and_report(EVERY_RULE, sample=20)
    anchors = [
        [number * (count - 1) // 19 for number in range(20)] for count in (40, DATASET.n_texts)
    ]
    check_dropped(EVERY_RULE, report, anchors=anchors)


def test_of_re_ranked_lists_only_what_was_proposed_counts_as_dropped():
    proposals = some_proposals(DATASET)
    mined, report = mine_and_report(EVERY_RULE, proposals=proposals)
    check_dropped(EVERY_RULE, report, proposals=proposals)
    for side, direction in enumerate((report.i2t, report.t2i)):
        assert direction.n_excused == mined.n_excused[side]
        equal, *others = direction.dropped
        assert equal.scores.n > equal.scores.n_sampled > 0
        assert all(part.scores.n == part.scores.n_sampled > 0 for part in others)


def test_the_report_on_re_ranked_lists_scores_positives_and_what_was_proposed_only(monkeypatch):
    proposals, score_matrix, n_scored = some_proposals(DATASET), InnerProduct.score_matrix, []

    def counting(scorer, images, texts):
        n_scored.append(len(images) * len(texts))
        return score_matrix(scorer, images, texts)

    encoded, config = encode(DATASET), replace(EVERY_RULE, precision="bfloat16")
    mined, _ = mine_and_report(config, encoded=encoded, proposals=proposals)
    monkeypatch.setattr(InnerProduct, "score_matrix", counting)
    mining_report(InnerProduct(), encoded, DATASET, mined, config=config, sample=DATASET.n_texts)
    n_pairs = proposed_pairs(proposals).sum() + len(DATASET.positives.pairs)
    assert sum(n_scored) == 4 * n_pairs  # from both sides, rounded and exact


@pytest.fixture
def rank_nothing(monkeypatch):
    """Called, it lets scorers score pairs only."""

    def refuse(*_):
        raise AssertionError("the report ranks anchors")

    return lambda: monkeypatch.setattr(InnerProduct, "score_matrix", refuse)


def test_a_report_without_a_sample_counts_and_ranks_nothing(rank_nothing):
    encoded, config = encode(DATASET), replace(EVERY_RULE, precision="bfloat16")
    mined, _ = mine_and_report(config, encoded=encoded)
    rank_nothing()
    report = mining_report(InnerProduct(), encoded, DATASET, mined, config=config, sample=0)
    for side, direction in enumerate((report.i2t, report.t2i)):
        assert (direction.n_ranked, direction.recall) == (0, None)
        assert {part.rule: part.scores.n for part in direction.dropped} == {
            rule: numbers[side] for rule, numbers in mined.n_dropped.items()
        }
        for part in direction.dropped:
            assert (part.scores.n_sampled, part.scores.percentiles, part.examples) == (0, {}, ())
    assert "anchor" not in shown(report)


def test_fewer_anchors_are_ranked_where_the_data_set_is_large(monkeypatch):
    monkeypatch.setattr(module, "_SCORES_HELD", 3 * DATASET.n_texts)
    _, report = mine_and_report(EVERY_RULE)
    assert report.i2t.n_ranked == 3
    assert report.t2i.n_ranked == 3 * DATASET.n_texts // len(DATASET)


def test_positives_and_kept_candidates_are_described_by_their_scores(monkeypatch):
    mined, report = mine_and_report(NO_RULES)
    scores = full_matrix(encode(DATASET))
    check_scores(report.positives, scores[tuple(DATASET.positives.pairs.T)])
    check_scores(report.i2t.kept, mined.lists.i2t_scores.ravel())
    check_scores(report.t2i.kept, mined.lists.t2i_scores.ravel())
    monkeypatch.setattr(module, "_SAMPLED", 10)
    _, sampled = mine_and_report(NO_RULES)
    tenth = np.linspace(0, len(DATASET.positives.pairs) - 1, 10).astype(int)
    check_scores(sampled.positives, scores[tuple(DATASET.positives.pairs[tenth].T)])
    check_scores(sampled.i2t.kept, mined.lists.i2t_scores[np.arange(10) * 39 // 9].ravel())
    assert (sampled.i2t.kept.n, sampled.i2t.kept.n_sampled) == (40 * 6, 10 * 6)


def test_without_rules_and_rounding_nothing_is_ranked_again(rank_nothing):
    encoded = encode(DATASET)
    mined, _ = mine_and_report(NO_RULES, encoded=encoded)
    rank_nothing()
    report = mining_report(InnerProduct(), encoded, DATASET, mined, config=NO_RULES)
    for direction in (report.i2t, report.t2i):
        assert (direction.dropped, direction.n_ranked, direction.recall) == ((), 0, None)


def test_numbers_that_bfloat16_holds_lose_nothing_by_rounding():
    _, report = mine_and_report(replace(NO_RULES, precision="bfloat16"))
    assert (report.i2t.recall, report.t2i.recall) == (1.0, 1.0)
    assert report.i2t.n_ranked == len(DATASET)


@pytest.mark.parametrize("proposals", [None, some_proposals(DATASET)], ids=["all", "proposed"])
def test_recall_is_the_share_of_exact_candidates_that_rounded_scores_find(proposals):
    encoded = encode(DATASET, whole_numbers=False)
    config = replace(EVERY_RULE, precision="bfloat16")
    _, report = mine_and_report(config, encoded=encoded, proposals=proposals)
    exact, coarse = full_matrix(encoded), full_matrix(encoded, torch.bfloat16)
    if proposals is not None:
        exact, coarse = (among(proposals, each, DATASET.positives) for each in (exact, coarse))
    for direction, of_texts, depth in ((report.i2t, False, 6), (report.t2i, True, 4)):
        relation = DATASET.positives.swapped if of_texts else DATASET.positives
        rows = zip(exact.T, coarse.T, strict=True) if of_texts else zip(exact, coarse, strict=True)
        shares = []
        for anchor, pair in enumerate(rows):
            one, other = (hardest_first(row, relation.texts_of(anchor))[:depth] for row in pair)
            shares.append(len({*one} & {*other}) / depth)
        assert direction.recall == pytest.approx(np.mean(shares))
        assert 0.5 < direction.recall < 1


def test_scores_that_overflow_float16_leave_a_report_of_finite_numbers():
    encoded = encode(DATASET)
    encoded.images.vectors[::2, 0] = 1e5
    encoded.texts.vectors[:, 0] = 1.0
    _, report = mine_and_report(
        replace(NO_RULES, precision="float16", skip_first=1), DATASET, encoded
    )
    json.dumps(asdict(report), allow_nan=False)


def test_a_report_survives_the_way_to_disk_and_back(tmp_path):
    _, report = mine_and_report(replace(EVERY_RULE, precision="bfloat16"))
    path = report_file(tmp_path / "candidates.safetensors")
    assert path == tmp_path / "candidates.report.json"
    report.save(path)
    json.dumps(asdict(report), allow_nan=False)
    assert MiningReport.load(path) == report


def test_a_report_of_before_products_were_chosen_was_scored_in_float32(tmp_path):
    _, report = mine_and_report(NO_RULES)
    fields = asdict(report)
    del fields["product"]
    path = tmp_path / "lists.report.json"
    path.write_text(json.dumps(fields))
    assert MiningReport.load(path).product == ProductReport("float32", n_pairs=0, n_scored=0)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"precision": "float32", "positives": {}}'])
def test_what_is_not_a_report_is_refused(tmp_path, content):
    path = tmp_path / "candidates.report.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"candidates.report.json is not a mining report"):
        MiningReport.load(path)


def shown(report):
    console = Console(width=80)
    with console.capture() as capture:
        console.print(report_view(report))
    return capture.get()


def test_the_terminal_shows_numbers_recall_and_examples_within_80_columns():
    config = replace(EVERY_RULE, precision="bfloat16", score_share=0.25)
    _, report = mine_and_report(config)
    view = shown(report)
    lines = [" ".join(line.split()) for line in view.splitlines()]
    for direction in (report.i2t, report.t2i):
        for part in direction.dropped:
            values = (f"{value:.3f}" for value in part.scores.percentiles.values())
            counts = f"{part.scores.n:,} {part.scores.n_sampled:,}"
            assert " ".join([part.rule, counts, *values]) in lines
            example = part.examples[0]
            cells = f"{part.rule} {example.score:.3f} {example.best_positive:.3f}"
            assert any(line.startswith(cells) for line in lines)
    text = " ".join(lines)
    assert f"{report.i2t.n_excused} images and {report.t2i.n_excused} texts keep what" in text
    assert "100.00% (i2t) and 100.00% (t2i)" in text


def test_the_terminal_says_no_more_than_there_is_without_rules():
    _, report = mine_and_report(NO_RULES)
    view = shown(report)
    assert "240" in view
    assert not any(word in view for word in ("dropped", "keep", "finds", "anchor"))
