"""The file of `tidegate collect`: one process, many collectors. Every fault is reported at once, with its path."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import yaml
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator
from tidegate.credentials import is_local

from tidegate_collectors.auth import Auth
from tidegate_collectors.durations import Seconds
from tidegate_collectors.facts import Source
from tidegate_collectors.generic.mapping import Generic
from tidegate_collectors.presets import Preset, Via, find

Provider = Annotated[str, Field(min_length=1, max_length=256)]


class ConfigError(Exception):
    """A file that cannot be used; `faults` has one line a fault, each with its path."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


class Strict(BaseModel):
    """A part of the file: names that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Canary(Strict):
    """One one-token request to a local engine whose counters stand still (§6 of the contract); at most one in 30 s."""

    path: str = "/v1/completions"
    model: str = ""
    """Empty: the model of the page that stands still."""
    timeout: Seconds = 10.0


class Entry(Generic):
    """One collector: a preset, or a mapping of its own (see `generic.mapping`)."""

    id: str = ""
    """Told to the server after the process's own id; left out: provider and preset."""
    provider: Provider = Field(validation_alias=AliasChoices("provider", "account"))
    """The provider's alias in the server's configuration."""
    preset: str = ""
    url: str = ""
    path: str = ""
    """Instead of the preset's own path under `url`."""
    model: str = ""
    models: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()
    every: Seconds | None = None
    timeout: Seconds = 5.0
    auth: Auth = Auth()
    observed: bool = False
    """Make no request, and read the responses that a gateway hands over: what those of a polled provider tell, too."""
    unofficial: bool = False
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    files: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    canary: Canary | None = None

    @model_validator(mode="before")
    @classmethod
    def _named_after_its_id(cls, document: object) -> object:
        """Let `id` stand for the provider, where that is not said."""
        if isinstance(document, dict) and not {"provider", "account"} & document.keys() and document.get("id"):
            return {**document, "provider": document["id"]}
        return document

    @property
    def kind(self) -> Preset | None:
        """The preset; None of a mapping."""
        return find(self.preset) if self.preset else None

    @property
    def via(self) -> Via:
        """How it comes by its answers."""
        if self.observed or self.observe:
            return Via.OBSERVER
        return self.kind.via if self.kind else Via.ENGINE if self.prometheus else Via.HTTP

    @property
    def name(self) -> str:
        """What the collector is called within its process."""
        return self.id or f"{self.provider}/{self.preset or 'generic'}"

    @property
    def source(self) -> Source:
        """What parsing is told about it."""
        return Source(
            provider=self.provider,
            model=self.model,
            models=self.models or ((self.model,) if self.model else ()),
            siblings=self.siblings,
            options=self.options,
        )

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with it, each with the path of the setting."""
        if bool(self.preset) == bool(self.emit):
            yield "preset: name a preset, or give `emit`; not both and not neither"
        elif self.preset:
            try:
                yield from self._preset_faults(find(self.preset))
            except KeyError as error:
                yield f"preset: {error.args[0]}"
        else:
            yield from self.generic_faults()
        for name, url, auth in self._urls():
            yield from url_faults(name, url, secret=auth != Auth())

    def _urls(self) -> Iterator[tuple[str, str, Auth]]:
        if self.url:
            yield "url", self.url, self.auth
        for name, part in (("http", self.http), ("prometheus", self.prometheus)):
            if part:
                yield f"{name}.url", part.url, part.auth
        if self.liveness:
            yield "liveness.url", self.liveness.url, Auth()

    def _preset_faults(self, preset: Preset) -> Iterator[str]:
        if not preset.official and not self.unofficial and self.via is not Via.OBSERVER:
            yield f"unofficial: {preset.title} is not documented by its vendor; say `unofficial: true` to use it"
        if self.every is not None and self.every < preset.least:
            yield f"every: {preset.name} may be asked every {preset.least:g} s at the most"
        if self.via is Via.OBSERVER:
            return
        if preset.via in (Via.ENGINE, Via.HTTP) and not (self.url or preset.url):
            yield "url: missing"
        if preset.via is Via.HTTP and preset.url and self.auth == Auth():
            yield f"auth: {preset.title} needs a credential"
        if preset.name in ("llamacpp", "tgi") and not self.model:
            yield "model: the pages of this engine do not name their model"
        if preset.via is Via.FILES and not self.files:
            yield "files: missing"
        if self.canary and preset.via is not Via.ENGINE:
            yield "canary: only a local engine may be sent a request"


class Observer(Strict):
    """The local endpoint where a gateway hands over what a response told."""

    listen: str = "127.0.0.1:9466"
    token_file: str


class Config(Strict):
    """The whole file."""

    server: str | None = None
    """Address of the server; left out: TIDEGATE_SERVER, else 127.0.0.1:50051."""
    token_file: str | None = None
    collector_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Left out: the name of the machine."""
    listen: str | None = None
    """Where the process shows its own metrics and health, on this machine only; left out: nowhere."""
    observer: Observer | None = None
    collectors: tuple[Entry, ...]

    def faults(self) -> Iterator[str]:
        """Yield what is wrong beyond the form of single settings."""
        if not self.collectors:
            yield "collectors: there is none"
        for index, entry in enumerate(self.collectors):
            yield from (f"collectors[{index}].{fault}" for fault in entry.faults())
        names = [entry.name for entry in self.collectors]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"collectors: {names.count(name)} collectors are called {name!r}; give each an id"
        for path, address in (("listen", self.listen), ("observer.listen", self.observer and self.observer.listen)):
            if address and not is_local(address):
                yield f"{path}: {address} is not on this machine"
        if self.observer is None and any(entry.via is Via.OBSERVER for entry in self._known()):
            yield "observer: missing, and a collector is to be handed responses"

    def _known(self) -> Iterator[Entry]:
        for entry in self.collectors:
            try:
                entry.via  # noqa: B018 - raises for a preset that there is not, which is another fault
            except KeyError:
                continue
            yield entry


def read(path: str | Path) -> object:
    """Read a file (YAML, and so JSON). ConfigError: it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}"]) from None
    try:
        document: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError([f"{path}: not YAML{where}"]) from None
    return document


def load(path: str | Path) -> Config:
    """Read and check a file. ConfigError has every fault at once."""
    return check(read(path))


def pick(document: object, name: str | None) -> Entry:
    """Return one collector of a file, for an offline test: alone it need not say where it polls.

    ConfigError: the file has no such collector, or several and no name, or the collector's own settings are wrong.
    """
    entries = document.get("collectors") if isinstance(document, dict) else None
    found = [entry for entry in entries or () if isinstance(entry, dict) and name in (None, entry.get("id"))]
    if len(found) != 1:
        raise ConfigError([f"collectors: {len(found)} match; name one by its id"])
    try:
        return Entry.model_validate(found[0])
    except ValidationError as error:
        raise ConfigError([f"{_path(fault['loc'])}: {fault['msg']}" for fault in error.errors()]) from None


def check(document: object) -> Config:
    """Check a document that was read already. ConfigError has every fault at once."""
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        raise ConfigError([f"{_path(fault['loc'])}: {fault['msg']}" for fault in error.errors()]) from None
    faults = list(config.faults())
    if faults:
        raise ConfigError(faults)
    return config


def url_faults(path: str, url: str, *, secret: bool) -> Iterator[str]:
    """Yield what is wrong with an address: a secret goes over TLS, or stays on this machine."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        yield f"{path}: not an http or https address without user, query and fragment"
    elif secret and parts.scheme == "http" and not is_local(f"{parts.hostname}:0"):
        yield f"{path}: a credential is not sent in clear to another machine; use https"


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or "(the file)"
