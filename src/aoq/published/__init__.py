"""Imports pretrained models and files of the published programs as runs; nothing is executed.

`dual_encoders` makes a run of a pretrained model, and `open_clip` translates those of open_clip. Of
the published programs, `pickles` and `vocabularies` read pickled files, instruction by instruction;
`weights` and `models` translate names and settings, `lists` reads candidate lists, and `importer`
writes the run.
"""
