"""A write proxy: many clients write one log through its one owner.

The way of a record, from its frame to its acknowledgement:

    bindings/frames_connection.py   the frame becomes a request; what it takes is counted
    process/host.py                 the door hands it on, once the proxy serves
    metrics.py                      it is timed and counted, where the proxy has a page
    service.py                      status, limits and checksum; the stream is found, or begun
    streams/stream.py               rights; it is begun, or waits until the log is open
    streams/execution.py            records of one turn of the event loop become one run for the log's writer
    dlspark/core/writing/           the run becomes an entry, which storage nodes store and acknowledge
    streams/execution.py            the entry's position becomes an answer for each record
    streams/stream.py               the request is no longer under way
    bindings/frames_connection.py   the answer leaves

Requests that write nothing take another way (rare_requests.py). What starts and ends all of it is proxy.py; where
streams belong, and how they come to other proxies, is in `tier` and in streams/hand_over.py.
"""
