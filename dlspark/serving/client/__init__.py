"""The thin client: it writes and reads logs through proxies, and knows neither ZooKeeper nor storage nodes."""
