"""Cross attention against a plain loop, for any sizes; what breaks the published programs works."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize, pad

from aoq.config import ModelConfig
from aoq.errors import UserError
from aoq.models import build_model
from aoq.types import Encoding
from benchmarks import plain

NORMS = list(plain.RAW_NORMS)
AGGREGATES = list(plain.AGGREGATES)
SCORERS = {
    "scan t2i": {"name": "scan", "direction": "t2i"},
    "scan i2t": {"name": "scan", "direction": "i2t"},
    "bfan equal": {"name": "bfan", "focal": "equal"},
    "bfan prob": {"name": "bfan", "focal": "prob"},
}

EVERY_SCAN = [
    {"name": "scan", "direction": direction, "raw_norm": norm, "aggregate": how}
    for direction in ("t2i", "i2t")
    for norm in NORMS
    for how in AGGREGATES
]
EVERY_BFAN = [{"name": "bfan", "focal": focal} for focal in ("equal", "prob")]


def scorer_of(**options):
    return build_model(
        ModelConfig(joint_width=4, word_width=2, **options), feature_width=3, vocabulary_size=5
    )


def encodings(seed, *, n_images, regions, lengths, width=6):
    """Unit vectors in double precision; padding is zero vectors."""
    random = torch.Generator().manual_seed(seed)
    shape = (n_images, regions, width)
    images = normalize(torch.randn(shape, generator=random, dtype=torch.float64), dim=-1)
    shape = (len(lengths), max(lengths), width)
    words = normalize(torch.randn(shape, generator=random, dtype=torch.float64), dim=-1)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Encoding(images), Encoding(words * mask[..., None], mask)


@st.composite
def batches(draw):
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    return encodings(
        draw(st.integers(0, 10**6)),
        n_images=draw(st.integers(1, 5)),
        regions=draw(st.integers(1, 5)),
        lengths=lengths,
    )


def close(actual, expected, *, atol=1e-9):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


@pytest.mark.parametrize(("direction", "temperature"), [("t2i", 6.0), ("i2t", 5.0)])
def test_scan_aggregates_with_6_for_t2i_and_5_for_i2t_by_default(direction, temperature):
    assert scorer_of(name="scan", direction=direction).aggregate_temperature == temperature
    told = scorer_of(name="scan", direction=direction, aggregate_temperature=20.0)
    assert told.aggregate_temperature == 20.0


@settings(deadline=None, max_examples=60)
@given(
    batches(),
    st.sampled_from(["t2i", "i2t"]),
    st.sampled_from(NORMS),
    st.sampled_from(AGGREGATES),
)
def test_scan_is_the_plain_loop(batch, direction, norm, how):
    images, texts = batch
    model = scorer_of(
        name="scan",
        direction=direction,
        raw_norm=norm,
        aggregate=how,
        temperature=9.0,
        aggregate_temperature=6.0,
    )
    expected = plain.scan_scores(
        images.vectors,
        texts.vectors,
        texts.mask.sum(dim=1),
        direction=direction,
        temperature=9.0,
        raw_norm=norm,
        aggregate=how,
        scale=6.0,
    )
    close(model.score_matrix(images, texts), expected, atol=1e-7)


@settings(deadline=None, max_examples=60)
@given(batches(), st.sampled_from(["equal", "prob"]))
def test_bfan_is_the_plain_loop_where_that_gives_numbers(batch, focal):
    images, texts = batch
    scores = scorer_of(name="bfan", focal=focal).score_matrix(images, texts)
    expected = plain.bfan_scores(images.vectors, texts.vectors, texts.mask.sum(dim=1), focal=focal)
    assert scores.isfinite().all()
    numbers = expected.isfinite()  # one source only, and the plain loop divides 0 by 0
    close(scores[numbers], expected[numbers], atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(batches(), st.sampled_from(sorted(SCORERS)), st.randoms(use_true_random=False))
def test_order_padding_and_company_never_change_a_score(batch, name, random):
    images, texts = batch
    model = scorer_of(**SCORERS[name])
    scores = model.score_matrix(images, texts)
    order = list(range(len(texts)))
    random.shuffle(order)
    close(model.score_matrix(images, texts[torch.tensor(order)]), scores[:, order])
    padded = Encoding(pad(texts.vectors, (0, 0, 0, 3)), pad(texts.mask, (0, 3)))
    close(model.score_matrix(images, padded), scores)
    turned = Encoding(images.vectors.flip(1))
    close(model.score_matrix(turned, texts), scores)  # regions have no order
    for column in range(len(texts)):
        alone = model.score_matrix(images[:1], texts[column : column + 1])
        close(alone, scores[:1, column : column + 1])
    learning = Encoding(images.vectors.clone().requires_grad_())
    close(model.score_matrix(learning, texts), scores)


@settings(deadline=None, max_examples=30)
@given(batches(), st.sampled_from(sorted(SCORERS)))
def test_pair_scores_are_those_of_the_matrix(batch, name):
    images, texts = batch
    model = scorer_of(**SCORERS[name])
    rows = torch.arange(len(texts)) % len(images)
    expected = model.score_matrix(images, texts)[rows, torch.arange(len(texts))]
    close(model.score_pairs(images[rows], texts), expected)


@pytest.mark.parametrize("name", SCORERS)
def test_blocks_of_any_size_score_alike_but_for_bfan_s_threshold(name):
    """In float32 a weight on the threshold falls to either side; that is rare, and costs little."""
    scorer = scorer_of(**SCORERS[name])
    double = encodings(0, n_images=60, regions=36, lengths=[5, 9, 14, 25] * 15, width=64)
    images, texts = (Encoding(part.vectors.float(), part.mask) for part in double)
    whole = scorer.score_matrix(images, texts)
    blocks = [
        torch.cat(
            [scorer.score_matrix(images[i : i + 7], texts[t : t + 5]) for i in range(0, 60, 7)]
        )
        for t in range(0, 60, 5)
    ]
    gaps = (torch.cat(blocks, dim=1) - whole).abs()
    is_bfan = name.startswith("bfan")
    assert gaps.max() < (5e-3 if is_bfan else 1e-5)
    assert (gaps > 1e-5).float().mean() <= (0.005 if is_bfan else 0)


def test_exchanging_images_and_texts_exchanges_the_directions():
    images, texts = encodings(0, n_images=3, regions=4, lengths=[4, 4])
    swapped = Encoding(texts.vectors), Encoding(images.vectors)
    there = scorer_of(name="scan", direction="t2i", temperature=4.0, aggregate="mean")
    back = scorer_of(name="scan", direction="i2t", temperature=4.0, aggregate="mean")
    close(back.score_matrix(*swapped), there.score_matrix(images, texts).T)
    bfan = scorer_of(name="bfan")
    close(bfan.score_matrix(*swapped), bfan.score_matrix(images, texts).T)


DEGENERATE = {
    "one image": {"n_images": 1, "regions": 3, "lengths": [2, 3]},
    "one text": {"n_images": 3, "regions": 3, "lengths": [3]},
    "one-word captions": {"n_images": 3, "regions": 3, "lengths": [1, 1]},
    "one region": {"n_images": 3, "regions": 1, "lengths": [1, 3]},
    "identical regions": {"n_images": 2, "regions": 4, "lengths": [2, 3]},
    "identical words": {"n_images": 2, "regions": 4, "lengths": [2, 3]},
    "zero regions": {"n_images": 2, "regions": 4, "lengths": [2, 3]},
    "zero words": {"n_images": 2, "regions": 4, "lengths": [2, 3]},
    "all zero": {"n_images": 2, "regions": 4, "lengths": [2, 3]},
    "opposite regions": {"n_images": 2, "regions": 4, "lengths": [2, 3]},
}


def degenerate(case):
    images, texts = encodings(1, **DEGENERATE[case])
    regions, words = images.vectors.float(), texts.vectors.float()
    if case == "identical regions":
        regions = regions[:, :1].repeat(1, 4, 1)
    if case == "identical words":
        words = words[:, :1] * texts.mask[..., None]
    if case == "opposite regions":
        regions = torch.cat([regions[:, :2], -regions[:, :2]], dim=1)
    if case in ("zero regions", "all zero"):
        regions[:, 0] = 0.0
    if case == "all zero":
        regions[:], words[:] = 0.0, 0.0
    if case == "zero words":
        words[:, 0] = 0.0
    return Encoding(regions.requires_grad_()), Encoding(words.requires_grad_(), texts.mask)


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("options", EVERY_SCAN + EVERY_BFAN, ids=lambda o: "-".join(o.values()))
def test_degenerate_inputs_give_finite_scores_and_gradients(options, case):
    images, texts = degenerate(case)
    model = scorer_of(**options)
    scores = model.score_matrix(images, texts)
    rows = torch.arange(len(texts)) % len(images)
    pairs = model.score_pairs(images[rows], texts)
    assert scores.isfinite().all()
    close(pairs, scores[rows, torch.arange(len(texts))], atol=2e-5)
    (scores.sum() + pairs.sum()).backward()
    for vectors in (images.vectors, texts.vectors):
        assert vectors.grad.isfinite().all()
        assert vectors.grad.abs().max() < 1e6


def test_identical_regions_score_as_one_region_does():
    """All weights are equal then, so BFAN's focal step has nothing to prefer."""
    images, texts = encodings(2, n_images=2, regions=1, lengths=[3, 3])
    repeated = Encoding(images.vectors.repeat(1, 5, 1))
    for focal in ("equal", "prob"):
        model = scorer_of(name="bfan", focal=focal)
        of_words = model.score_matrix(images, texts)
        assert of_words.isfinite().all()
        attention = {"t2i": model.attentions["t2i"]}
        model.attentions = attention
        close(model.score_matrix(repeated, texts), model.score_matrix(images, texts))


