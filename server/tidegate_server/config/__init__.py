"""The configuration: one file and the environment, checked whole, compiled for the core (§2 of the contract).

`document` reads text, `model` (with `routing`, `serving`, `scalars`, `sources`) says what a file may hold, `checks`
looks at it as a whole, `load` brings them together; `compile` makes the policy, `source` follows a changing file.
"""

from tidegate_server.config.compile import compile_policy, flow_settings, revision
from tidegate_server.config.environment import MIRRORS, SEED_VARIABLES
from tidegate_server.config.load import load, parse
from tidegate_server.config.model import (
    ChatEndpoint,
    Configuration,
    EmbeddingsEndpoint,
    FlowProfile,
    FlowSettings,
    Price,
    SelectionDeadlines,
    SelectionSettings,
)
from tidegate_server.config.reference import reference
from tidegate_server.config.routing import ManagedRouting, Model, Provider, RouteSettings
from tidegate_server.config.schema import json_schema, json_schema_text
from tidegate_server.config.serving import Admin, HealthListener, Identity, Keys, Limits, Stores, Tls
from tidegate_server.config.source import ConfigurationSource, Loaded
from tidegate_server.config.sources import Address

__all__ = [
    "MIRRORS",
    "SEED_VARIABLES",
    "Address",
    "Admin",
    "ChatEndpoint",
    "Configuration",
    "ConfigurationSource",
    "EmbeddingsEndpoint",
    "FlowProfile",
    "FlowSettings",
    "HealthListener",
    "Identity",
    "Keys",
    "Limits",
    "Loaded",
    "ManagedRouting",
    "Model",
    "Price",
    "Provider",
    "RouteSettings",
    "SelectionDeadlines",
    "SelectionSettings",
    "Stores",
    "Tls",
    "compile_policy",
    "flow_settings",
    "json_schema",
    "json_schema_text",
    "load",
    "parse",
    "reference",
    "revision",
]
