"""Search: an index of images and texts, and the matcher that answers from it.

`build` encodes data sets and photos into an `index`, `encoder` reads queries, `ranking` finds the
best entries for them, exactly or among a teacher's proposals, and `matcher` joins the three.
"""