@pytest.mark.parametrize("options", EVERY_SCAN + EVERY_BFAN, ids=lambda o: "-".join(o.values()))
def test_gradients_are_right_in_double_precision(options):
    images, texts = encodings(3, n_images=2, regions=3, lengths=[2, 3], width=4)
    model = scorer_of(**options)

    def matrix(regions, words):
        return model.score_matrix(Encoding(regions), Encoding(words * mask, texts.mask))

    def pairs(regions, words):
        return model.score_pairs(Encoding(regions), Encoding(words * mask, texts.mask))

    mask = texts.mask[..., None].double()
    inputs = (images.vectors.requires_grad_(), texts.vectors.requires_grad_())
    assert torch.autograd.gradcheck(matrix, inputs)
    assert torch.autograd.gradcheck(pairs, inputs)


@pytest.mark.parametrize("name", SCORERS)
def test_attention_maps_are_the_weights_behind_the_score(name):
    images, texts = encodings(4, n_images=3, regions=4, lengths=[2, 3, 5])
    model = scorer_of(**SCORERS[name])
    maps = model.attention_maps(images, texts)
    assert set(maps) == ({"t2i", "i2t"} if name.startswith("bfan") else {name.split()[1]})
    for direction, weights in maps.items():
        attention = model.attentions[direction]
        for row, length in enumerate(texts.mask.sum(dim=1).tolist()):
            regions, words = images.vectors[row][None], texts.vectors[row, :length][None]
            queries, sources = (words, regions) if direction == "t2i" else (regions, words)
            _, expected = plain.attend(
                queries, sources, temperature=attention.temperature, focal=attention.focal
            )
            actual = weights[row, : queries.shape[1], : sources.shape[1]]
            close(actual, expected[0], atol=1e-6)
            assert not weights[row, : queries.shape[1], sources.shape[1] :].any()


