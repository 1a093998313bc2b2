"""`python -m gradveil`."""

from gradveil.cli import main

main()
