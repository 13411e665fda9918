"""`python -m hotlap` is the same as `hotlap`."""

import sys

from hotlap.cli import main

sys.exit(main())
