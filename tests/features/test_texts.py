"""Texts go through a frozen tower once, are kept, and are computed again only if lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from aoq.errors import UserError
from aoq.features import texts
from aoq.features.outputs import Output
from aoq.features.text_models import TextModel, TextSource
from aoq.features.texts import freeze_texts
from aoq.types import Ids, Texts
from tests.kills import KilledError
from tests.processes import in_threads
from tests.towers import TinyModels

RANDOM = np.random.default_rng(0)
TOKENS = [np.array([1, *RANDOM.integers(4, 200, size=count), 3]) for count in (2, 9, 5, 1, 7, 3, 4)]


@pytest.fixture
def pieces_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_PIECE", 3)


@pytest.fixture(params=["pooled", "mean", "block-2"])
def source(towers: TinyModels, own_cache: Path, request: pytest.FixtureRequest) -> TextSource:
    return TextSource.of_tower(str(towers.bert), Output.parse(request.param))


def computed_alone(source: TextSource, words: Ids) -> torch.Tensor:
    rows = source.load()(Texts(torch.from_numpy(words[None]), torch.tensor([len(words)])))
    assert rows is not None
    return rows[0]


def test_every_text_has_what_the_tower_makes_of_it_alone(
    source: TextSource, pieces_of_three: None
) -> None:
    frozen = freeze_texts(TOKENS, source, pad=0)
    ids = np.array([6, 0, 3, 3])
    found = frozen[ids]
    is_rough = not Output.parse(source.output).is_vector  # states are kept as float16
    for row, number in zip(found, ids, strict=True):
        expected = computed_alone(source, TOKENS[number])
        kept = row if expected.ndim == 1 else row[: len(TOKENS[number])]
        torch.testing.assert_close(kept, expected, rtol=0, atol=5e-3 if is_rough else 1e-5)
        if expected.ndim == 2:
            assert not row[len(TOKENS[number]) :].any()


def test_nothing_is_computed_twice(
    source: TextSource, pieces_of_three: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = freeze_texts(TOKENS, source, pad=0)[np.arange(len(TOKENS))]
    monkeypatch.setattr(TextModel, "__call__", None)
    again = freeze_texts(TOKENS, source, pad=0)[np.arange(len(TOKENS))]
    torch.testing.assert_close(again, first, rtol=0, atol=0)


def test_what_was_interrupted_continues(
    source: TextSource, pieces_of_three: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, kept = texts.keep_array, []

    def interrupted(place: Path, rows: object) -> None:
        if len(kept) == 2:
            raise KilledError
        kept.append(place)
        keep(place, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(texts, "keep_array", interrupted)
    with pytest.raises(KilledError):
        freeze_texts(TOKENS, source, pad=0)
    monkeypatch.setattr(texts, "keep_array", keep)
    read = []
    compute = texts._compute
    monkeypatch.setattr(
        texts,
        "_compute",
        lambda model, piece, *, pad: read.append(len(piece)) or compute(model, piece, pad=pad),
    )
    freeze_texts(TOKENS, source, pad=0)
    assert read == [1]  # the last piece of three


def test_processes_compute_a_share_each(
    source: TextSource, pieces_of_three: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = freeze_texts(TOKENS, source, pad=0)[np.arange(len(TOKENS))]
    monkeypatch.setenv("AOQ_CACHE", str(tmp_path / "shared"))
    keep, kept = texts.keep_array, []
    monkeypatch.setattr(
        texts, "keep_array", lambda place, rows: kept.append(place) or keep(place, rows)
    )
    shares = in_threads(lambda processes: freeze_texts(TOKENS, source, pad=0, processes=processes))
    assert len(kept) == len(set(kept)) == 3
    for frozen in shares:
        torch.testing.assert_close(frozen[np.arange(len(TOKENS))], expected, rtol=0, atol=0)


def test_states_that_float16_cannot_keep_are_refused(towers: TinyModels, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(towers.bert, tmp_path / "bert"))
    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        model.embeddings.LayerNorm.bias.fill_(1e5)
    model.save_pretrained(folder)
    with pytest.raises(UserError, match=r"up to 1e\+05, which float16"):
        TextSource.of_tower(str(folder), Output("states", 0))
    assert TextSource.of_tower(str(folder), Output("mean"))


def test_what_is_damaged_is_computed_again(source: TextSource, own_cache: Path) -> None:
    first = freeze_texts(TOKENS, source, pad=0)[np.arange(3)].clone()
    (place,) = own_cache.rglob("*.npy")
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)
    again = freeze_texts(TOKENS, source, pad=0)[np.arange(3)]
    torch.testing.assert_close(again, first, rtol=0, atol=0)
