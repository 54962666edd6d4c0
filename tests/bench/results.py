"""What the benchmarks found, kept as JSON with the commit and the machine: what the page and its plot are made from."""

import datetime as dt
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import grpc

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "build" / "bench.json"


def save(name: str, figures: Any) -> None:
    """Keep the figures of one benchmark beside those of the others."""
    FILE.parent.mkdir(exist_ok=True)
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    found[name] = {"commit": _commit(), "machine": _machine(), "figures": figures}
    FILE.write_text(json.dumps(found, indent=2) + "\n")


def load() -> dict[str, Any]:
    """All that is kept."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def _commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return git.stdout.strip() or "unknown"


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
