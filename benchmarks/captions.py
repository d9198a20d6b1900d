"""The caption loss of VSRN, against a decoder that goes word by word to its full length."""

from __future__ import annotations

import torch

from aoq.models.captioner import CaptionModel, caption_labels
from aoq.types import Texts
from benchmarks.harness import Comparison, Task

WIDTH = 1024
BATCH, REGIONS, MAX_WORDS = 128, 36, 60


def caption_tasks() -> tuple[Task, Task]:
    torch.manual_seed(0)
    model = CaptionModel(
        region_width=WIDTH,
        width=512,
        word_width=300,
        vocabulary_size=8_000,
        dropout=0.0,
        max_words=MAX_WORDS,
    )
    regions = torch.randn(BATCH, REGIONS, WIDTH)
    lengths = torch.randint(8, 18, (BATCH,))
    tokens = torch.randint(4, 8_000, (BATCH, 18)) * (torch.arange(18) < lengths[:, None])
    texts = Texts(tokens, lengths)

    def ours() -> object:
        return model(regions, texts).backward()

    def word_by_word() -> object:
        labels, mask = caption_labels(texts, max_words=MAX_WORDS)
        padding = (0, MAX_WORDS - labels.shape[1])
        labels = torch.nn.functional.pad(labels, padding)
        mask = torch.nn.functional.pad(mask, padding)
        states, last = model.encoder(model.projection(regions))
        hidden, losses = last[0], []
        for step in range(MAX_WORDS - 1):
            repeated = hidden[:, None].expand_as(states)
            joined = torch.cat([states, repeated], dim=2)
            scores = model.attention.score(torch.tanh(model.attention.hidden(joined)))
            attended = (scores.softmax(dim=1) * states).sum(dim=1)
            words = model.embedding(labels[:, step])
            hidden = model.decoder(torch.cat([words, attended], dim=1), hidden)
            logits = model.output(hidden).log_softmax(dim=1)
            loss = torch.nn.functional.nll_loss(logits, labels[:, step + 1], reduction="none")
            losses.append(loss * mask[:, step + 1])
        return (torch.stack(losses).sum() / BATCH).backward()

    return ours, word_by_word


COMPARISONS = [
    Comparison(
        name="caption loss",
        what=f"forward and backward, batch {BATCH}, {REGIONS} regions, captions of 8 to 17 words",
        baseline=f"one word at a time for all {MAX_WORDS} positions",
        setup=caption_tasks,
        repeats=3,
    ),
]
