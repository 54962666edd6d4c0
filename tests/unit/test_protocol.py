"""The protocol: documented in full, the wire of the contract to the letter, and stubs that are what it generates."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from google.rpc import code_pb2

from scripts import generate
from tidegate.v1 import admission_pb2, admission_pb2_grpc, error_reason_pb2, types_pb2

ROOT = generate.ROOT
BUF = Path(sys.prefix) / "bin/buf"
WIRE = ROOT / "tests/vectors/wire.json"
ERROR_REASONS = "tidegate/v1/error_reason.proto"
PACKAGE = ".tidegate.v1."


@pytest.fixture(scope="module")
def protocol(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileDescriptorProto]:
    """Our files by name, as the compiler reads them, with their comments."""
    image = tmp_path_factory.mktemp("protocol") / "image.binpb"
    protos = [str(proto) for proto in sorted(generate.PROTO.rglob("*.proto"))]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{generate.PROTO}", "--include_source_info"]
    subprocess.run([*command, f"--descriptor_set_out={image}", *protos], check=True)
    return {file.name: file for file in FileDescriptorSet.FromString(image.read_bytes()).file}


# --- the wire ---------------------------------------------------------------------------------------------------------


def wire(file: FileDescriptorProto) -> dict[str, dict[str, list[str]]]:
    """Return all that decides what stands on the wire and in generated code, in the words of the language itself."""
    return {
        "services": {service.name: _rpcs(service) for service in file.service},
        "enums": {enum.name: [f"{value.name} = {value.number}" for value in enum.value] for enum in file.enum_type},
        "messages": {message.name: [_field(message, field) for field in message.field] for message in file.message_type},
    }


def _rpcs(service: ServiceDescriptorProto) -> list[str]:
    return [
        f"{rpc.name}({'stream ' * rpc.client_streaming}{rpc.input_type.removeprefix(PACKAGE)})"
        f" returns ({'stream ' * rpc.server_streaming}{rpc.output_type.removeprefix(PACKAGE)})"
        for rpc in service.method
    ]


def _field(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    kind, label = _type(field), ""
    entries = {PACKAGE + message.name + "." + nested.name: nested for nested in message.nested_type}
    if field.type_name in entries:
        key, value = entries[field.type_name].field
        kind = f"map<{_type(key)}, {_type(value)}>"
    elif field.label == FieldDescriptorProto.LABEL_REPEATED:
        label = "repeated "
    elif field.proto3_optional:
        label = "optional "
    elif field.HasField("oneof_index"):
        label = f"oneof {message.oneof_decl[field.oneof_index].name}: "
    return f"{label}{kind} {field.name} = {field.number}"


def _type(field: FieldDescriptorProto) -> str:
    name = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return field.type_name.removeprefix(PACKAGE).removeprefix(".") or name


def test_the_wire_is_the_contracts(protocol: dict[str, FileDescriptorProto]) -> None:
    """Names, types, numbers, labels, order and streaming of everything but our own list of error reasons."""
    recorded = json.loads(WIRE.read_text())
    ours = {name: wire(file) for name, file in protocol.items() if name != ERROR_REASONS}
    assert json.dumps(ours, indent=2) == json.dumps(recorded, indent=2)
