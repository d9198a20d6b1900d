"""The data doctor: what is wrong or odd with a data set, before hours of training.

`dataset` looks at files and numbers, `captions` and `images` at repeats, near twins and leaks,
which `resemblance` finds among all without comparing all pairs. Each observation is a finding.
"""
