"""Docs do not rot in silence: links lead somewhere, and commands are ones that the command line takes."""

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from tidegate_server.cli import parser

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted(
    page
    for page in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("clients/**/*.md"),
        *ROOT.glob("tests/**/*.md"),
    ]
    if "node_modules" not in page.parts
)
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(#[^)\s]+)?\)")
COMMAND = re.compile(r"^\s*(?:\.venv/bin/)?tidegate ([^|>#\n]*)", re.MULTILINE)


def blocks(text: str) -> str:
    """What stands in shell blocks, continued lines joined."""
    return "\n".join(re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        to = (page.parent / target).resolve() if target else page
        assert to.exists(), target
        if anchor and to.suffix == ".md":
            assert anchor[1:] in anchors(to), target + anchor


COMMANDS = sorted({(page, command.strip()) for page in PAGES for command in COMMAND.findall(blocks(page.read_text()))})


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: str(value)[-60:])
def test_commands_are_real(page: Path, command: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        parser().parse_args(shlex.split(command.replace("$", "")))
    assert "error:" not in said.getvalue(), f"{page.relative_to(ROOT)}: tidegate {command}\n{said.getvalue()}"


def test_every_dependency_has_its_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chosen = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[\[<>=~ ]", requirement)[0] for requirement in chosen}
    page = (ROOT / "docs" / "dependencies.md").read_text()
    assert not [name for name in sorted(names) if name not in page and not name.startswith("types-")]
