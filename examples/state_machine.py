"""A bank with three replicas and one log, whose leader is killed. Needs a running cluster: see examples/README.md."""

import atexit
import json
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dlspark import DLSN, Log, Namespace

LOG = "example-state-machine"
REPLICAS = ("one", "two", "three")
COMMANDS, SNAPSHOT_EVERY = 300, 25
SETTINGS = {"lockTimeoutSeconds": 86_400, "zkSessionTimeoutSeconds": 3}  # so long a killed leader owns the log


def command(number: int) -> bytes:
    """Return what a customer asks for: to move money from one of ten accounts to another."""
    chance = random.Random(number)
    return json.dumps([*chance.sample(range(10), 2), chance.randint(1, 150)]).encode()


def apply(accounts: list[int], command: bytes) -> None:
    """Do it if there is enough. State and command alone decide, so all replicas come to the same state."""
    payer, payee, amount = json.loads(command)
    if accounts[payer] >= amount:
        accounts[payer] -= amount
        accounts[payee] += amount


def save(position: DLSN, accounts: list[int], snapshot: Path) -> None:
    """Replace the snapshot: whenever this process dies one is there, whole; and once this returns, the new one."""
    with (new := snapshot.with_suffix(".new")).open("w") as file:
        json.dump([str(position), accounts], file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(snapshot)
    folder = os.open(snapshot.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def follow(log: Log, name: str, snapshot: Path) -> None:
    """Apply all commands behind the last snapshot, until the log ends, and take snapshots on the way."""
    position, accounts = json.loads(snapshot.read_text()) if snapshot.exists() else ("earliest", [100] * 10)
    print(f"{name} begins at {position}", flush=True)
    with log.open_reader(position) as reader:
        for record in reader:
            apply(accounts, record.payload)
            if (record.txid + 1) % SNAPSHOT_EVERY == 0:
                save(reader.position, accounts, snapshot)
                log.commit_position(name, reader.position)  # now this replica does not need what is before


def lead(log: Log, name: str) -> None:
    """Wait to own the log, which one process does at a time; then write commands behind those that are there."""
    with log.open_writer(name) as writer:
        for number in range(writer.last_txid + 1, COMMANDS):
            writer.write(number, command(number)).result()  # stored: all will apply it, whoever dies
            if number % SNAPSHOT_EVERY == 0:
                writer.truncate(log.end(), respect_subscribers=True)  # as far as all snapshots go
        if not log.is_sealed():
            writer.mark_end_of_stream()


def main(folder: str) -> None:
    """Run the replicas, kill and restart the leader half way, and compare all states with the one that must be."""
    with Namespace.open() as namespace:
        if namespace.log_exists(LOG):
            namespace.delete_log(LOG)
        namespace.create_log(LOG)
        log = namespace.open_log(LOG)
        for name in REPLICAS:
            log.commit_position(name, DLSN.INITIAL)  # Nothing is truncated before each has a snapshot.
        program = [sys.executable, __file__, folder]
        running = {name: subprocess.Popen([*program, name]) for name in REPLICAS}
        atexit.register(lambda: list(map(subprocess.Popen.kill, running.values())))  # none outlives this program
        for record in log.open_reader():
            if record.txid == COMMANDS // 2:
                leader = log.status().owner or ""
                running[leader].kill()
                print(f"{leader} leads, and is killed behind command {record.txid}: {running[leader].wait()}")
                running[leader] = subprocess.Popen([*program, leader])
        assert [process.wait() for process in running.values()] == [0, 0, 0]
        accounts = [100] * 10
        for number in range(COMMANDS):
            apply(accounts, command(number))
        for name in REPLICAS:
            position, same = json.loads((Path(folder) / name).read_text())
            assert same == accounts
            print(f"{name} has applied all before {position}: {same}")
        print(f"the log has kept {(kept := log.record_count())} of {COMMANDS} commands")
        assert kept < COMMANDS


if __name__ == "__main__":
    if sys.argv[1:]:
        with ThreadPoolExecutor() as threads, Namespace.open(settings=SETTINGS) as namespace:
            log, (folder, name) = namespace.open_log(LOG), sys.argv[1:]
            jobs = threads.submit(follow, log, name, Path(folder) / name), threads.submit(lead, log, name)
            assert [job.result() for job in jobs] == [None, None]  # or an error of one of them
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)
