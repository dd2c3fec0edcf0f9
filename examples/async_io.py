"""The library in asyncio. Needs a running cluster: see examples/README.md."""

import asyncio

from dlspark import AsyncLog, AsyncNamespace

LOG = "example-async-io"
RECORDS = 2_000


async def write(log: AsyncLog) -> None:
    """Write thousands of records, all under way at a time; each future is the record's position, once it is stored."""
    async with await log.open_writer() as writer:
        futures = []
        for number in range(RECORDS):
            futures.append(writer.write(number, b"record %d" % number))
            await writer.wait_for_room()
        await writer.flush()
        positions = await asyncio.gather(*futures)
        print(f"stored from {positions[0]} to {positions[-1]}")
        await writer.mark_end_of_stream()  # seals the log: readers end there, where else they would wait


async def follow(log: AsyncLog, name: str) -> int:
    """Read while the writer writes."""
    count = 0
    async with await log.open_reader() as reader:
        async for record in reader:
            assert record.payload == b"record %d" % count
            count += 1
    print(f"{name} has read {count:,} records")
    return count


async def main() -> None:
    """Write the log and follow it with two readers, all at the same time."""
    async with await AsyncNamespace.open() as namespace:
        if await namespace.log_exists(LOG):
            await namespace.delete_log(LOG)
        await namespace.create_log(LOG)
        async with await namespace.open_log(LOG) as log:
            _, *counts = await asyncio.gather(write(log), follow(log, "one reader"), follow(log, "another reader"))
            assert counts == [RECORDS, RECORDS]


asyncio.run(main())
