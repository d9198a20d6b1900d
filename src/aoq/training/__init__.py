"""Training: one step, one round, and the two rounds of the paper with mining between them.

A `step` scores a batch and updates the weights, alone or with `collectives` in several processes; a
`round` repeats it, validates and saves; `two_rounds` is the paper. `inputs` opens what they read,
`preflight` and `cost` tell beforehand what cannot work and what it takes.
"""
