"""Data sets: ids, region features, captions, and which image belongs to which caption.

`sources` reads source files into records, `build` makes a data set folder of them, `splits` opens
such folders and published ones in place, `checks` reports what is wrong or unusual in them, and
`collate` turns ids into the tensors of a batch. `scenes` draws the embedded data set.
"""
