"""The serving tier: write proxies, read proxies and the thin client that talks to them (docs/serving.md).

protocol/     what travels: requests, answers, their frames and messages. No I/O
routing/      which proxy a stream belongs to: hash, ring, bounded load. No I/O
security/     bearer tokens, and what is asked of every connection
bindings/     the two ways to a service: frames on the storage transport, and gRPC
process/      what a proxy is besides its service: page, membership, peers, the program
write_proxy/  many clients write one log through its one owner
read_proxy/   one read of a log serves many readers
client/       the thin client: it knows neither ZooKeeper nor storage nodes
"""
