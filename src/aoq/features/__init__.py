"""Features: what frozen networks see in pictures, computed once and kept.

`pictures` decodes files, `backbones` names the networks, `regions` pools their output to a grid,
and `extract` does it for many pictures, into a cache by content. `tables` and `bottom_up` read
features that were computed before. Data sets come later in the pipeline: nothing here knows them.
"""
