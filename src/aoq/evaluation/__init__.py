"""Evaluation: the ranks of the right answers, and every figure that follows from them.

`ranks` counts them block by block, `metrics` makes recalls of them, `protocols` and `folds` say
what is judged together, `bootstrap` and `seeds` how far figures can be believed, and `rank_cache`
keeps ranks with a run. `tables` prints results side by side.
"""
