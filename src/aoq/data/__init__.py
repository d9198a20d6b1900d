"""Data sets: ids, region features, captions, and who belongs to whom.

`sources` reads what people bring into records, `build` makes a data set folder of them, `splits`
opens such folders and published ones in place, `checks` reports what is wrong or odd with them,
and `collate` turns ids into the tensors of a batch. `scenes` draws the embedded data set.
"""
