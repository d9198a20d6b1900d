"""A frozen text tower returns what transformers computes, and its tokenizer knows every word."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError
from transformers import AutoModel, AutoTokenizer

from aoq import errors
from aoq.errors import UserError
from aoq.features.outputs import Output
from aoq.features.pretrained import read_beside
from aoq.features.text_models import TextModel, TextSource
from aoq.types import Texts
from tests.towers import SENTENCES, TinyModels, write_bert, write_siglip2, write_tokenizer

POOLED = Output("pooled")


def read(model: TextModel, texts: tuple[str, ...] = SENTENCES) -> Texts:
    rows = [torch.tensor(model.tokenizer.encode(text)) for text in texts]
    tokens = torch.nn.utils.rnn.pad_sequence(
        rows, batch_first=True, padding_value=model.tokenizer.pad
    )
    return Texts(tokens, torch.tensor([len(row) for row in rows]))


def states_of(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Last states and mask of the sentences, as transformers computes them."""
    tokenizer, network = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    inputs = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    mask = inputs["attention_mask"]
    with torch.no_grad():
        seen = network.eval()(input_ids=inputs["input_ids"], attention_mask=mask)
    return seen.last_hidden_state, mask


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_the_text_half_of_a_dual_encoder_returns_the_vector_that_is_compared(
    towers: TinyModels, name: str
) -> None:
    folder = getattr(towers, name)
    tokenizer, network = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    padding = "max_length" if name == "siglip" else True
    inputs = tokenizer(list(SENTENCES), padding=padding, return_tensors="pt")
    with torch.no_grad():
        expected = network.eval().get_text_features(input_ids=inputs["input_ids"])
    expected = getattr(expected, "pooler_output", expected)
    model = TextModel(str(folder), POOLED)
    found = model(read(model))
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_first_states_and_means_leave_padding_out(towers: TinyModels) -> None:
    states, mask = states_of(towers.bert)
    cls, mean = (TextModel(str(towers.bert), Output(kind)) for kind in ("cls", "mean"))
    torch.testing.assert_close(cls(read(cls)), states[:, 0], rtol=1e-5, atol=1e-6)
    means = torch.stack(
        [row[keep.bool()].mean(dim=0) for row, keep in zip(states, mask, strict=True)]
    )
    torch.testing.assert_close(mean(read(mean)), means, rtol=1e-5, atol=1e-6)


def test_a_tower_of_sentence_transformers_pools_as_it_was_saved(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "bert")
    (folder / "1_Pooling").mkdir()
    settings = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    own, mean = TextModel(str(folder), POOLED), TextModel(str(folder), Output("mean"))
    torch.testing.assert_close(own(read(own)), mean(read(mean)), rtol=0, atol=0)


def test_the_last_states_reach_the_end_of_the_last_block(towers: TinyModels) -> None:
    states, mask = states_of(towers.bert)
    model = TextModel(str(towers.bert), Output("states", 3))
    found = model(read(model))
    torch.testing.assert_close(found[mask.bool()], states[mask.bool()], rtol=1e-5, atol=1e-6)


def test_an_id_depends_on_weights_tokenizer_prompt_and_output(
    towers: TinyModels, tmp_path: Path
) -> None:
    def id_of(folder: Path, output: Output = POOLED, prompt: str = "{}") -> str:
        return TextModel(str(folder), output, prompt).id.split("-", 1)[1]

    other = shutil.copytree(towers.bert, tmp_path / "other-pieces")
    write_tokenizer(other, ["quite other words than those"])
    ids = [
        id_of(towers.bert),
        id_of(towers.bert, Output("cls")),
        id_of(towers.bert, prompt="a photo of {}"),
        id_of(write_bert(tmp_path / "other-weights", seed=1)),
        id_of(other),
    ]
    assert len(set(ids)) == len(ids)
    assert id_of(shutil.copytree(towers.bert, tmp_path / "moved")) == ids[0]


