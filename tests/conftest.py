"""What holds for every suite: a skipped test is named at the end, and under CI it is a failure."""

import os

import pytest

_skipped: list[tuple[str, str]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what this machine could not run."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _skipped.append((report.nodeid, reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each skipped test with its reason."""
    if _skipped:
        terminalreporter.section("not run on this machine")
        for nodeid, reason in _skipped:
            terminalreporter.line(f"{nodeid}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """CI runs everything or fails."""
    if _skipped and os.environ.get("CI"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
