"""`python -m ddpdoctor.probe`, as one rank."""

from __future__ import annotations

import sys

from ddpdoctor.probe.supervisor import main

if __name__ == "__main__":
    sys.exit(main())
