"""`bookkeeper shell` of the real BookKeeper against a cluster of our nodes."""

from __future__ import annotations

import re

from helpers.interop.clusters import InteropCluster, newest_version

from dlspark.testing.java_process import JavaTool


async def shell(either_cluster: InteropCluster, java: JavaTool, *arguments: str) -> str:
    """What the command told, all lines of it. It must succeed."""
    answer = await either_cluster.on(java)("shell", arguments=list(arguments))
    told = "\n".join(answer["told"])
    assert answer["status"] == 0, told
    return told


@newest_version
async def test_the_shell_lists_describes_reads_and_tests_a_cluster_of_our_nodes(
    java: JavaTool, ours: InteropCluster
) -> None:
    async with ours.client() as client:
        writer = await client.create(custom={"application": b"interop"})
        for index in range(5):
            await writer.add(b"payload-%d" % index)
        metadata = await writer.close()
        instance = await client.bookies.instance_id()
    ledger = str(writer.ledger_id)

    told = await shell(ours, java, "simpletest", "-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-n", "40")
    assert "40 entries written" in told

    assert re.search(rf"ledgerId=0*{ledger}\b|ledgerID: {ledger}\b", await shell(ours, java, "listledgers"))
    for command in (["listledgers", "-meta"], ["ledgermetadata", "-ledgerid", ledger]):
        told = await shell(ours, java, *command)
        bookies = ", ".join(metadata.last_ensemble.bookies)
        assert f"ensembles={{0=[{bookies}]}}" in told
        assert "state=CLOSED, length=45, lastEntryId=4, digestType=CRC32" in told

    told = await shell(ours, java, "readledger", "-ledgerid", ledger, "-msg")
    sizes = re.findall(r"(?:entryId|Eid)=(\d+)(?:,)? (?:entrySize|EntrySize)=(\d+)", told)
    assert sizes == [(str(index), str(9 * (index + 1))) for index in range(5)], "its sizes are the ledger's length"
    assert all(f"payload-{index}" in told for index in range(5)), told

    told = await shell(ours, java, "listbookies", "-rw")
    assert set(re.findall(r"127\.0\.0\.1:\d+", told)) == set(ours.bookies)
    assert not set(re.findall(r"127\.0\.0\.1:\d+", await shell(ours, java, "listbookies", "-ro")))

    assert instance is not None
    assert instance in await shell(ours, java, "whatisinstanceid")

    told = await shell(ours, java, "bookieinfo")
    assert all(f"BookieID:{bookie}," in told for bookie in ours.bookies)
    assert "Total free disk space in the cluster" in told

    await shell(ours, java, "deleteledger", "-ledgerid", ledger, "-force")
    assert not re.search(rf"ledgerId=0*{ledger}\b|ledgerID: {ledger}\b", await shell(ours, java, "listledgers"))
