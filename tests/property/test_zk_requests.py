"""Our own packing and reading of ZooKeeper's requests agree with aiozk's, whatever is in them."""

from __future__ import annotations

import struct
from typing import Any

from aiozk import protocol
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.ports import Check, Create, Delete, NodeStat, Operation, SetData
from consumerd.net.zk.acl import parse_acl
from consumerd.net.zk.multi import MultiRequest, encode_operations
from consumerd.net.zk.requests import ExistsRequest, GetChildrenRequest, GetDataRequest, SetDataRequest

paths = st.text(st.characters(codec="utf-8"), max_size=30).map(lambda text: f"/{text}")
payloads = st.binary(max_size=50)
ints = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
stats = st.builds(
    protocol.stat.Stat,
    created_zxid=longs,
    last_modified_zxid=longs,
    created=longs,
    modified=longs,
    version=ints,
    child_version=ints,
    acl_version=ints,
    ephemeral_owner=longs,
    data_length=ints,
    num_children=ints,
    last_modified_children=longs,
)
prefixes = st.binary(max_size=20)


def rendered(part: Any) -> bytes:
    layout, values = part.render()
    return struct.pack("!" + layout, *values)


def ours(stat: Any) -> NodeStat:
    return NodeStat(
        stat.version, stat.ephemeral_owner, stat.num_children, stat.created_zxid, stat.modified, stat.last_modified_zxid
    )


@given(paths, st.booleans())
def test_reads_are_packed_as_by_aiozk(path: str, watch: bool) -> None:
    for own, theirs in (
        (GetDataRequest, protocol.GetDataRequest),
        (ExistsRequest, protocol.ExistsRequest),
        (GetChildrenRequest, protocol.GetChildren2Request),
    ):
        assert own(path, watch).serialize() == theirs(path=path, watch=watch).serialize()
        assert (own.opcode, own.special_xid) == (theirs.opcode, theirs.special_xid)


@given(paths, payloads, ints)
def test_set_is_packed_as_by_aiozk(path: str, data: bytes, version: int) -> None:
    theirs = protocol.SetDataRequest(path=path, data=data, version=version)
    assert SetDataRequest(path, data, version).serialize() == theirs.serialize()
    assert (SetDataRequest.opcode, SetDataRequest.special_xid) == (theirs.opcode, theirs.special_xid)


operations = st.one_of(
    st.builds(Check, paths, ints),
    st.builds(SetData, paths, payloads, ints),
    st.builds(Create, paths, st.none() | payloads, st.booleans()),
    st.builds(Delete, paths, ints),
)


@given(st.lists(operations, max_size=8), st.sampled_from(["open", ["world:anyone:r", "digest:user:hash:cdrwa"]]))
def test_multi_is_packed_as_by_aiozk(sent: list[Operation], setting: Any) -> None:
    acl = parse_acl(setting)
    theirs = protocol.TransactionRequest()
    for operation in sent:
        match operation:
            case Check(path, version):
                theirs.add(protocol.CheckVersionRequest(path=path, version=version))
            case SetData(path, data, version):
                theirs.add(protocol.SetDataRequest(path=path, data=data, version=version))
            case Create(path, data, ephemeral):
                create = protocol.CreateRequest(path=path, data=data, acl=acl)
                create.set_flags(ephemeral=ephemeral)
                theirs.add(create)
            case Delete(path, version):
                theirs.add(protocol.DeleteRequest(path=path, version=version))
    assert MultiRequest(encode_operations(sent, str, acl)).serialize() == theirs.serialize()
    assert (MultiRequest.opcode, MultiRequest.special_xid) == (theirs.opcode, theirs.special_xid)


@given(prefixes, st.none() | payloads, stats)
def test_data_is_read_as_by_aiozk(prefix: bytes, data: bytes | None, stat: Any) -> None:
    reply = rendered(protocol.GetDataResponse(data=data, stat=stat))
    assert GetDataRequest.read(prefix + reply, len(prefix)) == (data, ours(stat))
    found = protocol.GetDataResponse.deserialize(reply)
    assert (found.data, ours(found.stat)) == (data, ours(stat))


@given(prefixes, stats)
def test_stats_are_read_as_by_aiozk(prefix: bytes, stat: Any) -> None:
    reply = prefix + rendered(protocol.ExistsResponse(stat=stat))
    assert ExistsRequest.read(reply, len(prefix)) == ours(stat)
    assert SetDataRequest.read(reply, len(prefix)) == ours(stat)


@given(prefixes, st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=20), max_size=10), stats)
def test_children_are_read_as_by_aiozk(prefix: bytes, names: list[str | None], stat: Any) -> None:
    reply = rendered(protocol.GetChildren2Response(children=names, stat=stat))
    assert GetChildrenRequest.read(prefix + reply, len(prefix)) == names
    assert protocol.GetChildren2Response.deserialize(reply).children == names


@given(st.binary(max_size=200))
def test_reads_what_aiozk_reads_and_refuses_what_it_refuses(payload: bytes) -> None:
    for own, theirs in (
        (GetDataRequest, protocol.GetDataResponse),
        (ExistsRequest, protocol.ExistsResponse),
        (SetDataRequest, protocol.SetDataResponse),
        (GetChildrenRequest, protocol.GetChildren2Response),
    ):
        try:
            theirs.deserialize(payload)
        except (struct.error, ValueError):
            readable = False
        else:
            readable = True
        try:
            own.read(payload, 0)
        except (struct.error, ValueError):
            assert not readable, own
        else:
            assert readable, own
