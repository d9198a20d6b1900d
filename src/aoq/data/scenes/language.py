"""The five sentences of a picture, chosen so that they distinguish it from its rivals.

Sentences are drawn from the grammar until five fit together: all different, of a readable
length, and at least three false of each rival (the other members of the family). The grammar
mentions the details in which a scene differs from a rival more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from aoq.data.scenes.grammar import Phrase, Writer, write_sentence
from aoq.data.scenes.world import Fact, Scene, facts

SENTENCES = 5
SENTENCES_AGAINST_A_RIVAL = 3
FEWEST_WORDS, MOST_WORDS = 6, 25


def describe(scene: Scene, *, seed: int, rivals: Sequence[Scene] = ()) -> tuple[str, ...]:
    """Write five different true sentences, at least three of them false of each rival."""
    return tuple(phrase.text for phrase in phrases(scene, seed=seed, rivals=rivals))


def phrases(scene: Scene, *, seed: int, rivals: Sequence[Scene] = ()) -> tuple[Phrase, ...]:
    """Write the sentences of `describe` with the facts they state."""
    random = Random(f"sentences {seed}")
    telling = [facts(scene) - facts(rival) for rival in rivals]
    writer = Writer(scene, emphasis=frozenset[Fact]().union(*telling), random=random)

    chosen: tuple[Phrase, ...] = ()
    while len(chosen) < SENTENCES:
        attempt = (*chosen, write_sentence(writer))
        if _are_readable(attempt) and _can_refute(attempt, telling):
            chosen = attempt
    return tuple(random.sample(chosen, SENTENCES))


def _are_readable(sentences: Sequence[Phrase]) -> bool:
    texts = {sentence.text for sentence in sentences}
    right_length = all(FEWEST_WORDS <= len(text.split()) <= MOST_WORDS for text in texts)
    return right_length and len(texts) == len(sentences)


def _can_refute(sentences: Sequence[Phrase], telling: Sequence[frozenset[Fact]]) -> bool:
    """Return whether every rival can still be refuted often enough by the remaining sentences."""
    to_come = SENTENCES - len(sentences)
    return all(
        to_come + sum(not details.isdisjoint(sentence.facts) for sentence in sentences)
        >= SENTENCES_AGAINST_A_RIVAL
        for details in telling
    )
