"""`python -m ddpdoctor.probe`, as one rank."""

from __future__ import annotations

import os
import sys

from ddpdoctor.probe.supervisor import main

if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 141
    except Exception as error:  # the error boundary: anything that gets here is our own bug
        if os.environ.get("DDPDOCTOR_TRACEBACK"):
            raise
        print(f"ddpdoctor.probe: internal error: {type(error).__name__}: {error}", file=sys.stderr)
        code = 3
    sys.exit(code)
