"""Write requirements/run.txt and requirements/dev.txt from pyproject.toml: every version and hash, for every platform."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILE = (
    "uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-sources"
    " --no-emit-index-url --no-emit-find-links --no-annotate --no-header"
).split()


def compile_lock(output: str, *extra: str) -> None:
    """Resolve pyproject.toml into `output`."""
    tool = Path(sys.prefix) / "bin" / COMPILE[0]
    subprocess.run([tool, *COMPILE[1:], *extra, "pyproject.toml", "-o", output], cwd=ROOT, check=True)


if __name__ == "__main__":
    compile_lock("requirements/run.txt")
    compile_lock("requirements/dev.txt", "--extra", "dev", "-c", "requirements/run.txt")
