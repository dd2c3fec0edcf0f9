"""What tests of several folders share; pytest has tests/ on the path, so that `import helpers` works everywhere.

What users get for tests of their own is `dlspark.testing`.

waiting         waiting for a condition, by the clock
virtual_time    tests whose clock jumps to the next timer
fork_server     processes that start in milliseconds
warm_sandbox    a sandbox whose storage nodes start that way
hosts           what runs on the hosts of a fault test
forwarding      hosts on loopback addresses, with forwarders between them that can fail
namespaces      hosts in Linux network namespaces
strangers       adds by a client that knows storage nodes and nothing else
"""
