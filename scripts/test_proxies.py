"""Run real fronts behind HAProxy and nginx with the shipped configurations; `make test-proxies` does it.

Both programs have to be there: `apt-get install haproxy nginx-light`, or the like. Arguments are pytest's.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKS = ROOT / "tests" / "proxies" / "proxy_checks.py"


def main() -> int:
    """Run the checks and return pytest's exit code."""
    if missing := [name for name in ("haproxy", "nginx") if shutil.which(name) is None]:
        sys.stderr.write(f"{' and '.join(missing)} not found on PATH; install it, for example with apt-get.\n")
        return 2
    return subprocess.run(
        [sys.executable, "-m", "pytest", str(CHECKS), *sys.argv[1:]], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
