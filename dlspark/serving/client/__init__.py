"""The thin client: logs through proxies, without ZooKeeper or storage nodes (docs/serving/client.md).

client.py          what a program calls; it puts the other rooms together
sync.py            the same for threads
producing.py       records of one stream on their way: gathered, numbered, sent, answered one by one
batching.py        which records travel together. No I/O
write_sessions.py  when a stream's request is sent, and what its caller is answered. No I/O
producers.py       the session of an idempotent producer: which number a request gets (I19). No I/O
multi_stream.py    records that go to whichever of several streams takes them soonest
reading.py         readers, their polls, and the connections that they share
monitor.py         heartbeats to many streams
requests.py        one request on its way from proxy to proxy: attempts, pauses, time limits. No I/O
answer_rules.py    what is done about each answer. No I/O
ownership.py       which proxy is believed to own a stream. No I/O
dispatch.py        runs requests over the connections
channels.py        the connections
fleet.py           which proxies there are
settings.py        what all of it may be set to
"""
