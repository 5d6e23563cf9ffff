"""`python -m gristmill`: the command line."""

from gristmill._cli.main import main

main()
