"""The committed Python code is what distributedlog.proto says: compared with the file's text, read here in small, and,
where the generator of the release named in the file is installed, byte by byte."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from helpers.paths import ROOT

from dlspark.serving.protocol import distributedlog_pb2 as pb

PROTO = ROOT / "dlspark" / "serving" / "protocol" / "distributedlog.proto"
NAME = str(PROTO.relative_to(ROOT))
GENERATED = ("distributedlog_pb2.py", "distributedlog_pb2.pyi")
TYPES = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("int32", "int64", "uint32", "uint64", "bool", "string", "bytes")
}


class Reading:
    """As much of the language as the file uses, to a descriptor without the names' packages."""

    def __init__(self, text: str) -> None:
        without_comments = re.sub(r"//.*", "", text)
        self.tokens = re.findall(r'"[^"]*"|[\w.]+|[{}=;()<>,]', without_comments)
        self.at = 0

    def next(self, *expected: str) -> str:
        token = self.tokens[self.at]
        assert not expected or token in expected, f"{token} where {expected} is due, at {self.tokens[: self.at][-9:]}"
        self.at += 1
        return token

    def file(self) -> FileDescriptorProto:
        file = FileDescriptorProto(name=NAME)
        while self.at < len(self.tokens):
            match self.next():
                case "syntax":
                    self.next("=")
                    file.syntax = self.next().strip('"')
                    self.next(";")
                case "package":
                    file.package = self.next()
                    self.next(";")
                case "option":
                    name, _, value, _ = self.next(), self.next("="), self.next(), self.next(";")
                    setattr(file.options, name, value.strip('"') if value[0] == '"' else value == "true")
                case "service":
                    self.service(file)
                case "message":
                    self.message(file.message_type.add(), file.package)
                case other:
                    raise AssertionError(f"{other} is not read here")
        return file

    def service(self, file: FileDescriptorProto) -> None:
        service = file.service.add(name=self.next())
        self.next("{")
        while self.next("rpc", "}") == "rpc":
            method = service.method.add(name=self.next())
            method.client_streaming, method.input_type = self.side()
            self.next("returns")
            method.server_streaming, method.output_type = self.side()
            self.next(";")

    def side(self) -> tuple[bool, str]:
        self.next("(")
        name = self.next()
        streams = name == "stream"
        if streams:
            name = self.next()
        self.next(")")
        return streams, name

    def message(self, message: DescriptorProto, scope: str) -> None:
        message.name = self.next()
        self.next("{")
        optional = []
        while (token := self.next()) != "}":
            if token == "enum":
                self.enum(message.enum_type.add())
            elif token == "message":
                self.message(message.nested_type.add(), f"{scope}.{message.name}")
            elif token == "oneof":
                message.oneof_decl.add(name=self.next())
                self.next("{")
                while (kind := self.next()) != "}":
                    self.field(message, kind).oneof_index = len(message.oneof_decl) - 1
            elif token == "map":
                self.map(message, scope)
            elif token in ("optional", "repeated"):
                field = self.field(message, self.next())
                if token == "repeated":
                    field.label = FieldDescriptorProto.LABEL_REPEATED
                else:
                    field.proto3_optional = True
                    optional.append(field)
            else:
                self.field(message, token)
        for field in optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")

    def field(self, message: DescriptorProto, kind: str) -> FieldDescriptorProto:
        field = message.field.add(name=self.next(), label=FieldDescriptorProto.LABEL_OPTIONAL)
        self.next("=")
        field.number = int(self.next())
        self.next(";")
        if kind in TYPES:
            field.type = TYPES[kind]
        else:
            field.type_name = kind
        return field

    def map(self, message: DescriptorProto, scope: str) -> None:
        for token in ("<", "string", ",", "string", ">"):
            self.next(token)
        field = self.field(message, "")
        entry = message.nested_type.add(name=f"{field.name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for number, name in enumerate(("key", "value"), 1):
            entry.field.add(name=name, number=number, type=TYPES["string"], label=FieldDescriptorProto.LABEL_OPTIONAL)
        field.label, field.type_name = FieldDescriptorProto.LABEL_REPEATED, entry.name

    def enum(self, enum: EnumDescriptorProto) -> None:
        enum.name = self.next()
        self.next("{")
        while (name := self.next()) != "}":
            self.next("=")
            enum.value.add(name=name, number=int(self.next()))
            self.next(";")


def compiled() -> FileDescriptorProto:
    """What the committed code says, names without their scope and types of messages left to their names."""
    file = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    todo = list(file.message_type)
    while todo:
        message = todo.pop()
        todo += message.nested_type
        for field in message.field:
            field.ClearField("json_name")
            if field.type_name:
                field.type_name = field.type_name.rpartition(".")[2]
                field.ClearField("type")
    for method in file.service[0].method:
        method.input_type = method.input_type.rpartition(".")[2]
        method.output_type = method.output_type.rpartition(".")[2]
        method.client_streaming, method.server_streaming = method.client_streaming, method.server_streaming
    return file


def test_the_committed_code_says_what_the_file_says() -> None:
    assert Reading(PROTO.read_text("utf-8")).file() == compiled()


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("uint32 records = 4;", "uint64 records = 4;"),
        ("uint32 records = 4;", "uint32 records = 14;"),
        ("optional bytes fencing_token = 8;", "bytes fencing_token = 8;"),
        ("FOUND = 302;", "FOUND = 303;"),
        ("rpc Read(ReadRequest) returns (stream ReadResponse);", "rpc Read(ReadRequest) returns (ReadResponse);"),
        ("repeated Record records = 3;", ""),
        ("package dlspark.serving.v1;", "package dlspark.serving.v2;"),
    ],
)
def test_a_file_that_says_anything_else_is_noticed(was: str, becomes: str) -> None:
    text = PROTO.read_text("utf-8")
    assert text.count(was) == 1
    assert Reading(text.replace(was, becomes)).file() != compiled()


def _named_release(package: str) -> str:
    found = re.search(rf"{package} ([\d.]+\d)", PROTO.read_text("utf-8"))
    assert found is not None
    return found[1]


def _installed(package: str) -> bool:
    try:
        return importlib.metadata.version(package) == _named_release(package)
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(
    not (_installed("grpcio-tools") and _installed("mypy-protobuf")), reason="the generator is not installed"
)
def test_the_generator_makes_the_committed_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--python_out={tmp_path}"]
    subprocess.run([*command, f"--mypy_out={tmp_path}", NAME], check=True, timeout=60, cwd=ROOT)
    for name in GENERATED:
        assert (tmp_path / PROTO.parent.relative_to(ROOT) / name).read_bytes() == (PROTO.parent / name).read_bytes()


def test_every_call_message_and_value_that_needs_it_is_described() -> None:
    """The file is a public interface: each call and message has a comment, or says all by its name."""
    lines = PROTO.read_text("utf-8").splitlines()
    bare = [
        line.split()[1].partition("(")[0]
        for before, line in pairwise(lines)
        if re.match(r"  rpc |service ", line) and not before.strip().startswith("//")
    ]
    assert bare == []
