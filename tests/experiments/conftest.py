"""A small trained experiment, which tests of reports share with those of the paper's report."""

from __future__ import annotations

import pytest
import torch

from aoq.data.collate import Collator
from aoq.data.splits import open_dataset
from aoq.runs.checkpoint import load_run
from aoq.scoring.encoded import encode_dataset
from tests.experiments.cases import make_experiment


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return the definition, the data set and the runs; tests leave them as they are."""
    return make_experiment(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="session")
def matrix(made):
    """Every score of the training set by the teacher of the first seed."""
    _, data, out = made
    trained = load_run(out / "small.toml+online/seed-0/round-one")
    collator = Collator(open_dataset(data, "train"), trained.tokenizer)
    encoded = encode_dataset(trained.model, collator)
    with torch.no_grad():
        return trained.model.score_matrix(encoded.images[:], encoded.texts[:]).numpy()
