"""Runs: what a trained model is on disk, and how it is opened, judged and mined with.

`directory` names the files, `events` and `checkpoint` read and write them, `best_round` chooses the
round that commands use, `summary` lists many runs without opening weights. `encodings`, `judge` and
`mine` put a trained model to use. Training writes runs; nothing here imports it.
"""
