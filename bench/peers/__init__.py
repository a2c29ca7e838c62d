"""One worker module for each peer; `python -m peers.NAME` speaks the protocol of `peers.worker`."""
