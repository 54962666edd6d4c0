"""`make test-gateways`: build every client and example gateway, and run them against real servers.

What runs: the clients' own tests, the conformance suite for all of them, the example gateways, TLS, tokens and
keepalive, the health probes, Envoy and the SDKs through it, the manifests. `make test` runs the same among the rest.
Needs Go 1.26 and Node.js 20; a test that the machine cannot run is named at the end. Arguments go to pytest.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITES = ("tests/gateways", "tests/conformance")


def main() -> int:
    """The exit code of the suites."""
    command = [sys.executable, "-m", "pytest", "-m", "not soak", "-rs", *SUITES, *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
