"""The streams on a write proxy: their logs and requests, their limits, and their hand-over to other proxies.

table              which streams are here, and whether another one is taken
stream             one of them: its log's writer, and its end; model: the same as a state machine. No I/O
execution          a request on a stream, from its arrival to its answer, in order
limits             requests and bytes a second, of a stream and of all. No I/O; files: where operators set them
hand_over          a stream goes to another proxy, and how long that may take
stream_host        what all streams share: the namespace, bounds, tasks, access control
"""
