"""`python -m serving`: the embedded server."""

import sys

from serving.embedded.__main__ import main

sys.exit(main())
