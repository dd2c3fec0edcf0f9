"""A group of processes shares the work of a topic; one is killed. Needs a running cluster: see examples/README.md."""

import atexit
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

from dlspark import Log, Namespace
from dlspark.errors import EndOfStreamError

TOPIC = [f"example-group-{partition}" for partition in range(4)]  # a log each; the group's results are in "...-done"
MEMBERS = {"ann", "bob", "cyd"}
# A member waits for its turn as long as it takes. What a killed one had is free when its session ends.
SETTINGS = {"lockTimeoutSeconds": 86_400, "zkSessionTimeoutSeconds": 3}


def take_part(me: str) -> None:
    """Stand in line for every partition, and work on my part of them."""
    with ThreadPoolExecutor() as threads, Namespace.open(settings=SETTINGS) as namespace:
        logs = [(namespace.open_log(name), namespace.open_log(f"{name}-done")) for name in TOPIC]
        again = sum(threads.map(lambda number: work(me, number, *logs[number]), range(len(logs))))
        print(f"{me} was given {again} records that were done already, and did not do them again", flush=True)


def work(me: str, number: int, partition: Log, results: Log) -> int:
    """Do what is in a partition while it is mine, until it ends; return how many records had been done already."""
    again = 0
    while True:
        # The first in line reads, from where the group's position was stored last.
        with partition.open_reader(subscriber="group", client_id=me) as reader, results.open_writer(me) as writer:
            for turn in count(1):
                group = sorted({me, *reader.waiting()})  # all members: each is in line for each partition
                if group[number % len(group)] != me:
                    reader.commit_position()
                    break  # It is another one's part now. Leave it, and stand in line again.
                try:
                    records = reader.read_bulk(100)
                except EndOfStreamError:
                    reader.commit_position()
                    return again
                for record in records:
                    if record.txid <= writer.last_txid:  # A result has its task's id: so the results say what is done.
                        again += 1
                        continue
                    writer.write(record.txid, b"%s did %s" % (me.encode(), record.payload))
                writer.flush()
                if turn % 5 == 0:
                    reader.commit_position()  # What was done since comes again if this process dies: nothing is lost.


def main() -> None:
    """Publish to the topic, kill a member of its group when all are at work, and see who did what."""
    with Namespace.open() as namespace:
        for name in [*TOPIC, *(f"{name}-done" for name in TOPIC)]:
            if namespace.log_exists(name):
                namespace.delete_log(name)
            namespace.create_log(name)
        writers = [namespace.open_log(name).open_writer() for name in TOPIC]
        results = [namespace.open_log(f"{name}-done") for name in TOPIC]
        members = {name: subprocess.Popen([sys.executable, __file__, name]) for name in MEMBERS}
        atexit.register(lambda: list(map(subprocess.Popen.kill, members.values())))  # none outlives this program
        numbers = count()

        def publish() -> list[str]:
            """Write some tasks to each partition, and return who did the last one there that is done."""
            for number in islice(numbers, 20):
                for writer in writers:
                    writer.write(number, b"task %d" % number)
            return [log.last_record().payload.split()[0].decode() for log in results if log.end() > log.start()]

        while set(parts := publish()) != MEMBERS:
            pass
        print("all are at work, on the partitions of", parts)
        members["bob"].kill()
        while "bob" in (parts := publish()):
            pass
        print("bob was killed, and the partitions are those of", parts)
        for writer in writers:
            writer.mark_end_of_stream()  # Sends what is under way, too.
        assert [members[name].wait() for name in ("ann", "cyd")] == [0, 0]
        tasks, did = next(numbers), Counter[str]()
        for log in results:
            done = log.open_reader().read_bulk(tasks + 1)
            assert [record.txid for record in done] == list(range(tasks))
            did.update(record.payload.split()[0].decode() for record in done)
        print(f"{tasks} tasks in each partition, and each was done once: {dict(did)}")


if __name__ == "__main__":
    take_part(sys.argv[1]) if sys.argv[1:] else main()
