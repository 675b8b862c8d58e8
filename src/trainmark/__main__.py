"""Lets `python -m trainmark` be the same as `trainmark`."""

import sys

from trainmark.cli.main import main

sys.exit(main())
