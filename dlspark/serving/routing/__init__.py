"""How a client chooses the proxy that it asks. No I/O.

hosts.py         proxies as clients know them, the hash that spreads streams over them, what every route can do
ring.py          the ring that most clients use, and the one for readers, on which loads are bounded
own_region.py    the own region's hosts first, then the others', each region with a route of its own
other_routes.py  by index in the sorted list, one host always, region after region
"""
