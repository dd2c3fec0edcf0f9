"""The process of any proxy: its start and end, its page, its member in ZooKeeper, the other proxies."""