@pytest.mark.parametrize("name", SCORERS)
def test_mixed_precision_leaves_scores_as_they_are(name):
    images, texts = encodings(5, n_images=3, regions=4, lengths=[2, 3, 5], width=16)
    images = Encoding(images.vectors.float().requires_grad_())
    texts = Encoding(texts.vectors.float().requires_grad_(), texts.mask)
    model = scorer_of(**SCORERS[name])
    exact = model.score_matrix(images, texts)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model.score_matrix(images, texts)
        close(model.score_pairs(images, texts), exact.diagonal(), atol=1e-5)
    assert mixed.dtype == torch.float32
    close(mixed, exact, atol=1e-6)
    mixed.sum().backward()
    assert images.vectors.grad.isfinite().all()
    assert texts.vectors.grad.isfinite().all()


@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("name", ["scan t2i", "bfan prob"])
def test_regions_that_nearly_cancel_never_score_beyond_a_cosine(name, gap):
    images, texts = encodings(6, n_images=3, regions=2, lengths=[2, 3, 5])
    there = images.vectors[:, :1].float()
    back = normalize(-there + gap * images.vectors[:, 1:].float(), dim=-1)
    model = scorer_of(**(SCORERS[name] | {"aggregate": "max"}))
    texts = Encoding(texts.vectors.float(), texts.mask)
    scores = model.score_matrix(Encoding(torch.cat([there, back], dim=1)), texts)
    assert scores.abs().max() <= (2.0 if name.startswith("bfan") else 1.0)


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [([[True, False, True]], "padded at the end"), ([[False, False, False]], "at least one word")],
)
def test_texts_that_are_padded_elsewhere_are_refused(mask, sentence):
    model = scorer_of(name="bfan")
    texts = Encoding(torch.ones(1, 3, 4), torch.tensor(mask))
    for score in (model.score_matrix, model.score_pairs):
        with pytest.raises(UserError, match=sentence):
            score(Encoding(torch.ones(1, 2, 4)), texts)


def test_images_with_a_mask_are_refused():
    images = Encoding(torch.ones(1, 3, 4), torch.tensor([[True, True, False]]))
    with pytest.raises(UserError, match="equally many regions"):
        scorer_of(name="scan").score_matrix(images, Encoding(torch.ones(1, 3, 4)))
