"""What the process of any proxy has: its members in ZooKeeper, its peers, its page, its start and end."""
