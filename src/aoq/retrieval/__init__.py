"""Search: an index of images and texts, and the matcher that answers from it.

`build` encodes data sets and photos into an `index`, `encoder` reads queries, `ranking` finds the
best entries for them, exactly or among a teacher's proposals, and `matcher` joins the three.

`queries` says what can be asked, and `find` answers it: `composition` adds up sentences and photos,
`text` searches captions, `fusion` merges both rankings, `calibration` says what a score means, and
`duplicates` shows the same photo once. `dev_queries` learns the weights and meanings from dev.
"""
