"""The read proxy: one read of a log serves many readers (docs/serving/read-proxy.md).

ring.py       entries of a log that were read lately, undecoded. No I/O
chunks.py     what one reader gets next, made once for all that ask for the same form. No I/O
served_log.py a log that is served: its feeds, which fill rings; its readers, its end
sessions.py   readers by connection and number; those that wait for a turn behind the ring. No I/O
balance.py    which logs are to be read here, and which at other proxies. No I/O
figures.py    what a proxy counts, and how it shows. No I/O
service.py    requests and answers
proxy.py      the process, and how many logs the others read
"""
