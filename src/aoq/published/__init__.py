"""Files of the published programs become runs, and nothing in them is executed.

`pickles` and `vocabularies` read what others pickled, instruction by instruction; `weights` and
`models` translate names and settings, `lists` candidate lists, and `importer` writes the run.
"""
