"""`tidegate collect`, `tidegate collector presets` and `tidegate collector test`, for the command that ships with us.

Exit codes: 0 yes, 1 no, 2 wrong use.
"""

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidegate import CredentialError

from tidegate_collectors import config, presets
from tidegate_collectors.facts import Source
from tidegate_collectors.generic.evaluate import GenericParser
from tidegate_collectors.presets import Parse
from tidegate_collectors.sampling import as_expected, expectation, read_sample, report
from tidegate_collectors.service import collect
from tidegate_collectors.vocabulary import differences

YES, NO, WRONG_USE = 0, 1, 2


class Usage(Exception):
    """Something that was asked for is not there; exit code 2."""


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `collect` and `collector` to a command line; each sets `run`, which returns the exit code."""
    add_collect_arguments(commands.add_parser("collect", help="run the collectors of a file"))
    add_collector_arguments(commands.add_parser("collector", help="presets, and tests of saved answers"))


def add_collect_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `collect`."""
    parser.add_argument("--config", required=True, metavar="FILE", help="the collectors' file")
    parser.add_argument("--server", metavar="ADDR", help="address of the server (default: the file's, TIDEGATE_SERVER)")
    parser.add_argument("--token-file", metavar="FILE", help="bearer token (default: the file's, found by itself)")
    parser.add_argument("--check", action="store_true", help="only check the file")
    parser.add_argument("--json", action="store_true", help="faults as JSON")
    parser.set_defaults(run=run_collect)


def add_collector_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `collector presets` and `collector test`."""
    commands = parser.add_subparsers(dest="collector_command", required=True, metavar="COMMAND")
    listing = commands.add_parser("presets", help="list the collectors that ship")
    listing.add_argument("--json", action="store_true")
    listing.set_defaults(run=run_presets)
    test = commands.add_parser("test", help="read a saved answer, offline")
    what = test.add_mutually_exclusive_group(required=True)
    what.add_argument("--preset", metavar="NAME", help="the preset that reads it")
    what.add_argument("--config", metavar="FILE", help="the collectors' file, with the collector in --collector")
    test.add_argument("--collector", metavar="ID", help="which collector of the file (default: the only one)")
    test.add_argument("--sample", required=True, metavar="FILE", help="a body, or a raw HTTP response")
    test.add_argument("--now", metavar="TIME", help="when the sample arrived (RFC 3339; default: now)")
    test.add_argument("--expect", metavar="FILE", help="the facts that it must give; exit 1 when they differ")
    test.add_argument(
        "--provider", default="", metavar="ALIAS", help="the account (default: that of --expect, the preset)"
    )
    test.add_argument("--model", default="", metavar="MODEL", help="the model, where the sample does not name it")
    test.add_argument("--json", action="store_true")
    test.set_defaults(run=run_test)


def run_collect(args: argparse.Namespace) -> int:
    """Run the collectors of a file until told to stop."""
    try:
        loaded = config.load(args.config)
    except config.ConfigError as error:
        _faults(error.faults, as_json=args.json)
        return NO
    if args.check:
        _print({"faults": []} if args.json else f"{args.config}: {len(loaded.collectors)} collectors, no fault")
        return YES
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    # What asks is not to write down whom it asks: an address can hold an account's name.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        asyncio.run(collect(loaded, server=args.server, token_file=args.token_file))
    except (CredentialError, OSError) as error:
        print(f"collect: {error}", file=sys.stderr)
        return NO
    return YES


def run_presets(args: argparse.Namespace) -> int:
    """List the presets."""
    if args.json:
        _print([_preset(preset) for preset in presets.PRESETS.values()])
        return YES
    for preset in presets.PRESETS.values():
        mark = "" if preset.official else "  (not documented by the vendor: needs `unofficial: true`)"
        print(f"{preset.name:20} {preset.title}{mark}\n{'':20} reads {preset.reads}")
        every = "with traffic" if preset.via is presets.Via.OBSERVER else f"every {preset.every:g} s"
        print(f"{'':20} {every}; costs {preset.cost}{f'; {preset.note}' if preset.note else ''}")
    return YES


def run_test(args: argparse.Namespace) -> int:
    """Read a sample, and compare it with what is expected."""
    sample = Path(args.sample)
    try:
        parse, source, name = _chosen(args)
        now = _now(args.now)
        wanted = expectation(Path(args.expect), sample) if args.expect else None
        if wanted is not None:
            source = as_expected(source, wanted)
        source = replace(source, provider=source.provider or name)
        reading = read_sample(parse, sample, source, now)
    except (Usage, OSError, ValueError) as error:
        print(f"collector test: {error}", file=sys.stderr)
        return WRONG_USE
    told = report(reading, source, now)
    faults = differences(wanted, told["facts"]) if wanted is not None else []
    if args.json:
        _print({**told, **({"differences": faults} if wanted is not None else {})})
    else:
        _describe(told, faults, compared=wanted is not None)
    return NO if faults else YES


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands by itself, as `python -m tidegate_collectors.cli`."""
    parser = argparse.ArgumentParser(prog="tidegate", description="Collect capacity facts for Tidegate.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_arguments(commands)
    args = parser.parse_args(argv)
    result: int = args.run(args)
    return result


def _chosen(args: argparse.Namespace) -> tuple[Parse, Source, str]:
    """Return the parser, the source and the account's default name."""
    if args.preset:
        try:
            preset = presets.find(args.preset)
        except KeyError as error:
            raise Usage(error.args[0]) from None
        models = (args.model,) if args.model else ()
        return preset.parser(), Source(provider=args.provider, model=args.model, models=models), preset.name
    try:
        entry = config.pick(config.read(args.config), args.collector)
    except config.ConfigError as error:
        raise Usage(str(error)) from None
    parse = entry.kind.parser() if entry.kind else GenericParser(entry)
    source = replace(entry.source, model=args.model or entry.model, provider=args.provider)
    return parse, source, entry.provider


def _now(text: str | None) -> datetime:
    if text is None:
        return datetime.now(UTC)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise Usage(f"--now: {text!r} is no RFC 3339 time") from None
    if instant.tzinfo is None:
        raise Usage("--now: needs an offset, as in 2026-10-20T12:00:00Z")
    return instant.astimezone(UTC)


def _preset(preset: presets.Preset) -> dict[str, Any]:
    return {
        "name": preset.name,
        "title": preset.title,
        "via": str(preset.via),
        "url": preset.url or None,
        "paths": [path for path in preset.paths if path],
        "every_s": None if preset.via is presets.Via.OBSERVER else preset.every,
        "at_most_every_s": None if preset.via is presets.Via.OBSERVER else preset.least,
        "official": preset.official,
        "reads": preset.reads,
        "cost": preset.cost,
        "note": preset.note or None,
    }


def _describe(told: dict[str, Any], faults: list[str], *, compared: bool) -> None:
    for fact in told["facts"]:
        print("  ".join(f"{key}={value}" for key, value in fact.items()))
    for note in told["dropped"]:
        print(f"left out: {note}")
    if told["error"]:
        print(f"collector error: {told['error']}")
    for fault in faults:
        print(f"differs: {fault}")
    if compared and not faults:
        print("as expected")


def _faults(faults: list[str], *, as_json: bool) -> None:
    if as_json:
        _print({"faults": faults})
    else:
        print("\n".join(faults), file=sys.stderr)


def _print(value: object) -> None:
    print(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(main())
