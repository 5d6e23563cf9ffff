"""`python -m gristmill`: the command line."""

from gristmill._cli import main

main()
