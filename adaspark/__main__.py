"""``python -m adaspark`` is ``adaspark-run``."""

import sys

from adaspark.cli import main

sys.exit(main())
