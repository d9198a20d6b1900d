"""One step: every image and text encoded once, the same result as role by role."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aoq.config import LossConfig, ModelConfig, RoundConfig, SamplingConfig
from aoq.data.collate import Collator
from aoq.data.vocabulary import Vocabulary
from aoq.losses import LOSSES, BatchScores, OfflineScores, compute_loss
from aoq.models import build_model
from aoq.sampling import OfflineSampler
from aoq.training.collectives import Collectives, start_fabric
from aoq.training.optimizers import make_optimizer
from aoq.training.step import (
    NotFiniteError,
    make_batches,
    score_batch,
    step_loss,
    update,
)
from tests.conftest import uneven_dataset
from tests.scoring.cases import REGION_MODELS
from tests.training.steps_in_processes import everything_wrong


@pytest.fixture
def collator():
    dataset = uneven_dataset(images=12, seed=3)
    return Collator(dataset, Vocabulary.build(dataset.captions, min_count=1))


@pytest.fixture
def sampler(collator):
    positives = collator.dataset.positives
    lists = everything_wrong(positives)
    return OfflineSampler(lists, positives, config=SamplingConfig(), seed=0)


def small_model(name, collator):
    torch.manual_seed(0)
    config = ModelConfig(
        name=name, joint_width=8, word_width=5, caption_width=6, caption_dropout=0.0
    )
    words = 1 + max(int(collator.texts(np.arange(collator.dataset.n_texts)).tokens.max()), 4)
    return build_model(config, feature_width=6, vocabulary_size=words)


def batch_of(collator, sampler, loss, *, size=8, **options):
    settings = RoundConfig(loss=LossConfig(name=loss), **options)
    pairs = collator.dataset.positives.pairs[:size]
    (batch,) = make_batches(collator, pairs, settings=settings, sampler=sampler, epoch=0, step=0)
    return settings, pairs, batch


def test_every_image_and_text_of_a_step_is_read_once(collator, sampler):
    _, pairs, batch = batch_of(collator, sampler, "adap_off_quin")
    roles = (batch.pairs, batch.offline, batch.partners)
    images = torch.cat([role.images for role in roles]).unique()
    texts = torch.cat([role.texts for role in roles]).unique()
    assert images.tolist() == list(range(len(batch.regions)))
    assert texts.tolist() == list(range(len(batch.texts.tokens)))
    assert len(batch.regions) == len(batch.regions.unique(dim=0))
    torch.testing.assert_close(batch.regions[batch.pairs.images], collator.regions(pairs[:, 0]))


def test_a_batch_holds_what_the_sampler_drew_for_this_step(collator):
    positives = collator.dataset.positives
    lists, pairs = everything_wrong(positives), positives.pairs[:8]
    sampler = OfflineSampler(lists, positives, config=SamplingConfig(), seed=0)
    drawn = sampler.draw(pairs[:, 0], pairs[:, 1], epoch=2, step=3)
    drawn = replace(drawn, valid=np.arange(len(pairs)) % 3 > 0)

    class Told:
        """Draws that are known, and asked for with this epoch and step."""

        def draw(self, image_ids, text_ids, *, epoch, step):
            assert (epoch, step) == (2, 3)
            assert np.array_equal(np.stack([image_ids, text_ids], axis=1), pairs)
            return drawn

    settings = RoundConfig(loss=LossConfig(name="off_quin"))
    (batch,) = make_batches(collator, pairs, settings=settings, sampler=Told(), epoch=2, step=3)
    roles = {
        "pairs": (pairs[:, 0], pairs[:, 1]),
        "offline": (drawn.images, drawn.texts),
        "partners": (drawn.partner_images, drawn.partner_texts),
    }
    for name, (images, texts) in roles.items():
        role = getattr(batch, name)
        assert torch.equal(batch.regions[role.images], collator.regions(images)), name
        found, wanted = batch.texts[role.texts], collator.texts(texts)
        assert torch.equal(found.lengths, wanted.lengths), name
        width = wanted.tokens.shape[1]
        assert torch.equal(found.tokens[:, :width], wanted.tokens), name
        assert not found.tokens[:, width:].any(), name
    assert batch.derived_mask.tolist() == drawn.valid.tolist()


def test_only_the_diagonal_is_positive_where_the_published_program_says_so(collator):
    image = int(np.argmax(collator.dataset.positives.texts_per_image()))
    texts = collator.dataset.positives.texts_of(image)[:2]
    pairs = np.array([(image, texts[0]), (image, texts[1])])
    for diagonal_only in (False, True):
        settings = RoundConfig(diagonal_only=diagonal_only)
        (batch,) = make_batches(collator, pairs, settings=settings, sampler=None, epoch=0, step=0)
        assert torch.equal(batch.negatives, ~torch.eye(2, dtype=torch.bool) & diagonal_only)


def stepped(model, batches, settings):
    """The gradient of a step."""
    update(
        model,
        make_optimizer(model, settings),
        batches,
        settings=settings,
        epoch=0,
        collectives=Collectives(start_fabric(torch.device("cpu"))),
    )
    return torch.cat([value.grad.flatten() for value in model.parameters()])


def test_gradients_are_clipped_and_parts_add_up(collator, sampler):
    pairs = collator.dataset.positives.pairs[:12]

    def gradient(**options):
        settings = RoundConfig(loss=LossConfig(name="only_offline"), **options)
        batches = make_batches(collator, pairs, settings=settings, sampler=sampler, epoch=0, step=0)
        return stepped(small_model("vse", collator).train(), batches, settings)

    whole = gradient(clip_norm=1e9)
    assert float(whole.norm()) > 1
    clipped = gradient(clip_norm=1e-3)
    assert float(clipped.norm()) == pytest.approx(1e-3, rel=1e-3)
    torch.testing.assert_close(clipped / clipped.norm(), whole / whole.norm())
    torch.testing.assert_close(gradient(clip_norm=1e9, accumulate=3), whole)


def test_weights_do_not_move_where_a_gradient_is_not_a_number(collator, sampler):
    settings, _, batch = batch_of(collator, sampler, "online")
    model = small_model("vse", collator).train()
    next(model.parameters()).register_hook(lambda gradient: gradient * float("nan"))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(NotFiniteError, match="no longer finite"):
        stepped(model, [batch], settings)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_step_reads_no_more_than_its_loss_needs(collator, sampler):
    online = batch_of(collator, sampler, "online")[2]
    assert online.offline is None
    assert len(online.regions) == len(set(collator.dataset.positives.pairs[:8, 0]))
    triplet = batch_of(collator, sampler, "off_tri")[2]
    assert triplet.offline is not None
    assert triplet.partners is None
    assert batch_of(collator, sampler, "off_quin")[2].partners is not None


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["scan", "bfan", "vse", "vsrn"])
def test_one_pass_gives_the_loss_and_gradients_of_encoding_role_by_role(
    collator, sampler, name, loss
):
    settings, _, batch = batch_of(collator, sampler, loss)
    in_one_pass, apart = small_model(name, collator).double(), small_model(name, collator).double()
    batch = in_double(batch)
    step_loss(in_one_pass, batch, settings.loss).loss.total.backward()

    roles = [role for role in (batch.pairs, batch.offline, batch.partners) if role is not None]
    images = [apart.encode_images(batch.regions[role.images]) for role in roles]
    texts = [apart.encode_texts(batch.texts[role.texts]) for role in roles]
    offline = None
    if len(roles) > 1:
        offline = OfflineScores(
            i2t=apart.score_pairs(images[0], texts[1]), t2i=apart.score_pairs(images[1], texts[0])
        )
    if len(roles) > 2:
        offline = OfflineScores(
            i2t=offline.i2t,
            t2i=offline.t2i,
            derived=apart.score_pairs(images[1], texts[1]),
            partners=apart.score_pairs(images[2], texts[2]),
            derived_mask=batch.derived_mask,
        )
    scores = BatchScores(apart.score_matrix(images[0], texts[0]), batch.negatives, offline)
    total = compute_loss(scores, settings.loss).total
    if name == "vsrn":
        total = total + apart.auxiliary_loss(images[0], batch.texts[batch.pairs.texts])["caption"]
    total.backward()
    for (key, one), two in zip(in_one_pass.named_parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, msg=key)
    for key, value in in_one_pass.state_dict().items():  # running statistics of batch norms
        torch.testing.assert_close(value, apart.state_dict()[key], msg=key)


def in_double(batch):
    return type(batch)(**(vars(batch) | {"regions": batch.regions.double()}))


@pytest.mark.parametrize("precision", ["auto", "float32", "bfloat16"])
@pytest.mark.parametrize("name", REGION_MODELS)
def test_every_model_takes_a_step_in_every_precision(collator, sampler, name, precision):
    settings, _, batch = batch_of(collator, sampler, "adap_off_quin", precision=precision)
    model = small_model(name, collator).train()
    before = {key: value.clone() for key, value in model.named_parameters()}
    terms, _ = update(
        model,
        make_optimizer(model, settings),
        [batch],
        settings=settings,
        epoch=0,
        collectives=Collectives(start_fabric(torch.device("cpu"), precision)),
    )
    assert all(np.isfinite(value) for value in terms.values())
    moved = [not torch.equal(before[key], value) for key, value in model.named_parameters()]
    assert any(moved)
    assert all(value.dtype == torch.float32 for value in model.parameters())


@pytest.mark.parametrize("name", REGION_MODELS)
def test_pairs_of_one_image_share_its_encoding(collator, name):
    dataset = collator.dataset
    image = int(np.argmax(dataset.positives.texts_per_image()))
    texts = dataset.positives.texts_of(image)[:2]
    pairs = np.array([(image, texts[0]), (image, texts[1])])
    settings = RoundConfig()
    (batch,) = make_batches(collator, pairs, settings=settings, sampler=None, epoch=0, step=0)
    assert len(batch.regions) == 1
    assert not batch.negatives.any()
    scores, _ = score_batch(small_model(name, collator).eval(), batch)
    torch.testing.assert_close(scores.matrix[0], scores.matrix[1])
