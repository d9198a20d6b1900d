"""Features: the output of frozen networks for pictures, computed once and cached.

`pictures` decodes files, `backbones` loads the networks, `regions` pools their output to a grid,
and `extract` does this for many pictures, with a cache by content. `tables` and `bottom_up` read
features that were computed before. This folder does not depend on data sets.
"""
