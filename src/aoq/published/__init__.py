"""Imports files of the published programs as runs; nothing in them is executed.

`pickles` and `vocabularies` read pickled files, instruction by instruction; `weights` and `models`
translate names and settings, `lists` reads candidate lists, and `importer` writes the run.
"""
