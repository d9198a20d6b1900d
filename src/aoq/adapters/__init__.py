"""Mined lists and losses for the training loops of other libraries.

`rows` gives candidate lists as a data set of Hugging Face, in the n-tuples that
sentence-transformers trains on, and mines them with its models; `pairs` is a PyTorch data set of
positive pairs with offline negatives; `matching` makes a loss of sentence-transformers out of any
of ours. Other libraries are imported only where their objects are made.
"""
