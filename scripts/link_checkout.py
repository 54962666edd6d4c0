"""Make the checkout importable, and the `tidegate` command runnable, in the virtual environment that runs this.

An editable install would need a build backend first. What it comes down to is a path file and a console script, so
that `make run` installs nothing but what ships.
"""

import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("server", "clients/python", "clients/collectors")
COMMAND = """#!{python}
import sys

from tidegate_server.cli import main

sys.exit(main())
"""


def main() -> None:
    """Write the path file and the command."""
    if sys.prefix == sys.base_prefix:
        sys.exit("link_checkout.py: run this with the Python of a virtual environment")
    paths = "".join(f"{ROOT / source}\n" for source in SOURCES)
    (Path(sysconfig.get_path("purelib")) / "tidegate-checkout.pth").write_text(paths)
    command = Path(sysconfig.get_path("scripts")) / "tidegate"
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)


if __name__ == "__main__":
    main()
