"""Evaluation: the ranks of the right answers, and all figures that follow from them.

`ranks` counts them block by block, `metrics` computes recalls, `protocols` and `folds` define what
is evaluated together, `bootstrap` and `seeds` estimate how reliable figures are, and `rank_cache`
keeps ranks with a run. `tables` prints results side by side.
"""
