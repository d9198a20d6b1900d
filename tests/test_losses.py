"""Every loss against a plain loop over pairs, and Eq. 5 against the paper's own gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean
from typing import get_args

import pytest
import torch

from aoq.config import LossConfig, LossName
from aoq.errors import UserError
from aoq.losses import (
    LOSSES,
    BatchScores,
    LossTerms,
    OfflineScores,
    adaptive_weights,
    compute_loss,
)

SIZE = 7

# What each loss adds up, for either anchor.
KINDS = {
    "standard": ["all"],
    "online": ["online"],
    "off_tri": ["online", "offline"],
    "off_quin": ["online", "offline", "derived"],
    "adap_off_quin": ["online", "offline", "derived"],
    "only_offline": ["offline", "derived"],
    "online_quin": ["online", "offline", "derived"],
    "infonce": ["softmax"],
    "softmax_offline": ["softmax"],
    "siglip": ["sigmoid"],
}
SIDES = {"siglip": ("positive", "negative")}  # the others: the two anchors
LOG_LOSSES = {"infonce", "softmax_offline", "siglip"}
HINGE_LOSSES = set(LOSSES) - LOG_LOSSES
CONSTANTS = {"margin_online": 0.25, "margin_offline": 0.05, "alpha": 0.15, "beta": 0.8}
OPTIONS = {
    "as in the paper": {},
    "adapted to the positive": {"adapt_to": "positive"},
    "clamped": {"clamp_weights": True},
    "squared": {"squared": True},
    "all at once": {"adapt_to": "positive", "clamp_weights": True, "squared": True},
    "another temperature": {"temperature": 0.3},
    "heavier offline negatives": {"offline_weight": 5.0},
    "another bias": {"bias": -3.0},
    "constant weights": {"weights": "constant"},
    "constant clamped weights": {"weights": "constant", "clamp_weights": True},
    "detached weights": {"weights": "detached"},
    "shuffled weights": {"weights": "shuffled"},
    "masked online pairs": {"redraw_online": False},
    "selective": {"selective": 0.15},
    "semantic margins": {"semantic_margin": 0.2},
    "semantic and selective": {"semantic_margin": 0.2, "selective": 0.15, "squared": True},
    "weighed matches": {"weigh_matches": True},
    "weighed heavier negatives": {"weigh_matches": True, "offline_weight": 5.0, "squared": True},
}
ONLINE_LOSSES = {"online", "off_tri", "off_quin", "adap_off_quin", "online_quin"}
OFFLINE_LOSSES = {
    *("off_tri", "off_quin", "adap_off_quin", "only_offline", "online_quin", "softmax_offline")
}
# The losses that an option changes, which a test shows.
BELONGS_TO = {
    "as in the paper": set(),
    "adapted to the positive": {"adap_off_quin"},
    "clamped": {"adap_off_quin"},
    "squared": HINGE_LOSSES,
    "all at once": HINGE_LOSSES,
    "another temperature": LOG_LOSSES,
    "heavier offline negatives": {"softmax_offline"},
    "another bias": {"siglip"},
    "constant weights": {"adap_off_quin"},
    "constant clamped weights": {"adap_off_quin"},
    "detached weights": {"adap_off_quin"},
    "shuffled weights": {"adap_off_quin"},
    "masked online pairs": {"online_quin"},
    "selective": ONLINE_LOSSES,
    "semantic margins": set(LOSSES) - {"only_offline"},
    "semantic and selective": set(LOSSES),
    "weighed matches": OFFLINE_LOSSES,
    "weighed heavier negatives": HINGE_LOSSES | {"softmax_offline"},
}
CASES = [
    (name, option)
    for name in LOSSES
    for option in OPTIONS
    if option == "as in the paper" or name in BELONGS_TO[option]
]


def passes_gradients(name, option):
    """Whether all of a loss is learned from; the weights of some controls are not."""
    weights = OPTIONS[option].get("weights", "adaptive")
    return name != "adap_off_quin" or weights in ("adaptive", "shuffled")


def masks():
    """True where an image and a text are negatives of each other, in batches of several kinds."""
    diagonal = ~torch.eye(SIZE, dtype=torch.bool)
    other_positives = diagonal.clone()
    other_positives[0, 1] = other_positives[1, 0] = other_positives[4, 2] = False
    images = torch.tensor([0, 1, 0, 2, 1, 3, 0])
    lonely = diagonal.clone()
    lonely[3], lonely[:, 5] = False, False
    return {
        "mixed": other_positives & lonely,
        "only the diagonal": diagonal,
        "other positives": other_positives,
        "captions of the same image": images[:, None] != images,
        "anchors without negatives": lonely,
        "no negatives at all": torch.zeros(SIZE, SIZE, dtype=torch.bool),
    }


def random_scores(size=SIZE, *, dtype=torch.float64, seed=0, negatives=None, derived_mask=None):
    """Scores among which adaptive weights of either sign meet open hinges."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape, largest=0.6):
        return torch.rand(*shape, generator=random, dtype=dtype) * largest

    offline = [draw(size, largest=1.2).requires_grad_() for _ in range(4)]
    matrix = (draw(size, size) + 0.2 * torch.eye(size, dtype=dtype)).requires_grad_()
    return BatchScores(
        matrix,
        negatives=negatives,
        offline=OfflineScores(
            *offline,
            derived_mask=derived_mask,
            i2t_matches=draw(size, largest=1.0),
            t2i_matches=draw(size, largest=1.0),
        ),
        likeness=draw(size, size, largest=1.0),
    )


