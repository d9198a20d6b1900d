"""Twenty steps of several models, by one process or by those that torchrun starts."""

from __future__ import annotations

import numpy as np
from torch import nn

from aoq.config import LossConfig, ModelConfig, RoundConfig, SamplingConfig
from aoq.data.collate import Collator
from aoq.data.vocabulary import Vocabulary
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.models import build_model
from aoq.randomness import seed_torch
from aoq.sampling import OfflineSampler
from aoq.training.collectives import Collectives, start_fabric
from aoq.training.logit_scale import LogitScale
from aoq.training.optimizers import add_undecayed, make_optimizer
from aoq.training.step import make_batches, update
from aoq.types import Positives
from tests.conftest import uneven_dataset

STEPS = 20
PAIRS = 13  # of a step: no two processes and no two parts get as many
CASES = {
    "bfan": {},
    "bfan, two parts": {"accumulate": 2},
    "bfan, online": {"loss": LossConfig(name="online")},
    "bfan, in pieces, adamw": {"encode_at_once": 3, "optimizer": "adamw", "weight_decay": 0.1},
    "vse, softmax, in pieces": {
        "loss": LossConfig(name="softmax_offline", learn_temperature=True),
        "encode_at_once": 3,
    },
    "vse, sigmoid": {"loss": LossConfig(name="siglip")},
    "vse, likeness": {
        "loss": LossConfig(
            name="online_quin", margin_online=0.4, semantic_margin=0.2, selective=0.2
        )
    },
    "vse, weighed matches": {
        "loss": LossConfig(name="softmax_offline", weigh_matches=True),
        "avoid_matches": True,
        "accumulate": 2,
    },
    "scan": {},
    "vse": {},
    "vsrn, frozen": {},
    "vsrn, frozen, two parts": {"accumulate": 2},
    "vsrn": {},
}


def everything_wrong(positives: Positives) -> CandidateLists:
    """Lists of all that does not belong to an anchor, as deep as every anchor allows."""

    def wrong(relation: Positives) -> np.ndarray:
        depth = relation.n_texts - int(relation.texts_per_image().max())
        rows = [
            np.setdiff1d(np.arange(relation.n_texts), relation.texts_of(anchor))[:depth]
            for anchor in range(relation.n_images)
        ]
        return np.stack(rows).astype(np.int32)

    i2t, t2i = wrong(positives), wrong(positives.swapped)
    nothing = Provenance(teacher="", data="")
    random = np.random.default_rng(0)
    return CandidateLists(
        i2t,
        np.zeros(i2t.shape, "f4"),
        t2i,
        np.zeros(t2i.shape, "f4"),
        nothing,
        i2t_matches=random.random(i2t.shape, "f4"),
        t2i_matches=random.random(t2i.shape, "f4"),
    )


def train(case: str, **options) -> dict[str, list]:
    """The terms and the norm of the gradient of every step, and the weights at the end.

    Gradients are not clipped: Adam's steps hardly show their scale.
    """
    dataset = uneven_dataset(images=24, seed=5)
    vocabulary = Vocabulary.build(dataset.captions, min_count=1)
    collator, positives = Collator(dataset, vocabulary), dataset.positives
    loss = options.pop("loss", LossConfig(name="adap_off_quin"))
    avoid_matches = options.pop("avoid_matches", False)
    settings = RoundConfig(
        loss=loss, batch_size=PAIRS, learning_rate=1e-3, clip_norm=1e9, **options
    )
    sampler = OfflineSampler(
        everything_wrong(positives),
        positives,
        config=SamplingConfig(depth_texts=9, depth_images=9, avoid_matches=avoid_matches),
        seed=1,
    )
    name, frozen = case.split(",")[0], "frozen" in case
    config = ModelConfig(
        name=name,
        joint_width=8,
        word_width=5,
        caption_width=6,
        caption_dropout=0.0 if frozen else 0.2,
        variant="f30k",
    )
    seed_torch(3)
    model = build_model(config, feature_width=6, vocabulary_size=len(vocabulary)).train()
    if frozen:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
                nn.init.normal_(module.weight)
    collectives, optimizer = (
        Collectives(start_fabric(collator.device)),
        make_optimizer(model, settings),
    )
    logit_scale = LogitScale(loss)
    add_undecayed(optimizer, logit_scale, settings)
    steps, norms = [], []
    for step in range(STEPS):
        pairs = np.random.default_rng(step).permutation(positives.pairs)[:PAIRS]
        seed_torch(3, epoch=1, step=step, process_rank=collectives.processes.rank)
        batches = make_batches(
            collator,
            pairs,
            settings=settings,
            sampler=sampler,
            epoch=0,
            step=step,
            processes=collectives.processes,
        )
        terms, _ = update(
            model,
            optimizer,
            batches,
            settings=settings,
            epoch=0,
            collectives=collectives,
            logit_scale=logit_scale,
        )
        steps.append(terms)
        norms.append(float(nn.utils.get_total_norm([p.grad for p in model.parameters()])))
    learned = [*model.parameters(), *logit_scale.parameters()]
    weights = nn.utils.parameters_to_vector(learned)
    return {"terms": steps, "norms": norms, "weights": weights.tolist()}
