"""Opening an index."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ._arrays import Path, byte_size
from ._errors import InputError
from ._index import Index


def open(
    path: Path,
    ram_budget: int | str | None = None,
    cache_budget: int | str = "auto",
    *,
    preload: bool = False,
    head_budget: int | str | None = None,
    learning: str = "on",
    epoch_queries: int = 2000,
    scorer: str = "auto",
    device: int | None = None,
    gpu_budget: int | str | None = None,
    spill: bool = False,
    early_tables: bool = True,
    baselines: str = "none",
) -> Index:
    """Opens the index in the folder `path`.

    Args:
        path: the index folder.
        ram_budget: limit in bytes of the open index and its searches, as int or text; None for no limit.
        cache_budget: memory that caches blocks, in bytes as int or text. ``"auto"``: half of what `ram_budget`
            leaves, and without it up to half of the memory that is available. 0: every read is made and counted.
        preload: whether all blocks are read into the cache at once, when it has room for them.
        head_budget: bytes of it for list codes of a hybrid-ivf, which then need no reads; None for the rest.
        learning: whether a hybrid-ivf learns from its queries: ``"on"``, ``"frozen"`` (it uses earlier
            statistics without updating them) or ``"off"``. The statistics are kept in the folder.
        epoch_queries: queries per learning epoch.
        scorer: what ranks the codes of a gpu-ivf: ``"auto"`` (a GPU where one can be used, otherwise the threads of
            the search), ``"cuda"`` or ``"cpu"``.
        device: number of the GPU; 0.
        gpu_budget: limit in bytes of the GPU's memory; None for nine tenths of what is free.
        spill: whether the threads of the search rank codes that do not fit on the GPU; otherwise they are refused.
        early_tables: whether a GPU builds the look-up table of a query while the processor finds its candidates.
        baselines: ``"none"``; files of baselines are opened by the program ``stratann-lab`` alone.

    Raises:
        InputError: no index, an index of a newer format, or a wrong argument.
        BudgetError: the index does not fit; the message names the smallest budget that does.
        CorruptIndexError: a damaged or missing file.
    """
    return Index(
        path,
        ram_budget,
        cache_budget,
        preload=preload,
        head_budget=head_budget,
        learning=learning,
        epoch_queries=epoch_queries,
        scorer=scorer,
        device=device,
        gpu_budget=gpu_budget,
        spill=spill,
        early_tables=early_tables,
        baselines=baselines,
    )


def open_memory(
    addresses: str | Sequence[str],
    key_file: Path,
    ram_budget: int | str | None = None,
    cache_budget: int | str = "auto",
    *,
    certificate: Path | None = None,
    certificate_key: Path | None = None,
    authority: Path | None = None,
) -> Index:
    """Opens the remote-hnsw that memory nodes hold. No folder is needed.

    Args:
        addresses: ``"HOST:PORT"``, ``"shm:NAME"`` or ``"ucx:HOST:PORT"`` of each memory node; one text may have
            several, separated by commas. Or ``"etcd:CLUSTER@http://HOST:PORT"``, where etcd has them.
        key_file: file with the key of the memory nodes: 64 hexadecimal digits.
        ram_budget: limit in bytes of the open index and its searches, as int or text; None for no limit.
        cache_budget: memory that caches clusters, in bytes as int or text. ``"auto"``: a tenth of them. 0: none.
        certificate: PEM file of the certificate for encrypted connections, with `certificate_key` and `authority`.
        certificate_key: PEM file of its key.
        authority: PEM file of the authority whose memory nodes are trusted.

    Raises:
        InputError: memory nodes that hold no index, or a wrong argument.
        DiskError: memory nodes or an etcd that do not answer, or nodes that have another key.
        BudgetError: as `open`; so is CorruptIndexError.
    """
    texts = [addresses] if isinstance(addresses, str) else list(addresses)
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"addresses is {addresses!r}; give the address of each memory node as text")
    each = [address.strip() for text in texts for address in text.split(",") if address.strip()]
    if not each:
        raise InputError("no address is given; give that of each memory node")
    tls = (certificate, certificate_key, authority)
    if any(path is None for path in tls) and any(path is not None for path in tls):
        raise InputError("certificate, certificate_key and authority go together; give all of them, or none")
    how = {
        "key_file": os.fspath(key_file),
        "tls": None if certificate is None else tuple(os.fspath(path) for path in tls if path is not None),
        "ram_budget": byte_size(ram_budget, "ram_budget"),
        "cache_budget": None if cache_budget == "auto" else byte_size(cache_budget, "cache_budget") or 0,
    }
    return Index._of_memory(each, how)