def plain_loop(scores, config):
    """Equations 1 to 5 and the variants of table 3, one pair at a time, in Python's floats."""
    sides = SIDES.get(config.name, ("i2t", "t2i"))
    terms = {f"{side}_{kind}": 0.0 for side in sides for kind in KINDS[config.name]}
    for anchor in range(len(scores.matrix)):
        for name in terms:
            terms[name] += plain_term(scores, config, anchor, *name.split("_"))
    return terms


def plain_matrix(scores, config):
    """The scores, of negatives less what likeness takes off their margin."""
    matrix, mask = scores.matrix.tolist(), scores.negative_mask.tolist()
    for image, row in enumerate(matrix):
        for text in range(len(row)):
            if config.semantic_margin and mask[image][text]:
                row[text] -= config.semantic_margin * scores.likeness[image, text].item()
    return matrix


def plain_online_pair(matrix, mask, b, t_on, i_on, *, redraw):
    """The places of the derived pair of the hardest online negatives, or of the next hardest."""

    def apart(image, text):
        return mask[image][text] and mask[text][image]

    if t_on is None or i_on is None:
        return None
    if not redraw:
        return (i_on, t_on) if apart(i_on, t_on) else None
    places = range(len(matrix))
    pairs = [(image, t_on) for image in places if mask[image][b] and apart(image, t_on)]
    pairs += [(i_on, text) for text in places if mask[b][text] and apart(i_on, text)]
    return max(pairs, key=lambda pair: matrix[b][pair[1]] + matrix[pair[0]][b], default=None)


def plain_weight(scores, config, b, side):
    """The weight of an online hinge of Eq. 5."""
    matrix, mask, offline = plain_matrix(scores, config), scores.negative_mask, scores.offline

    def own_weight(anchor):
        negatives = mask[anchor] if side == "i2t" else mask[:, anchor]
        row = matrix[anchor] if side == "i2t" else [row[anchor] for row in matrix]
        hardest = max((row[c] for c in range(len(row)) if negatives[c]), default=None)
        if hardest is None:
            return None
        by = anchor - 1 if config.weights == "shuffled" else anchor
        reference = (offline.i2t if side == "i2t" else offline.t2i)[by].item()
        if config.adapt_to == "positive":
            reference = matrix[by][by]
        weight = config.beta - (reference - hardest) / config.alpha
        return 0.0 if config.clamp_weights and weight < 0 else weight

    if config.weights != "constant":
        return own_weight(b)
    found = [own_weight(anchor) for anchor in range(len(matrix))]
    return mean(weight for weight in found if weight is not None)


