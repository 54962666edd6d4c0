"""The protocol: the contract's wire to the letter, every element documented, the stubs what is generated from it."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from tidegate.v1 import error_reason_pb2, types_pb2

from scripts import generate

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
    files = FileDescriptorSet.FromString(image.read_bytes()).file
    return {file.name: file for file in sorted(files, key=lambda file: file.name)}


# --- the wire ---------------------------------------------------------------------------------------------------------


def wire(file: FileDescriptorProto) -> dict[str, dict[str, list[str]]]:
    """Return all that decides what stands on the wire and in generated code, in the words of the language itself."""
    return {
        "services": {service.name: _rpcs(service) for service in file.service},
        "enums": {enum.name: [f"{value.name} = {value.number}" for value in enum.value] for enum in file.enum_type},
        "messages": {
            message.name: [_field(message, field) for field in message.field] for message in file.message_type
        },
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
    assert {(file.package, file.syntax) for file in protocol.values()} == {("tidegate.v1", "proto3")}


# --- the documentation ------------------------------------------------------------------------------------------------


def elements(file: FileDescriptorProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each element's name, and its path in the source information (numbers of descriptor.proto's fields)."""
    for i, message in enumerate(file.message_type):
        yield message.name, (4, i)
        yield from ((f"{message.name}.{field.name}", (4, i, 2, j)) for j, field in enumerate(message.field))
        yield from (
            (f"{message.name}.{oneof.name}", (4, i, 8, j))
            for j, oneof in enumerate(message.oneof_decl)
            if not oneof.name.startswith("_")  # the compiler's own, one for each `optional`
        )
    for i, enum in enumerate(file.enum_type):
        yield enum.name, (5, i)
        yield from ((value.name, (5, i, 2, j)) for j, value in enumerate(enum.value))
    for i, service in enumerate(file.service):
        yield service.name, (6, i)
        yield from ((f"{service.name}.{rpc.name}", (6, i, 2, j)) for j, rpc in enumerate(service.method))


def documentation(file: FileDescriptorProto) -> dict[str, str]:
    """Return each element's comment by the element's name."""
    comments = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
    return {name: comments[path].strip() for name, path in elements(file)}


@pytest.fixture(scope="module")
def documents(protocol: dict[str, FileDescriptorProto]) -> dict[str, str]:
    """The comments of all files."""
    return {name: text for file in protocol.values() for name, text in documentation(file).items()}


def test_every_element_is_documented(documents: dict[str, str]) -> None:
    """In sentences: a comment ends as one does."""
    assert len(documents) > 500
    assert [name for name, text in documents.items() if not text.endswith(".")] == []


def test_no_comment_leans_on_another_document(documents: dict[str, str]) -> None:
    """The files are all that an author of a gateway has."""
    assert [name for name, text in documents.items() if "§" in text or "design" in text] == []


BAD_REQUEST = "CONTEXT_LENGTH_EXCEEDED COMPACTION_REQUIRES_PIN OPAQUE_STATE_REQUIRES_PIN OPAQUE_STATE_MISMATCH"
STATUSES = {
    400: f"{BAD_REQUEST} MODALITY_UNSUPPORTED EFFORT_UNSUPPORTED FLOW_REQUIRED",
    403: "PIN_PAID_PREREQUISITE_LIFTED FLOW_UNKNOWN FLOW_TIMEOUT FLOW_HOP_CLOSED FLOW_DEPTH_EXCEEDED"
    " FLOW_CYCLE_DETECTED FLOW_FAN_OUT_EXCEEDED FLOW_TOKENS_EXHAUSTED",
    410: "PIN_MISSING PIN_CORRUPT PIN_RETIRED PIN_POLICY_CHANGED PIN_BINDING_CHANGED",
    429: "CAPACITY_UNKNOWN NO_ELIGIBLE_CANDIDATE PIN_PROVIDER_UNAVAILABLE",
    503: "FLOW_GUARD_UNAVAILABLE",
}


