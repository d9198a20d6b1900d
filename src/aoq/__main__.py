"""Runs the command `aoq` as `python -m aoq`."""

from aoq.cli import main

main()
