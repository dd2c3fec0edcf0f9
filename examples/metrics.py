"""Metrics of what a program writes and reads, as Prometheus scrapes them. Needs a running cluster: see
examples/README.md.
"""

import socket
import urllib.request

import dlspark

LOG = "example-metrics"
WANTED = ("log_writer_write_count", "transmit_packetsize_sum", "log_reader_records_total", "segments_open_count")


def free_port() -> int:
    """Return a port for this example; a real program has a fixed one, which Prometheus knows."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


port = free_port()
stop = dlspark.serve_metrics(port)  # of every namespace that this process opens; 127.0.0.1 unless asked otherwise
with dlspark.Namespace.open() as namespace:
    if namespace.log_exists(LOG):
        namespace.delete_log(LOG)
    namespace.create_log(LOG)
    with namespace.open_log(LOG) as log:
        with log.open_writer() as writer:
            for number in range(500):
                writer.write(number, b"x" * 100)
        with log.open_reader() as reader:
            print("read:", len(reader.read_bulk(500)))

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
for line in page.splitlines():
    if line.startswith(WANTED):
        print(line)
stop()
