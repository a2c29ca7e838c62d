"""One module for each database; `python -m engines.NAME` speaks the protocol of `engines.worker`."""
