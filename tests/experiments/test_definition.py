"""Definitions of experiments: mistakes in them are rejected with a sentence."""

from __future__ import annotations

import pytest

from aoq.errors import UserError
from aoq.experiments.definition import load_definition

MISTAKES = {
    "rows = 3": "Expected `array`, got `int` - at `$.rows`",
    "seeds = [0]": "required field `rows`",
    "row = []": "unknown field `row`",
    '[[rows]]\nlabel = "a"': "required field `recipe` - at `$.rows[0]`",
    '[[rows]]\nlabel = "a"\nrecipe = "vsrm-coco"': "there is no recipe 'vsrm-coco'",
    '[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\nsettings = { epochs = 3 }': "setting 'epochs'",
    '[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\nseed = 3': "unknown field `seed`",
    'seeds = [0, 0]\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"': "seeds is [0, 0]",
    'seeds = ["0"]\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"': "Expected `int`",
    'name = "a/b"\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"': "at `$.name`",
    '[mining]\ndepth = 3\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"': "no setting 'depth'",
    'teacher = "b"\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"': "there is no recipe 'b'",
    'teacher = "a"\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"': "does not end with round one",
    'teacher = "vsrn-coco"\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco+h500"\n'
    "settings = { mining.depth_texts = 500 }": "draws from lists with depth_texts 500",
    '[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\n[[rows]]\nlabel = "a"\nrecipe = "scan-coco"': (
        "the label 'a' is used twice"
    ),
    '[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\n[[rows]]\nlabel = "b"\nrecipe = "vsrn-coco"': (
        "'a' and 'b'"
    ),
    '[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\nseeds = [3]': "expected some of the experiment",
    "rows = [": "mine.toml: ",
}
ENSEMBLES = {
    'label = "b"': "required field `members` - at `$.ensembles[0]`",
    'label = "a"\nmembers = ["a", "a, seed 1"]': "used twice",
    'label = "b"\nmembers = ["a"]': "at `$.ensembles[0].members",
    'label = "b"\nmembers = ["a", 3]': "at `$.ensembles[0].members",
    'label = "b"\nmembers = ["a", "c"]': "has no row 'c'",
    'label = "b"\nmembers = ["a", "a, seed 7"]': "'a' is never trained with seed 7",
    'label = "b"\nmembers = ["a", "a, seed 1"]\nseeds = [2]': "'a' is never trained with seed 2",
    'label = "b"\nmembers = ["a", "a, seed 1"]\nseeds = []': "at `$.ensembles[0].seeds`",
    'label = "b"\nmembers = ["a", "a, seed 1"]\nseed = 0': "unknown field `seed`",
}
CHOICES = {
    'label = "b"': "required field `of`",
    'label = "a"\nof = ["a", "c"]': "used twice",
    'label = "b"\nof = ["a", "a"]': "two or more rows",
    'label = "b"\nof = ["a", "d"]': "has no row 'd'",
    'label = "b"\nof = ["a", "c"]\nseeds = [1]': "'c' is never trained with seed 1",
}
MISTAKES |= {
    f'seeds = [0, 1]\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\n[[rows]]\nlabel = "c"\n'
    f'recipe = "scan-coco"\nseeds = [0]\n[[choices]]\n{text}': sentence
    for text, sentence in CHOICES.items()
}
MISTAKES |= {
    f'seeds = [0, 1]\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\n[[ensembles]]\n{text}': sentence
    for text, sentence in ENSEMBLES.items()
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_definition_with_a_mistake_is_refused_with_a_sentence(tmp_path, text):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UserError) as refused:
        load_definition(tmp_path / "mine.toml")
    assert MISTAKES[text] in str(refused.value)
