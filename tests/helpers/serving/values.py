"""Hypothesis strategies for every request and every answer of the serving tier, as the bindings can carry them."""

from __future__ import annotations

from hypothesis import strategies as st

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.protocol.operations import (
    REASON_OF_NAME,
    AcceptStreams,
    Answer,
    Applied,
    BeginEpoch,
    BulkReceipt,
    CreateStream,
    DeleteStream,
    Delivery,
    Done,
    EpochBegun,
    FindOwner,
    Handshake,
    Heartbeat,
    ListedProxy,
    ListProxies,
    MoveStream,
    OwnerFound,
    ProducerStamp,
    ProxyInfo,
    ProxyKind,
    ProxyList,
    ProxyStatus,
    ReadBatch,
    ReadForm,
    ReadFrom,
    Refusal,
    ReleaseStream,
    Request,
    RequestContext,
    SetFencingToken,
    StatusCode,
    TakeStream,
    TruncateStream,
    WriteReceipt,
    WriteRecords,
)

I64 = st.integers(-(2**63), 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
BLOB = st.binary(max_size=20)
DLSNS = st.builds(DLSN, I64, I64, I64)
CONTEXTS = st.builds(
    RequestContext, st.lists(TEXT, max_size=3).map(tuple), st.none() | U32, st.booleans(), st.just(0) | U32
)
STAMPS = st.builds(ProducerStamp, TEXT, I64, I64)


@st.composite
def writes(draw: st.DrawFn) -> WriteRecords:
    """Draw writes of one payload as often as others, for they have a way of their own."""
    payloads = draw(BLOB.map(lambda one: (one,)) | st.lists(BLOB, min_size=1, max_size=4).map(tuple))
    each = st.lists(I64, min_size=len(payloads), max_size=len(payloads)).map(tuple)
    return draw(
        # By a function: of a named tuple Hypothesis would draw the fields that are left out, too.
        st.builds(lambda *given: WriteRecords(*given), TEXT, st.just(payloads), CONTEXTS)
        | st.builds(
            WriteRecords,
            TEXT,
            st.just(payloads),
            CONTEXTS,
            st.none() | STAMPS,
            st.none() | I64 | DLSNS,
            st.none() | BLOB,
            st.booleans(),
            st.none() | each,
        )
    )


REQUESTS: dict[type, st.SearchStrategy[Request]] = {
    Handshake: st.builds(Handshake, st.none() | TEXT, st.booleans()),
    WriteRecords: writes(),
    BeginEpoch: st.builds(BeginEpoch, TEXT, TEXT, st.none() | I64, CONTEXTS),
    SetFencingToken: st.builds(SetFencingToken, TEXT, BLOB, st.none() | BLOB, CONTEXTS),
    Heartbeat: st.builds(Heartbeat, TEXT, st.booleans(), CONTEXTS),
    TruncateStream: st.builds(TruncateStream, TEXT, DLSNS, CONTEXTS),
    CreateStream: st.builds(CreateStream, TEXT, CONTEXTS),
    DeleteStream: st.builds(DeleteStream, TEXT, CONTEXTS),
    ReleaseStream: st.builds(ReleaseStream, TEXT, CONTEXTS),
    MoveStream: st.builds(MoveStream, TEXT, TEXT, CONTEXTS),
    TakeStream: st.builds(TakeStream, TEXT, TEXT, CONTEXTS),
    FindOwner: st.builds(FindOwner, TEXT, CONTEXTS),
    ListProxies: st.just(ListProxies()),
    AcceptStreams: st.builds(AcceptStreams, st.booleans()),
    ReadBatch: st.builds(
        ReadBatch,
        TEXT,
        DLSNS | I64 | st.sampled_from(ReadFrom),
        U32,
        st.sampled_from(ReadForm),
        U32,
        U32,
        CONTEXTS,
    ),
}

REFUSALS = st.builds(
    Refusal,
    st.sampled_from(StatusCode),
    TEXT,
    st.none() | TEXT,
    st.sampled_from(Applied),
    TEXT | st.sampled_from(sorted(REASON_OF_NAME)),
    st.none() | I64 | TEXT,
    st.none() | TEXT,
)
ANSWERS: dict[type, st.SearchStrategy[Answer]] = {
    Refusal: REFUSALS,
    WriteReceipt: st.builds(WriteReceipt, st.none() | DLSNS, U32, st.booleans()),
    BulkReceipt: st.builds(BulkReceipt, st.lists(DLSNS | REFUSALS, max_size=5).map(tuple)),
    EpochBegun: st.builds(EpochBegun, I64, I64),
    Done: st.builds(Done, st.none() | DLSNS),
    OwnerFound: st.builds(OwnerFound, TEXT),
    ProxyList: st.builds(
        ProxyList, st.lists(st.builds(ListedProxy, st.sampled_from(ProxyKind), TEXT, TEXT), max_size=3).map(tuple)
    ),
    ProxyInfo: st.builds(
        ProxyInfo,
        TEXT,
        st.sampled_from(ProxyStatus),
        st.dictionaries(TEXT, TEXT, max_size=4),
        U32,
        st.none() | TEXT,
    ),
    Delivery: st.builds(
        Delivery, st.sampled_from(ReadForm), DLSNS, st.lists(BLOB, max_size=4).map(tuple), st.booleans()
    ),
}
