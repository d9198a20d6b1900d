"""VSRN's caption model: predicts the caption from the region states, with teacher forcing.

The published decoder processes one word at a time, for `max_words` steps. Here everything that does
not depend on the decoder's state (its half of the attention, the words' share of the gates, the
projection to the vocabulary) is one matrix product for all steps, decoding ends with the longest
caption of the batch, and only words that count are projected to the vocabulary: about half of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from aoq.types import Texts


class AdditiveAttention(nn.Module):
    """Weights of the encoder states for a decoder state: v . tanh(W [state, hidden] + b)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def prepare(self, states: Tensor) -> Tensor:
        """Apply the half of the first layer that reads the encoder states, once for all steps."""
        width = states.shape[-1]
        return linear(states, self.hidden.weight[:, :width], self.hidden.bias)

    def forward(self, states: Tensor, prepared: Tensor, hidden: Tensor) -> Tensor:
        """Return the attended encoder state. (B, W)"""
        from_hidden = linear(hidden, self.hidden.weight[:, states.shape[-1] :])  # (B, W)
        scores = self.score(torch.tanh(prepared + from_hidden[:, None]))  # (B, R, 1)
        weights: Tensor = scores.softmax(dim=1)
        return (weights.transpose(1, 2) @ states)[:, 0]


class CaptionModel(nn.Module):
    """A GRU encoder-decoder with attention; its loss is VSRN's text generation loss."""

    def __init__(
        self,
        *,
        region_width: int,
        width: int,
        word_width: int,
        vocabulary_size: int,
        dropout: float,
        max_words: int,
    ) -> None:
        super().__init__()
        self.max_words = max_words
        self.projection = nn.Linear(region_width, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.embedding = nn.Embedding(vocabulary_size, word_width)
        self.attention = AdditiveAttention(width)
        self.decoder = nn.GRUCell(word_width + width, width)
        self.output = nn.Linear(width, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_normal_(self.projection.weight)
        nn.init.xavier_normal_(self.output.weight)

    def decode(self, regions: Tensor, labels: Tensor) -> Tensor:
        """Return the decoder's state after each word of `labels`. (B, T, W)"""
        states, last = self.encoder(self.dropout(self.projection(regions)))
        prepared, hidden = self.attention.prepare(states), last[0]
        words = self.dropout(self.embedding(labels))
        gru, word_width = self.decoder, words.shape[-1]
        from_words = linear(words, gru.weight_ih[:, :word_width], gru.bias_ih)  # (B, T, 3 W)
        from_attention = gru.weight_ih[:, word_width:]
        hiddens = []
        for of_word in from_words.unbind(dim=1):
            attended = self.dropout(self.attention(states, prepared, hidden))
            inputs = of_word + linear(attended, from_attention)
            hidden = _gru_step(inputs, linear(hidden, gru.weight_hh, gru.bias_hh), hidden)
            hiddens.append(hidden)
        return torch.stack(hiddens, dim=1)

    def forward(self, regions: Tensor, texts: Texts) -> Tensor:
        """Return the negative log-likelihood of the captions, summed, divided by the batch size."""
        labels, mask = caption_labels(texts, max_words=self.max_words)
        counts = mask[:, 1:]
        logits = self.output(self.decode(regions, labels[:, :-1])[counts])  # (words, V)
        return cross_entropy(logits, labels[:, 1:][counts], reduction="sum") / len(labels)


def _gru_step(inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> Tensor:
    """Compute the GRU update from the gate inputs of the word and of the last state. (B, W)"""
    width = hidden.shape[-1]
    reset, update = (inputs + recurrent)[:, : 2 * width].sigmoid().chunk(2, dim=1)
    proposal = torch.tanh(inputs[:, 2 * width :] + reset * recurrent[:, 2 * width :])
    return torch.lerp(proposal, hidden, update)


def caption_labels(texts: Texts, *, max_words: int) -> tuple[Tensor, Tensor]:
    """Return labels `<start> ... <end>` and the mask of the positions that count.

    As published: at most `max_words` positions, with `<end>` last, and the mask reaches one
    position past `<end>`, so that the model also learns to stop there.
    """
    tokens, lengths = texts.tokens, texts.lengths.clamp(max=max_words)
    longest = min(int(lengths.max()) + 1, max_words)
    labels = tokens.new_zeros(len(tokens), longest)
    width = min(longest, tokens.shape[1])
    labels[:, :width] = tokens[:, :width]
    positions = torch.arange(longest, device=tokens.device)
    ends = tokens[torch.arange(len(tokens)), texts.lengths - 1]
    last = (lengths - 1)[:, None]
    labels = labels.masked_fill(positions > last, 0).scatter(1, last, ends[:, None])
    return labels, positions <= last + 1
