"""What travels between clients and proxies. No I/O: nothing here knows a socket, a loop or a library of RPC.

operations.py      requests and answers as values, whatever carries them
failures.py        errors as refusals, and back
request_checks.py  what a request must be before it is begun: name, checksum, record sets
deliveries.py      what a reader is given: records, stored entries, Arrow
frame_parts.py     what every frame begins with, and the parts of frames
request_frames.py  requests as frames; writes, which are most of them, in write_frames.py
answer_frames.py   answers as frames
rpc_requests.py    gRPC's calls, and requests as messages
rpc_answers.py     answers as messages
"""