def plain_offline_weight(scores, config, b, side):
    """How far the offline negative of an anchor is none that belongs to it."""
    if not config.weigh_matches:
        return 1.0
    offline = scores.offline
    return 1 - (offline.i2t_matches if side == "i2t" else offline.t2i_matches)[b].item()


def plain_term(scores, config, b, side, kind):
    mask, offline = scores.negative_mask.tolist(), scores.offline
    matrix = plain_matrix(scores, config)
    positive, size = matrix[b][b], len(matrix)
    texts = [c for c in range(size) if mask[b][c]]
    images = [c for c in range(size) if mask[c][b]]
    t_on = max(texts, key=lambda c: matrix[b][c], default=None)
    i_on = max(images, key=lambda c: matrix[c][b], default=None)

    def hinge(margin, negative):
        value = max(margin - positive + negative, 0.0)
        return value * value if config.squared else value

    if kind == "sigmoid":
        tau = config.temperature or 0.1
        if side == "positive":
            return math.log1p(math.exp(-(positive / tau + config.bias)))
        return sum(math.log1p(math.exp(matrix[b][c] / tau + config.bias)) for c in texts)
    if kind == "softmax":
        others = [matrix[b][c] for c in texts] if side == "i2t" else [matrix[c][b] for c in images]
        tau = config.temperature or 0.07
        ratios = [1.0, *(math.exp((other - positive) / tau) for other in others)]
        if config.name == "softmax_offline":
            drawn = (offline.i2t if side == "i2t" else offline.t2i)[b].item()
            weight = config.offline_weight * plain_offline_weight(scores, config, b, side)
            ratios.append(weight * math.exp((drawn - positive) / tau))
        return math.log(sum(ratios))
    if kind == "all":
        others = [matrix[b][c] for c in texts] if side == "i2t" else [matrix[c][b] for c in images]
        return sum(hinge(config.margin_online, other) for other in others)
    drawn = (offline.i2t if side == "i2t" else offline.t2i)[b].item()
    if kind == "online":
        if (t_on if side == "i2t" else i_on) is None:
            return 0.0
        hardest = matrix[b][t_on] if side == "i2t" else matrix[i_on][b]
        weight = plain_weight(scores, config, b, side) if config.name == "adap_off_quin" else 1.0
        if config.selective is not None and abs(positive - hardest) < config.selective:
            others = [matrix[b][c] for c in texts]
            if side == "t2i":
                others = [matrix[c][b] for c in images]
            return weight * mean(hinge(config.margin_online, other) for other in others)
        return weight * hinge(config.margin_online, hardest)
    if kind == "offline":
        weight = plain_offline_weight(scores, config, b, side)
        return weight * hinge(config.margin_offline, drawn)
    if config.name == "online_quin":
        pair = plain_online_pair(matrix, mask, b, t_on, i_on, redraw=config.redraw_online)
        if pair is None:
            return 0.0
        image, text = pair
        derived = matrix[image][text] if side == "i2t" else matrix[text][image]
        return hinge(config.margin_offline, derived)
    if offline.derived_mask is not None and not offline.derived_mask[b]:
        return 0.0
    return hinge(
        config.margin_offline, (offline.derived if side == "i2t" else offline.partners)[b].item()
    )


def assert_equal_to_the_loop(scores, config, **tolerance):
    loss, expected = compute_loss(scores, config), plain_loop(scores, config)
    actual = {name: value.item() for name, value in loss.terms.items()}
    assert actual == pytest.approx(expected, **tolerance)
    assert loss.total.item() == pytest.approx(sum(expected.values()), **tolerance)


def test_every_loss_that_can_be_named_is_tested():
    assert set(KINDS) == set(LOSSES) == set(get_args(LossName))


def assert_sums_pair_by_pair(name, option, mask, *, dtype):
    config = LossConfig(name=name, **CONSTANTS, **OPTIONS[option])
    for seed in range(5):
        derived_mask = torch.rand(SIZE, generator=torch.Generator().manual_seed(seed)) < 0.7
        scores = random_scores(
            dtype=dtype, seed=seed, negatives=masks()[mask], derived_mask=derived_mask
        )
        assert_equal_to_the_loop(scores, config, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("name", "option"), CASES)
