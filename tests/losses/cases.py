"""The losses and options that tests go through, random scores, and plain loops over pairs."""

from __future__ import annotations

import math
from statistics import mean

import pytest
import torch

from aoq.config import LossConfig
from aoq.losses import (
    LOSSES,
    BatchScores,
    OfflineScores,
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


def assert_sums_pair_by_pair(name, option, mask, *, dtype):
    config = LossConfig(name=name, **CONSTANTS, **OPTIONS[option])
    for seed in range(5):
        derived_mask = torch.rand(SIZE, generator=torch.Generator().manual_seed(seed)) < 0.7
        scores = random_scores(
            dtype=dtype, seed=seed, negatives=masks()[mask], derived_mask=derived_mask
        )
        assert_equal_to_the_loop(scores, config, rel=1e-5, abs=1e-6)
