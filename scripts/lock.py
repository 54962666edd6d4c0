"""Write the files of requirements/ from pyproject.toml: versions and hashes, for every platform.

`run` is what ships, `image` that with every extra (deploy/Containerfile), `dev` what the project itself needs.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = (
    "--quiet",
    "--upgrade",
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
    "--no-sources",
    "--no-emit-index-url",  # a lock names versions, not where somebody's machine fetches them
    "--no-emit-find-links",
    "--no-annotate",
    "--no-header",
)


def compile_lock(output: str, *extra: str) -> None:
    """Resolve pyproject.toml into `output`."""
    uv = Path(sys.prefix) / "bin" / "uv"
    subprocess.run([uv, "pip", "compile", *OPTIONS, *extra, "pyproject.toml", "-o", output], cwd=ROOT, check=True)


if __name__ == "__main__":
    compile_lock("requirements/run.txt")
    extras = [f"--extra={name}" for name in ("postgres", "valkey", "envoy", "agents", "otel")]
    compile_lock("requirements/image.txt", *extras, "--constraint=requirements/run.txt")
    compile_lock("requirements/dev.txt", "--extra=dev", "--constraint=requirements/run.txt")