def test_each_loss_is_its_equation_summed_pair_by_pair(name, option):
    for mask in masks():
        assert_sums_pair_by_pair(name, option, mask, dtype=torch.float64)


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_computed_in_single_precision_too(name):
    assert_sums_pair_by_pair(name, "all at once", "other positives", dtype=torch.float32)


@pytest.mark.parametrize("name", LOSSES)
def test_without_a_mask_everything_off_the_diagonal_is_negative(name):
    config = LossConfig(name=name, **CONSTANTS)
    assert_equal_to_the_loop(random_scores(), config)
    masked = random_scores(negatives=masks()["only the diagonal"])
    assert compute_loss(random_scores(), config).total == compute_loss(masked, config).total


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", LOSSES)
def test_batches_of_one_and_two_pairs_follow_the_equations(name, size):
    assert_equal_to_the_loop(random_scores(size), LossConfig(name=name, **CONSTANTS))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_an_option_changes_the_losses_it_belongs_to_and_no_other(name, option):
    """The random scores above would not tell a missing option otherwise."""
    plain = LossConfig(name=name, **CONSTANTS)
    changed = replace(plain, **OPTIONS[option])

    def loss_and_slopes(config):
        found = []
        for seed in range(3):
            scores = random_scores(seed=seed)
            loss = compute_loss(scores, config).total
            loss.backward()
            found += [loss.detach()[None], scores.matrix.grad.flatten()]
        return torch.cat(found)

    before, after = loss_and_slopes(plain), loss_and_slopes(changed)
    assert (not torch.equal(before, after)) == (name in BELONGS_TO[option])


@pytest.mark.parametrize(("name", "option"), [case for case in CASES if passes_gradients(*case)])
def test_gradients_are_the_slopes_of_the_loss(name, option):
    """By finite differences, so that weights have to pass gradients on as well."""
    config, negatives = LossConfig(name=name, **CONSTANTS, **OPTIONS[option]), masks()["mixed"]
    scores = random_scores()
    off = scores.offline

    def loss(matrix, *offline):
        drawn = OfflineScores(*offline, i2t_matches=off.i2t_matches, t2i_matches=off.t2i_matches)
        batch = BatchScores(matrix, negatives, drawn, likeness=scores.likeness)
        return compute_loss(batch, config).total

    inputs = (scores.matrix, off.i2t, off.t2i, off.derived, off.partners)
    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize(("name", "option"), CASES)
def test_anchors_without_negatives_have_finite_gradients(name, option):
    scores = random_scores(negatives=masks()["no negatives at all"])
    compute_loss(scores, LossConfig(name=name, **OPTIONS[option])).total.backward()
    assert torch.isfinite(scores.matrix.grad).all()


@pytest.mark.parametrize(("name", "option"), [case for case in CASES if case[0] in HINGE_LOSSES])
def test_there_is_nothing_to_learn_when_every_margin_is_met(name, option):
    matrix = (torch.eye(5, dtype=torch.float64) * 2 - 1).requires_grad_()
    low = torch.full((5,), -1.0, dtype=torch.float64)
    likeness = torch.zeros(5, 5, dtype=torch.float64)
    offline = OfflineScores(low, low, low, low, i2t_matches=low + 1, t2i_matches=low + 1.5)
    scores = BatchScores(matrix, offline=offline, likeness=likeness)
    loss = compute_loss(scores, LossConfig(name=name, **OPTIONS[option])).total
    loss.backward()
    assert loss.item() == 0
    assert not matrix.grad.any()


@pytest.mark.parametrize("name", LOSSES)
def test_scores_may_be_as_low_as_a_model_likes(name):
    """Distances, say: the diagonal of a batch must not pass for its hardest negative."""
    scores = random_scores()
    offline = {name: part - 1e6 for name, part in vars(scores.offline).items() if part is not None}
    low = BatchScores(scores.matrix - 1e6, offline=OfflineScores(**offline))
    config = LossConfig(name=name, **CONSTANTS)
    if name == "siglip":  # it tells right from wrong by the scores themselves
        assert compute_loss(low, config).total.item() == pytest.approx(SIZE * 1e7, rel=1e-3)
        return
    assert_equal_to_the_loop(low, config, rel=1e-6)
    expected = compute_loss(scores, config).total.item()
    assert compute_loss(low, config).total.item() == pytest.approx(expected, rel=1e-6)


