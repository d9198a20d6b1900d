"""Traced text towers: the same vectors, without transformers, as long as nothing has changed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from aoq.features.outputs import Output
from aoq.features.text_models import TextSource
from aoq.features.traced_texts import TracedTextModel, _place, keep_traced, load_traced, traced
from aoq.types import Texts
from tests.towers import SENTENCES, write_clip, write_siglip


@pytest.fixture(params=[write_clip, write_siglip])
def source(request, tmp_path):
    folder = request.param(tmp_path / "tower")
    load_traced.cache_clear()  # towers of other tests have the same id
    return TextSource.of_tower(str(folder), Output.parse("pooled"), prompt="a photo of {}")


def vectors(model, sentences):
    rows = []
    for sentence in sentences:
        ids = model.tokenizer.encode(sentence)
        rows.append(model(Texts(torch.tensor([ids]), torch.tensor([len(ids)]))))
    return torch.cat(rows)


def test_a_traced_tower_reads_as_the_tower_itself(source):
    assert load_traced(source) is None
    assert keep_traced(source)
    load_traced.cache_clear()
    model, plain = traced(source).load(), source.load()
    assert isinstance(model, TracedTextModel)
    sentences = [*SENTENCES, "Grüße 東京", "x " * 60]
    assert torch.allclose(vectors(model, sentences), vectors(plain, sentences), atol=1e-6)
    for sentence in sentences:
        assert model.tokenizer.words_of(sentence) == plain.tokenizer.words_of(sentence)
    assert (model.id, model.width) == (plain.id, plain.width)
    assert model.tokenizer.digest.isalnum()
    tokens = torch.tensor([[1, 5, 3, 0], [1, 7, 9, 3]])
    both = Texts(tokens, torch.tensor([3, 4]))
    if model.tokenizer.padding is False:
        assert torch.allclose(model(both), plain(both), atol=1e-6)
    assert keep_traced(source), "it is kept already"


def test_it_is_loaded_without_transformers(source):
    keep_traced(source)
    script = (
        "import sys; from aoq.features.text_models import TextSource;"
        "from aoq.features.traced_texts import traced;"
        f"m = traced(TextSource(**{source.as_dict()!r})).load();"
        "m.tokenizer.encode('a dog');"
        "assert type(m).__name__ == 'TracedTextModel' and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_tower_that_has_changed_or_is_damaged_is_loaded_itself(source):
    keep_traced(source)
    load_traced.cache_clear()
    program = _place(source) / "program.pt"
    program.write_bytes(program.read_bytes()[:100])
    assert load_traced(source) is None
    about = _place(source) / "about.json"
    about.write_text(json.dumps({"id": source.id}))
    assert load_traced(source) is None


def test_a_tower_whose_weights_have_changed_is_loaded_itself(source):
    keep_traced(source)
    load_traced.cache_clear()
    weights = _place(source) / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert load_traced(source) is None
