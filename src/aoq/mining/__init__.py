"""Mining: the hardest wrong partners of every image and text, from the whole training set.

`mine` is the entry. A `plan` says how the lists are to be, a `sweep` fills them from the score
matrix, `finish` applies the rules and builds the `candidates`.
"""