def one_weight_below_zero():
    """The first image's online hinge is 0.2 - 0.5 + 0.4 = 0.1, its weight 1.5 - (1 - 0.4) / 0.3."""
    matrix = torch.tensor([[0.5, 0.4], [-1.0, 0.9]], dtype=torch.float64, requires_grad=True)
    low = torch.full((2,), -1.0, dtype=torch.float64)
    i2t = torch.tensor([1.0, -1.0], dtype=torch.float64, requires_grad=True)
    return BatchScores(matrix, offline=OfflineScores(i2t, low, low, low))


def test_a_weight_below_zero_is_kept():
    scores, config = one_weight_below_zero(), LossConfig(name="adap_off_quin")
    assert adaptive_weights(scores, config)[0][0].item() == pytest.approx(-0.5)
    term = compute_loss(scores, config).terms["i2t_online"]
    assert term.item() == pytest.approx(-0.5 * 0.1)
    term.backward()
    assert scores.matrix.grad[0, 0].item() == pytest.approx(0.5)


def test_a_clamped_weight_below_zero_takes_its_hinge_out():
    scores, config = one_weight_below_zero(), LossConfig(name="adap_off_quin", clamp_weights=True)
    assert adaptive_weights(scores, config)[0][0].item() == 0
    term = compute_loss(scores, config).terms["i2t_online"]
    assert term.item() == 0
    term.backward()
    assert not scores.matrix.grad.any()
    assert not scores.offline.i2t.grad.any()


def test_clamping_leaves_weights_above_zero_alone():
    config = LossConfig(name="adap_off_quin", **CONSTANTS)
    for free, clamped in zip(
        adaptive_weights(random_scores(), config),
        adaptive_weights(random_scores(), replace(config, clamp_weights=True)),
        strict=True,
    ):
        assert (free > 0).any()
        assert (free < 0).any()
        assert torch.equal(clamped[free > 0], free[free > 0])


def test_derived_pairs_of_online_negatives_are_found_by_their_places():
    """The third text is the first image's hardest, the second image the first text's hardest."""
    matrix = torch.tensor(
        [[0.5, 0.1, 0.4, 0.0], [0.3, 0.9, 0.7, 0.0], [0.2, 0.6, 0.9, 0.0], [0.0, 0.0, 0.0, 0.9]]
    )
    derived, partners, mask = BatchScores(matrix).derived_online()
    assert (derived[0].item(), partners[0].item()) == pytest.approx((0.7, 0.6))
    assert mask[0]


def test_online_negatives_that_belong_together_derive_no_pair():
    scores = random_scores(2)  # the other pair is all there is to choose from
    terms = compute_loss(scores, LossConfig(name="online_quin", margin_offline=9.0)).terms
    assert terms["i2t_derived"] == terms["t2i_derived"] == 0


def test_the_total_is_made_of_hinges_weights_and_what_is_added():
    loss = LossTerms(
        {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])},
        weights={"a": torch.tensor([10.0, -1.0])},
        auxiliary={"caption": torch.tensor(0.5)},
    )
    assert {name: value.item() for name, value in loss.terms.items()} == {
        "a": 8.0,
        "b": 7.0,
        "caption": 0.5,
    }
    assert loss.total.item() == 15.5


def test_masked_derived_pairs_add_nothing():
    scores = random_scores()
    mask = torch.tensor([True, False] * 3 + [True])
    off = scores.offline
    masked = OfflineScores(off.i2t, off.t2i, off.derived, off.partners, derived_mask=mask)
    config = LossConfig(name="off_quin")
    terms = compute_loss(BatchScores(scores.matrix, offline=masked), config).terms
    expected = torch.relu(off.derived - scores.positive)[mask].sum()
    assert terms["i2t_derived"].item() == pytest.approx(expected.item())


