"""Scoring: encodings in; the score matrix, or the scores of given pairs, out.

`protocol` states what a model is to the rest of the library. `inner_product` and `cross_attention`
are its two kinds of scores, `ensemble` the mean of several. `encoded` and `encoding_files` hold
what a model makes of a data set, in memory and on disk; `blocks` bounds the memory of all pairs.
"""
