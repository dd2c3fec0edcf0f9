"""The read proxy: one read of a log serves many readers (docs/serving/read-proxy.md).

ring.py       entries of a log that were read lately, undecoded. No I/O
chunks.py     some of them in the form that readers ask for, made once for all of them. No I/O
cursors.py    one reader's place, and what it gets next. No I/O
log_feed.py   fills a ring from a read-ahead
catch_up.py   who may read behind the ring, and whose turn is next. No I/O
served_log.py a log that is served: its feeds, its readers, its end
sessions.py   readers by connection and number; those that wait
balance.py    which logs are to be read here, and which at other proxies. No I/O
peer_counts.py  how many logs the others read
figures.py    what a proxy counts, and how it shows. No I/O
service.py    requests and answers
proxy.py      the process
"""
