"""Attacks on a secured storage node, a proxy's frames and gRPC, and an HTTPS page: each is refused, stands in the audit
trail, and touches nobody else. docs/security/attacks.md is the table of these and of all the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from itertools import count

import grpc
import pytest
import pytest_asyncio
from helpers.bookie.harness import KEY, entry
from helpers.security.attack_kinds import GRPC_SAYS, HANDSHAKES, PIECES, REQUESTS, REVOKED, TOKENS, handshake, pieces
from helpers.security.attacked import DOORS, OURS, Attacked, node_refuses
from helpers.security.minting import MintedPair, now, replace_file
from helpers.waiting import until

from dlspark.errors import ProxyUnreachableError
from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol.operations import CreateStream, Done, Handshake, Refusal, StatusCode
from metadata.foundation.errors import DistributedLogError
from metadata.security.proofs import NotAuthenticatedError
from metadata.security.secrets import Secret
from storage_node.bookie.node.endpoints import answer
from storage_node.protocol.schema import Status

PATHS = (
    "/../../etc/passwd",
    "/metrics/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "//etc/passwd",
    "file:///etc/passwd",
    "http://127.0.0.1/heartbeat",
    "/heartbeat\0",
    "\\..\\..",
    "",
)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(name="attacked", scope="module", loop_scope="module")
async def _attacked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Attacked]:
    made = Attacked(tmp_path_factory.mktemp("attacked"))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@pytest_asyncio.fixture(name="world", loop_scope="module")
async def _world(attacked: Attacked) -> AsyncIterator[Attacked]:
    """The same servers for all, with nothing noted yet."""
    yield attacked
    await attacked.forget()


async def test_who_proves_itself_is_heard_at_every_door(world: Attacked) -> None:
    """Without it, servers that are down would pass every test here."""
    good = world.context(world.authority.issue("honest", roles=["client"]))
    for door in DOORS:
        assert await asyncio.to_thread(world.heard, door, good), door
        await world.unaffected(door)
    assert world.refusals() == []


@pytest.mark.parametrize(
    ("kind", "door"),
    [
        (kind, door)
        for kind in HANDSHAKES
        for door in DOORS
        if (kind, door) != ("revoked", "gRPC")  # which knows no lists: it is refused call by call, as below
    ],
)
async def test_who_does_not_prove_itself_is_not_heard(
    kind: str, door: str, world: Attacked, capfd: pytest.CaptureFixture[str]
) -> None:
    context, reason = await handshake(world, kind)
    attack = asyncio.create_task(asyncio.to_thread(world.heard, door, context))
    await world.unaffected(door)
    assert not await attack
    await world.unaffected(door)
    if door == "gRPC":
        await grpc_refused(capfd, kind)
    else:
        await refused(world, reason)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", PIECES)
async def test_what_is_no_handshake_is_not_heard(
    kind: str, door: str, world: Attacked, capfd: pytest.CaptureFixture[str]
) -> None:
    data, plain = pieces(world, kind, door)
    attack = asyncio.create_task(asyncio.to_thread(world.thrown, door, data, plain=plain))
    await world.unaffected(door)
    answer = await attack
    plain_node = plain and door == "node"
    assert node_refuses(answer) if plain_node else is_of_tls(answer), answer
    await world.unaffected(door)
    if door == "gRPC":
        await grpc_refused(capfd, kind)
    else:
        await refused(world, "not secured" if plain_node else "")


# ---------------------------------------------------------------------- tokens


@pytest.mark.parametrize("door", ["frames", "gRPC"])
@pytest.mark.parametrize("kind", TOKENS)
async def test_a_token_that_proves_nothing_is_refused(kind: str, door: str, world: Attacked) -> None:
    world.revoked_tokens.write_text(f"{REVOKED}\n")
    await world.look()
    token = TOKENS[kind](world)
    pair = world.authority.issue("mallory", roles=["client"])
    if door == "frames":
        with pytest.raises(DistributedLogError, match="token") as caught:
            await world.frames_client(world.credentials(pair, Secret(token)))
        assert isinstance(caught.value, NotAuthenticatedError | ProxyUnreachableError)
    else:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await (await world.calls(pair)).create("hers", ("authorization", f"Bearer {token}"))
        assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not any(isinstance(one, CreateStream) for one in world.service.requests)
    await world.unaffected(door)
    (line,) = world.refusals()
    assert "token" in str(line["reason"])
    assert token.split(".")[1] not in str(line)


@pytest.mark.parametrize("door", ["frames", "gRPC"])
async def test_a_good_token_is_taken(door: str, world: Attacked) -> None:
    """Without it, a verifier that refuses all would pass."""
    pair = world.authority.issue("somebody", roles=["client"])
    if door == "frames":
        client = await world.frames_client(world.credentials(pair, Secret(world.token({}))))
        assert await client.call(CreateStream("hers")) == Done()
    else:
        bearer = ("authorization", f"Bearer {world.token({})}")
        assert await (await world.calls(pair)).create("hers", bearer) == pb.Status.SUCCESS
    assert str(world.service.callers[-1].principal) == "mallory"
    assert world.refusals() == []


async def test_a_token_of_another_principal_takes_no_session_over(world: Attacked) -> None:
    pair = world.authority.issue("somebody", roles=["client"])
    client = await world.frames_client(world.credentials(pair, Secret(world.token({"sub": "honest"}))))
    answer = await client.call(Handshake(token=world.token({}).encode()))
    assert isinstance(answer, Refusal)
    assert "another principal's" in str(world.refusals()[0]["reason"])
    await world.unaffected("frames")


# ---------------------------------------------------------------------- rights


@pytest.mark.parametrize(
    ("kind", "door"),
    [(kind, door) for kind, (_, method) in REQUESTS.items() for door in ("frames", *(["gRPC"] if method else []))],
)
async def test_what_nobody_allowed_is_refused(kind: str, door: str, world: Attacked) -> None:
    pair = world.authority.issue("mallory", roles=["client"])
    request, method = REQUESTS[kind]
    stream = getattr(request, "stream", None)
    if door == "frames":
        client = await world.frames_client(world.credentials(pair))
        answer = await client.call(request)
        assert isinstance(answer, Refusal)
        assert answer.code is StatusCode.REQUEST_DENIED
        assert await client.call(CreateStream("hers")) == Done()
    else:
        assert method is not None
        assert stream is not None
        calls = await world.calls(pair)
        assert await calls.ask(method, pb.StreamRequest(stream=stream)) == pb.Status.REQUEST_DENIED
        assert await calls.create("hers") == pb.Status.SUCCESS
    assert request not in world.service.requests
    await world.unaffected(door)
    (line,) = world.refusals()
    assert (line["principal"], line["log"], line["request"]) == ("mallory", stream, type(request).__name__)


@pytest.mark.parametrize("door", ["frames", "gRPC"])
async def test_a_token_of_less_is_good_for_no_more(door: str, world: Attacked) -> None:
    token = world.token({"dlspark": {"logs": ["hers"], "verbs": ["read"]}})
    pair = world.authority.issue("mallory", roles=["client"])
    if door == "frames":
        client = await world.frames_client(world.credentials(pair, Secret(token)))
        assert isinstance(await client.call(CreateStream("hers")), Refusal)
    else:
        bearer = ("authorization", f"Bearer {token}")
        assert await (await world.calls(pair)).create("hers", bearer) == pb.Status.REQUEST_DENIED
    (line,) = world.refusals()
    assert "not good for create" in str(line["reason"])
    await world.unaffected(door)


@pytest.mark.parametrize("door", ["node", "frames", "gRPC"])
async def test_a_role_that_is_not_let_in_is_refused(door: str, world: Attacked) -> None:
    assert await _is_refused(world, door, world.authority.issue("console", roles=["zookeeper"]))
    assert "roles" in str(world.refusals()[0]["reason"])
    assert world.refusals()[0]["principal"] == "console"
    await world.unaffected(door)


async def _is_refused(world: Attacked, door: str, pair: MintedPair) -> bool:
    asks = await asking(world, door, pair)
    return not await asks()


async def asking(world: Attacked, door: str, pair: MintedPair) -> Callable[[], Awaitable[bool]]:
    """Return what asks by a connection, and returns whether it is served."""
    if door == "node":
        wire, numbers = await world.entered(pair), count()
        ledger = 1_000 + pair.certificate.serial_number % 1_000_000

        async def add() -> bool:
            try:
                answer = await asyncio.wait_for(wire.send_add(entry(ledger, next(numbers))), 60)
            except ConnectionError:
                return False
            return bool(answer.status is Status.EOK)

        return add
    if door == "gRPC":
        calls = await world.calls(pair)

        async def call() -> bool:
            try:
                return await calls.create("hers") == pb.Status.SUCCESS
            except grpc.aio.AioRpcError:
                return False

        return call
    try:
        client = await world.frames_client(world.credentials(pair))
    except DistributedLogError:
        return _never

    async def create() -> bool:
        try:
            return await client.call(CreateStream("hers")) == Done()
        except DistributedLogError:
            return False

    return create


async def _never() -> bool:
    return False


# ---------------------------------------------------------------------- in mid-session


@pytest.mark.parametrize("door", ["node", "frames", "gRPC"])
async def test_a_certificate_that_is_revoked_in_mid_session_ends_it(door: str, world: Attacked) -> None:
    pair = world.authority.issue("mallory", roles=["client"])
    asks = await asking(world, door, pair)
    assert await asks()
    replace_file(world.server_folder / "revoked.pem", world.authority.revoke(pair))
    await world.look()
    await until(lambda: _not(asks))
    await world.unaffected(door)
    assert any("revoked" in str(line["reason"]) for line in world.refusals())
    assert await _is_refused(world, door, pair), "nor by another connection"


@pytest.mark.parametrize("door", ["node", "frames", "gRPC"])
async def test_a_certificate_that_expires_in_mid_session_ends_it(door: str, world: Attacked) -> None:
    ends = now() + timedelta(seconds=world.ahead_s + 3600)
    asks = await asking(world, door, world.authority.issue("mallory", roles=["client"], ends=ends))
    assert await asks()
    world.ahead_s += 3700
    await world.look()
    await until(lambda: _not(asks))
    await world.unaffected(door)
    reasons = [str(line["reason"]) for line in world.refusals()]
    assert any("ended at" in one or "proof has expired" in one for one in reasons), reasons


async def _not(asks: Callable[[], Awaitable[bool]]) -> bool:
    return not await asks()


@pytest.mark.parametrize("door", ["frames", "gRPC"])
@pytest.mark.parametrize("kind", ["expired", "revoked"])
async def test_a_token_is_not_good_again_after_its_end(kind: str, door: str, world: Attacked) -> None:
    """A replay of what was good."""
    token = world.token({"jti": f"stolen by {door}"})
    pair = world.authority.issue("somebody", roles=["client"])
    bearer = ("authorization", f"Bearer {token}")
    client = await world.frames_client(world.credentials(pair, Secret(token)))
    calls = await world.calls(pair)
    assert await client.call(CreateStream("hers")) == Done()
    assert await calls.create("hers", bearer) == pb.Status.SUCCESS
    if kind == "revoked":
        world.revoked_tokens.write_text(f"stolen by {door}\n")
    else:
        world.ahead_s += 400
    await world.look()
    if door == "frames":
        with pytest.raises(DistributedLogError):
            await world.frames_client(world.credentials(pair, Secret(token)))
        await until(lambda: _ends(client))
    else:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls.create("hers", bearer)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    await world.unaffected(door)
    assert any(kind in str(line["reason"]) for line in world.refusals())


async def _ends(client: FramesClient) -> bool:
    """Connections are looked at several times a second here."""
    try:
        return isinstance(await client.call(CreateStream("hers")), Refusal)
    except DistributedLogError:
        return True


@pytest.mark.parametrize("door", ["frames", "gRPC"])
async def test_a_right_that_is_withdrawn_in_mid_session_is_gone(door: str, world: Attacked) -> None:
    asks = await asking(world, door, world.authority.issue("mallory", roles=["client"]))
    assert await asks()
    before = world.book
    world.use("allow user:honest create orders")
    try:
        assert not await asks()
        await world.unaffected(door)
    finally:
        world.book = before
    (line,) = world.refusals()
    assert (line["principal"], line["verb"]) == ("mallory", "create")


# ---------------------------------------------------------------------- ledgers of others


async def test_a_ledger_of_others_is_neither_written_nor_fenced_without_its_password(world: Attacked) -> None:
    await world.unaffected("node")
    mallory, forged = await world.entered(world.authority.issue("mallory", roles=["client"])), bytes(20)
    for key in (forged, b"", KEY[:-1], KEY + b"\0", bytes(len(KEY) - 1) + b"\1"):
        assert await mallory.add(entry(OURS, 5_000), key=key) is Status.EUA
        assert (await mallory.fence(OURS, key=key)).status is Status.EUA
        assert await mallory.write_lac(OURS, 5_000, key=key) is Status.EUA
    await world.unaffected("node")
    noted = [(line["principal"], line["request"], "another key" in str(line["reason"])) for line in world.refusals()]
    assert sorted(noted) == sorted(
        [("mallory", asked, True) for asked in ("AddRequest", "WriteLacRequest", "fence")] * 5
    )


async def test_a_squatted_ledger_keeps_its_owner_out_of_nothing_else(world: Attacked) -> None:
    """Who comes first names the key of an id; the owner is refused there, and takes other nodes or another ledger."""
    mallory, owner = [await world.entered(world.authority.issue(name, roles=["client"])) for name in ("m", "o")]
    assert await mallory.add(entry(77, 0), key=bytes(20)) is Status.EOK
    assert await owner.add(entry(77, 1)) is Status.EUA
    assert await owner.add(entry(78, 0)) is Status.EOK
    (line,) = world.refusals()
    assert (line["principal"], "ledger 77" in str(line["reason"])) == ("o", True)
    await world.unaffected("node")


# ---------------------------------------------------------------------- pages


async def test_no_path_leads_out_of_the_pages(world: Attacked) -> None:
    for path in PATHS:
        assert answer(world.bookie, path) is None, path
    assert answer(world.bookie, "/heartbeat") is not None


# ---------------------------------------------------------------------- helpers


async def refused(world: Attacked, reason: str) -> None:
    """Wait until the trail says so."""
    await until(world.refusals, every_s=0.02)
    assert reason in str(world.refusals()[0]["reason"])


async def grpc_refused(capfd: pytest.CaptureFixture[str], kind: str) -> None:
    """Wait until gRPC's library says so: it makes its handshakes itself, and tells the trail of none that fails."""
    said = ""

    def has_said() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return GRPC_SAYS[kind] in said

    await until(has_said, lambda: f"gRPC says {GRPC_SAYS[kind]!r}, it said {said!r}", every_s=0.02)


def is_of_tls(answer: bytes) -> bool:
    """Return whether an answer is records of handshakes and alerts alone, as far as can be seen."""
    while answer:
        if answer[0] not in (0x14, 0x15, 0x16, 0x17):
            return False
        answer = answer[5 + int.from_bytes(answer[3:5], "big") :]
    return True
