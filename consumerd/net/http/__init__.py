"""HTTP served by a daemon: a small server with limits, and who may see what; and single requests, in a thread.

Strategy: aiohttp's server (the extra `http`) on the daemon's own loop, for a handful of readers: probes, Prometheus,
an operator. Everything about a request is bounded: its size, its time, how many there are at once; so no client that
can connect costs the daemon more than that. Only `consumerd.net.http.server` imports aiohttp.

Files in reading order: server, access, request.
"""
