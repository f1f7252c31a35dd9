"""`python -m neural_similarity` is the command `nsim`."""

import sys

from neural_similarity.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