def test_gradients_of_the_adaptive_loss_are_the_closed_forms_of_the_paper():
    """The three derivatives given after Eq. 5, for the image anchors.

    With I1, I2, I3 the indicators of the online, offline and derived hinge:
      dL/dS(i, t)     = ((S_off - S_on) / alpha - beta) I1 - I2 - I3
      dL/dS(i, t_off) = ((S - S_on) / alpha - gamma1 / alpha) I1 + I2
      dL/dS(i, t_on)  = ((2 S_on - S - S_off) / alpha + beta + gamma1 / alpha) I1
    Text anchors are kept out by giving them hinges that are never active.
    """
    config = LossConfig(name="adap_off_quin", margin_offline=0.05)
    alpha, beta, gamma1, gamma2 = config.alpha, config.beta, 0.2, 0.05
    random = torch.Generator().manual_seed(3)
    size = 64
    positive = (torch.rand(size, generator=random, dtype=torch.float64)).requires_grad_()
    online = (torch.rand(size, generator=random, dtype=torch.float64)).requires_grad_()
    off = (torch.rand(size, generator=random, dtype=torch.float64)).requires_grad_()
    derived = torch.rand(size, generator=random, dtype=torch.float64)
    # Two columns a pair: the positive on the diagonal, the online negative beside it; a text
    # anchor sees only far-off negatives.
    matrix = torch.full((2 * size, 2 * size), -9.0, dtype=torch.float64)
    rows = torch.arange(size)
    matrix[rows, rows] = positive
    matrix[rows, rows + size] = online
    matrix[rows + size, rows + size] = 9.0
    low = torch.full((2 * size,), -9.0, dtype=torch.float64)
    i2t, derived_all = low.clone(), low.clone()
    i2t[:size], derived_all[:size] = off, derived
    offline = OfflineScores(i2t=i2t, t2i=low, derived=derived_all, partners=low)
    compute_loss(BatchScores(matrix, offline=offline), config).total.backward()

    s, on, o = positive.detach(), online.detach(), off.detach()
    first = (gamma1 - s + on > 0).double()
    second = (gamma2 - s + o > 0).double()
    third = (gamma2 - s + derived > 0).double()
    closed_forms = {
        positive: ((o - on) / alpha - beta) * first - second - third,
        off: ((s - on) / alpha - gamma1 / alpha) * first + second,
        online: ((2 * on - s - o) / alpha + beta + gamma1 / alpha) * first,
    }
    for scores, expected in closed_forms.items():
        torch.testing.assert_close(scores.grad, expected)


@pytest.mark.parametrize("name", LOSSES)
def test_swapping_modalities_swaps_the_directions(name):
    """A derived pair is one of an image and a text, whichever comes first: it stays."""
    negatives, config = masks()["mixed"], LossConfig(name=name, **CONSTANTS)
    scores = random_scores(negatives=negatives)
    off = scores.offline
    swapped = BatchScores(
        scores.matrix.T,
        negatives.T,
        OfflineScores(off.t2i, off.i2t, off.derived, off.partners),
    )
    forward, backward = compute_loss(scores, config).terms, compute_loss(swapped, config).terms
    other_side = {"i2t": "t2i", "t2i": "i2t"}
    for term, value in forward.items():
        side, _, kind = term.partition("_")
        same = term if kind in ("derived", "sigmoid") else f"{other_side[side]}_{kind}"
        assert value.item() == pytest.approx(backward[same].item())


def test_the_next_hardest_takes_the_place_of_one_that_belongs_to_the_other():
    """The first pair's hardest, t_on = 1 and i_on = 1, are a pair; with (2, 1) the least is lost.

    Image 2 scores 0.5 with the first text, and text 2 only 0.1 with the first image.
    """
    matrix = torch.tensor([[0.9, 0.8, 0.1], [0.7, 0.9, 0.2], [0.5, 0.3, 0.9]])
    scores = BatchScores(matrix)
    derived, partners, mask = scores.derived_online()
    assert (derived[0].item(), partners[0].item()) == pytest.approx((0.3, 0.2))
    assert mask.all()
    assert not scores.derived_online(redraw=False)[2][0]


