"""`python -m aoq` is the command `aoq`."""

from aoq.cli import main

main()