def test_a_tower_that_has_changed_is_refused(towers: TinyModels, tmp_path: Path) -> None:
    folder = shutil.copytree(towers.bert, tmp_path / "bert")
    source = TextSource.of_tower(str(folder), Output("cls"))
    shutil.copytree(write_bert(tmp_path / "other", seed=1), folder, dirs_exist_ok=True)
    from aoq.features.text_models import load_text_model

    load_text_model.cache_clear()
    with pytest.raises(UserError, match="not the text tower of this model"):
        source.load()


def test_pieces_are_joined_to_words(towers: TinyModels) -> None:
    tokenizer = TextModel(str(towers.bert), Output("input"), "a photo of {}").tokenizer
    text = "A xylophone, left of the ball"
    ids, words = tokenizer.encode(text), tokenizer.words_of(text)
    assert [word.text for word in words] == ["A", "xylophone,", "left", "of", "the", "ball"]
    places = [place for word in words for place in word.places]
    assert places == sorted(places)
    assert len(words[1].places) > 1  # no piece of its own
    assert ids[0] == 1
    assert ids[-1] == 3
    assert max(places) == len(ids) - 2
    assert min(places) > 1  # after the prompt
    assert all(word.is_known for word in words)


def test_a_text_that_is_too_long_is_cut(towers: TinyModels) -> None:
    tokenizer = TextModel(str(towers.bert), Output("input")).tokenizer
    text = " ".join(["ball"] * 100)
    assert len(tokenizer.encode(text)) == 32
    assert tokenizer.words_of(text)[-1].places == ()


def test_a_tokenizer_with_more_pieces_than_the_network_knows_is_refused(
    towers: TinyModels, tmp_path: Path
) -> None:
    from transformers import BertConfig, BertModel

    from tests.towers import SIZE

    folder = shutil.copytree(towers.bert, tmp_path / "bert")
    BertModel(BertConfig(vocab_size=50, max_position_embeddings=32, **SIZE)).save_pretrained(folder)
    with pytest.raises(UserError, match=r"tokenizer has .* pieces and it knows 50"):
        TextModel(str(folder), POOLED)


def test_a_vision_model_is_not_a_text_tower(towers: TinyModels, tmp_path: Path) -> None:
    folder = shutil.copytree(towers.vit, tmp_path / "vit")
    with pytest.raises(UserError, match="cannot be used as a text tower"):
        TextModel(str(folder), POOLED)
    write_tokenizer(folder)
    with pytest.raises(UserError, match="cannot be used as a text tower"):
        TextModel(str(folder), POOLED)


def test_a_siglip_without_its_tokenizer_s_package_is_not_read_by_another_one(
    towers: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(towers.siglip, tmp_path / "siglip")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "SiglipTokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    original = errors.find_spec
    monkeypatch.setattr(
        errors, "find_spec", lambda name: None if name == "sentencepiece" else original(name)
    )
    with pytest.raises(UserError, match=r"needs sentencepiece; .*aoq\[towers\]"):
        TextModel(str(folder), POOLED)


def test_siglip_2_reads_lower_case(tmp_path: Path) -> None:
    tokenizer = TextModel(str(write_siglip2(tmp_path / "siglip2")), Output("input")).tokenizer
    assert tokenizer.encode("A Red BALL") == tokenizer.encode("a red ball")
    assert tokenizer.encode("a red ball") != tokenizer.encode("a red cup")


def test_a_file_beside_the_weights_is_looked_for_on_the_hub_and_never_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer: Any = SimpleNamespace(headers={}, request=None)
    problems: list[Exception] = [
        RemoteEntryNotFoundError("none", response=answer),
        LocalEntryNotFoundError("lost"),
    ]

    def download(*_: object) -> None:
        raise problems.pop(0)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert read_beside("some/tower", "1_Pooling/config.json") is None
    with pytest.raises(UserError, match="is not in the cache of Hugging Face"):
        read_beside("some/tower", "1_Pooling/config.json")
