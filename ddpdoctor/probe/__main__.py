"""`python -m ddpdoctor.probe`, as one rank."""

from __future__ import annotations

import os
import sys

from ddpdoctor.probe.early_signal import keep
from ddpdoctor.system.selfexec import leave_folder, open_missing_streams


def _interrupted(number: int, frame: object) -> None:
    """Ctrl-C before the rank has joined: no other rank waits for it yet, and its worker ends with it."""
    if os.environ.get("LOCAL_RANK", "0") == "0" and "--launched" not in sys.argv:
        os.write(2, b"ddpdoctor: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    leave_folder()
    import signal

    open_missing_streams()
    signal.signal(signal.SIGINT, _interrupted)
    signal.signal(signal.SIGTERM, keep)
    try:
        from ddpdoctor.probe.supervisor import main

        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(141)  # not sys.exit(): it would write what is left once more
    except Exception as error:  # the error boundary: any exception here is a bug of ddpdoctor
        if os.environ.get("DDPDOCTOR_TRACEBACK"):
            raise
        print(f"ddpdoctor.probe: internal error: {type(error).__name__}: {error}", file=sys.stderr)
        code = 3
    sys.exit(code)
