"""``python -m tests.double [postgrest.conf]``: the double in place of the real server."""

import os
import signal
import sys
from pathlib import Path

from tests.double.config import read_config
from tests.double.server import serve_forever

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    serve_forever(read_config(file, os.environ))
