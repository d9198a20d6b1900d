"""Evaluation: the ranks of the right answers, and all figures that follow from them.

`ranks` counts them block by block, `metrics` computes recalls, `protocols` and `folds` define what
is evaluated together, `bootstrap` and `seeds` estimate how reliable figures are, `effects` compares
settings with the error of trainings and queries, `power` plans such comparisons. `rank_cache` keeps
ranks with a run, `rank_archive` those of many trainings. `tables` prints results side by side.
"""
