"""The data doctor reports what is wrong or unusual in a data set, before hours of training.

`dataset` checks files and numbers, `captions` and `images` check for repeats, near duplicates and
leaks, which `resemblance` finds without comparing all pairs. Each observation is a finding.
"""
