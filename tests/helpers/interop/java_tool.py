"""The Java program of these tests (`java/`, see its Main), and payloads that both sides can make and compare."""

from __future__ import annotations

import base64
import zlib

from dlspark.testing.java_process import (
    JavaError,
    JavaProgram,
    JavaSoftware,
    JavaTool,
    OutOfReachError,
    free_port,
)
from helpers.jvm_flags import java_flags
from helpers.paths import TESTS

__all__ = [
    "PROGRAM",
    "JavaError",
    "JavaSoftware",
    "JavaTool",
    "OutOfReachError",
    "described",
    "free_port",
    "make_payload",
]

PROGRAM = JavaProgram(
    TESTS / "interop" / "java" / "src",
    "interop.Main",
    java_flags(768, direct_mb=768),
)
"""Quick to start and small: two cores run it beside everything else."""


def make_payload(seed: int, index: int, size: int) -> bytes:
    """Return payload number `index`, as the Java side makes it: byte j is 131 seed + 31 index + 7 j modulo 256."""
    pattern = bytes((131 * seed + 31 * index + 7 * j) & 0xFF for j in range(256))
    return (pattern * (size // 256 + 1))[:size]


def described(payload: bytes) -> dict[str, object]:
    """Return a payload as the Java side describes it: size, CRC-32 and, up to 64 bytes, the payload itself."""
    facts: dict[str, object] = {"size": len(payload), "crc32": zlib.crc32(payload)}
    if len(payload) <= 64:
        facts["payload"] = base64.b64encode(payload).decode()
    return facts