def test_a_likeness_of_one_takes_the_semantic_margin_off_and_of_zero_nothing():
    matrix = torch.tensor([[0.9, 0.8], [0.2, 0.7]])
    likeness = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    config = LossConfig(name="online", margin_online=0.2, semantic_margin=0.05)
    terms = compute_loss(BatchScores(matrix, likeness=likeness), config).terms
    assert terms["i2t_online"].item() == pytest.approx(0.05)  # 0.15 - 0.9 + 0.8
    assert terms["t2i_online"].item() == pytest.approx(0.25)  # 0.15 - 0.7 + 0.8


def test_semantic_margins_ask_for_the_likeness():
    scores = replace(random_scores(), likeness=None)
    with pytest.raises(UserError, match="need the likeness of images and texts"):
        compute_loss(scores, LossConfig(semantic_margin=0.1))


def test_selective_negatives_leave_the_plateau_and_are_the_hardest_elsewhere():
    """Where all scores are equal, the hinge falls on all negatives instead of on one."""
    matrix = torch.full((4, 4), 0.3, requires_grad=True)
    loss = compute_loss(BatchScores(matrix), LossConfig(name="online", selective=0.01))
    loss.total.backward()
    assert loss.total.item() == pytest.approx(2 * 4 * 0.2)
    others = ~torch.eye(4, dtype=torch.bool)
    torch.testing.assert_close(matrix.grad[others], torch.full((12,), 2 / 3))
    scores = random_scores()
    gap = (scores.positive - scores.i2t_online).abs().min().item()
    for name in ONLINE_LOSSES:
        plain = LossConfig(name=name, **CONSTANTS)
        total = compute_loss(scores, replace(plain, selective=gap / 100)).total
        assert total == compute_loss(scores, plain).total


@pytest.mark.parametrize("control", ["constant", "detached"])
def test_gradients_do_not_flow_through_the_weights_of_a_control(control):
    """They are those of the hinges, each times its weight."""
    config, scores = LossConfig(name="adap_off_quin", weights=control), random_scores()
    i2t, t2i = adaptive_weights(scores, config)
    assert not i2t.requires_grad
    assert not t2i.requires_grad
    loss = compute_loss(scores, config)
    loss.total.backward()
    again = random_scores()
    plain = compute_loss(again, replace(config, name="off_quin"))
    replace(plain, weights={"i2t_online": i2t, "t2i_online": t2i}).total.backward()
    torch.testing.assert_close(scores.matrix.grad, again.matrix.grad)


def test_constant_weights_have_the_mean_of_the_adaptive_ones_in_each_direction():
    scores = random_scores(negatives=masks()["anchors without negatives"])
    config = LossConfig(name="adap_off_quin", **CONSTANTS)
    constant = adaptive_weights(scores, replace(config, weights="constant"))
    sides = (scores.negative_mask.any(dim=1), scores.negative_mask.any(dim=0))
    for free, same, found in zip(adaptive_weights(scores, config), constant, sides, strict=True):
        torch.testing.assert_close(same, free[found].mean().detach().expand(SIZE))


def test_shuffled_weights_are_those_of_the_pair_before():
    scores = random_scores()
    off = scores.offline
    config = LossConfig(name="adap_off_quin", **CONSTANTS)
    rolled = OfflineScores(off.i2t.roll(1), off.t2i.roll(1))
    expected = adaptive_weights(replace(scores, offline=rolled), config)
    found = adaptive_weights(scores, replace(config, weights="shuffled"))
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


def test_a_learned_bias_takes_the_place_of_the_config_s():
    scores, config = random_scores(), LossConfig(name="siglip")
    bias = torch.tensor(-4.0, dtype=torch.float64, requires_grad=True)

    def loss(bias):
        return compute_loss(replace(scores, bias=bias), config).total

    assert loss(bias).item() == compute_loss(scores, replace(config, bias=-4.0)).total.item()
    assert torch.autograd.gradcheck(loss, (bias,))


