"""Scoring: computes the score matrix, or the scores of given pairs, from encodings.

`protocol` defines the interface of a model. `inner_product` and `cross_attention` are the two kinds
of scores, `ensemble` is the mean of several. `encoded` and `encoding_files` hold the encodings of a
data set, in memory and on disk; `blocks` bounds the memory of scoring all pairs.
"""