def test_refusal_reasons_tell_status_retry_and_remedy(documents: dict[str, str]) -> None:
    """As the table in §4.6 of the contract says."""
    expected = {reason: status for status, reasons in STATUSES.items() for reason in reasons.split()}
    told = {}
    for name in types_pb2.RefusalReason.keys()[1:]:
        match = re.search(r"HTTP (\d{3}), (not )?retryable\. Do: \S", documents[name])
        assert match, name
        told[name.removeprefix("REFUSAL_REASON_")] = int(match[1])
        assert bool(match[2]) == (int(match[1]) not in {429, 503}), name
    assert told == expected


def test_error_reasons_tell_status_sample_and_remedy(documents: dict[str, str]) -> None:
    """The sample is JSON of a google.rpc.ErrorInfo for this very reason."""
    for name in error_reason_pb2.ErrorReason.keys()[1:]:
        text = documents[name]
        sample = re.search(r"^ +(\{.*\})$", text, re.MULTILINE)
        assert sample, name
        info = json.loads(sample[1])
        metadata = info.pop("metadata", {})
        assert info == {"reason": name.removeprefix("ERROR_REASON_"), "domain": "tidegate"}
        assert all(isinstance(value, str) for value in metadata.values()), name
        assert re.split("[.,]", text)[0] in grpc.StatusCode.__members__, name
        assert "Do: " in text, name


def test_rpcs_name_only_reasons_that_there_are(
    documents: dict[str, str], protocol: dict[str, FileDescriptorProto]
) -> None:
    """`STATUS (REASON, REASON)`: each reason exists and belongs to that status; and every reason is given somewhere."""
    owner = {
        name.removeprefix("ERROR_REASON_"): re.split("[.,]", documents[name])[0]
        for name in error_reason_pb2.ErrorReason.keys()[1:]
    }
    named = set()
    for service in (service for file in protocol.values() for service in file.service):
        for name in (service.name, *(f"{service.name}.{rpc.name}" for rpc in service.method)):
            for status, reasons in re.findall(r"\b([A-Z_]+)\s+\(([A-Z_,\s]+)\)", documents[name]):
                for reason in re.findall(r"[A-Z_]+", reasons):
                    assert owner.get(reason) == status, (name, reason)
                    named.add(reason)
    assert owner.keys() - named == {"DEADLINE_EXCEEDED", "INTERNAL", "NOT_IMPLEMENTED"}


# --- what is made from it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["lint"], ["format", "--diff", "--exit-code", "proto"]], ids=lambda a: a[0])
def test_buf_has_no_complaint(arguments: list[str]) -> None:
    """The rules STANDARD and COMMENTS, none excepted; and one formatting."""
    run = subprocess.run([BUF, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout + run.stderr) == (0, "")


def test_generated_files_are_up_to_date() -> None:
    """The committed files are byte for byte what the script makes of their sources."""
    command = [sys.executable, str(ROOT / "scripts/generate.py"), "--check"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout + run.stderr) == (0, "")


@pytest.mark.parametrize("damage", ["changed", "missing", "extra"])
def test_a_difference_is_named(tmp_path: Path, damage: str) -> None:
    """Each way in which a committed file may depart from the generated one."""
    made, kept = tmp_path / "made", tmp_path / "kept"
    for path in generate.GENERATED:
        for root in (made, kept):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / path).is_dir() else shutil.copy)(ROOT / path, root / path)
    assert generate.differences(made, kept) == []
    stub = "clients/python/tidegate/v1/types_pb2.py"
    match damage:
        case "changed":
            (kept / stub).write_text("# edited\n")
        case "missing":
            (kept / stub).unlink()
        case "extra":
            (made / stub).unlink()
    assert generate.differences(made, kept) == [stub]
    generate.replace(made, kept)
    assert generate.files(kept / "clients/python/tidegate/v1").keys() >= {"flow_pb2.py"}
    assert (kept / stub).exists() == (damage != "extra")