@pytest.mark.parametrize("name", ["infonce", "softmax_offline"])
def test_a_softmax_falls_to_zero_as_scores_part_and_never_reaches_it(name):
    matrix, low = torch.eye(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    losses = [
        compute_loss(
            BatchScores(gap * matrix, offline=OfflineScores(low, low)), LossConfig(name=name)
        ).total.item()
        for gap in (0.0, 0.5, 1.0, 1.5)
    ]
    assert losses == sorted(losses, reverse=True)
    assert 0 < losses[-1] < 1e-7


@pytest.mark.parametrize("name", ["infonce", "softmax_offline"])
def test_a_softmax_of_equal_scores_is_the_log_of_their_number(name):
    scores = BatchScores(torch.full((4, 4), 0.3), offline=OfflineScores(*torch.full((2, 4), 0.3)))
    loss = compute_loss(scores, LossConfig(name=name, offline_weight=2.5)).total
    n_counted = 4 + (2.5 if name == "softmax_offline" else 0)
    assert loss.item() == pytest.approx(2 * 4 * math.log(n_counted))


@pytest.mark.parametrize("name", sorted(LOG_LOSSES))
def test_a_learned_scale_takes_the_place_of_the_temperature_and_gets_its_gradient(name):
    scores, config = random_scores(negatives=masks()["other positives"]), LossConfig(name=name)
    scale = torch.tensor(1 / 0.2, dtype=torch.float64, requires_grad=True)

    def loss(scale):
        return compute_loss(replace(scores, scale=scale), config).total

    fixed = compute_loss(scores, replace(config, temperature=0.2)).total
    assert loss(scale).item() == pytest.approx(fixed.item())
    assert torch.autograd.gradcheck(loss, (scale,))


@pytest.mark.parametrize(("name", "option"), [case for case in CASES if "shuffled" not in case[1]])
def test_the_order_of_the_pairs_in_a_batch_does_not_matter(name, option):
    config = LossConfig(name=name, **CONSTANTS, **OPTIONS[option])
    scores = random_scores(negatives=masks()["mixed"], derived_mask=torch.arange(SIZE) % 3 > 0)
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(2))
    offline = {name: part[order] for name, part in vars(scores.offline).items()}
    moved = BatchScores(
        scores.matrix[order][:, order],
        scores.negatives[order][:, order],
        OfflineScores(**offline),
        likeness=scores.likeness[order][:, order],
    )
    expected = {name: value.item() for name, value in compute_loss(scores, config).terms.items()}
    found = {name: value.item() for name, value in compute_loss(moved, config).terms.items()}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_asks_for_the_scores_that_its_config_says_it_needs(name):
    config, scores = LossConfig(name=name), random_scores()
    without = replace(scores, offline=None)
    if config.needs_candidates:
        with pytest.raises(UserError, match="needs the scores of offline negatives; mine"):
            compute_loss(without, config)
    else:
        compute_loss(without, config)
    without = replace(scores, offline=OfflineScores(scores.offline.i2t, scores.offline.t2i))
    if config.needs_derived_pairs:
        with pytest.raises(UserError, match="needs the scores of the derived pairs"):
            compute_loss(without, config)
    else:
        compute_loss(without, config)


@pytest.mark.parametrize("name", ["off_tri", "softmax_offline"])
def test_a_match_for_sure_teaches_nothing_as_an_offline_negative(name):
    """The random draws of one kind become matches, then the loss no longer sees their scores."""
    scores = random_scores()
    sure = torch.ones(SIZE, dtype=torch.float64)
    drawn = replace(scores.offline, i2t_matches=sure, t2i_matches=sure)
    config = LossConfig(name=name, weigh_matches=True)
    compute_loss(replace(scores, offline=drawn), config).total.backward()
    assert not drawn.i2t.grad.any()
    assert not drawn.t2i.grad.any()
    assert scores.matrix.grad.isfinite().all()


def test_matches_that_nobody_estimated_are_not_weighed():
    scores = random_scores()
    drawn = replace(scores.offline, i2t_matches=None)
    with pytest.raises(UserError, match="weigh_matches needs the probabilities"):
        compute_loss(replace(scores, offline=drawn), LossConfig(name="off_tri", weigh_matches=True))
