"""Opening an index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

from ._arrays import Path, byte_size
from ._errors import InputError
from ._index import Index
from ._parameters import parameters


def open(
    path: Path,
    ram_budget: int | str | None = None,
    cache_budget: int | str = "auto",
    *,
    # parameters: open
    preload: bool = False,
    head_budget: int | str | None = None,
    learning: str | None = None,
    epoch_queries: int | None = None,
    hot: int | None = None,
    scorer: str | None = None,
    device: int | None = None,
    gpu_budget: int | str | None = None,
    spill: bool | None = None,
    baselines: str | None = None,
    # end of parameters
    **unknown: NoReturn,
) -> Index:
    """Opens the index in the folder `path`.

    Args:
        path: the index folder.
        ram_budget: limit in bytes of the open index and its searches, as int or text; None for no limit.
        cache_budget: memory for what would be read, in bytes as int or text: vectors and adjacency lists of a
            disk-graph, which are moved there now, and a cache of blocks. ``"auto"``: half of what `ram_budget`
            leaves, and without it up to half of the memory that is available. 0: every read is made and counted.
        .. parameters: open
        preload: move the index into memory first, or read all blocks into the cache, when there is room; false.
        head_budget: of a hybrid-ivf: limit of the RAM for list codes, which then need no reads; the rest of
            `ram_budget`.
        learning: of a hybrid-ivf: whether the index learns from its queries: ``on``: It learns while queries have a
            hot spot, and uses what it learnt; ``always``: It learns from every epoch, hot spot or not (to compare);
            ``frozen``: It uses what it learnt from earlier queries, without learning more; ``off``: It neither uses
            nor updates what it learnt; on.
        epoch_queries: of a hybrid-ivf: queries per learning epoch; 2000.
        hot: of a hybrid-ivf: hot vectors that are kept in RAM; one per ten nodes of its navigation graph.
        scorer: of a gpu-ivf: what ranks candidates by their codes; `stratann doctor` names the GPUs: ``auto``: A GPU
            where one can be used, otherwise this machine's threads; ``cuda``: A GPU, or an error; ``cpu``: This
            machine's threads; auto.
        device: of a gpu-ivf: number of the GPU; 0.
        gpu_budget: of a gpu-ivf: limit of the GPU's memory, such as 8GiB; nine tenths of what is free.
        spill: of a gpu-ivf: rank codes that do not fit on the GPU with this machine's threads; otherwise they are
            refused; false.
        baselines: of a gpu-ivf: files for searches with `baseline` to open: ``none``: None; ``disk``: All, on disk;
            ``ram``: All, and lists of vectors are read into RAM; none.
        .. end of parameters

    Raises:
        InputError: no index, an index of a newer format, or a wrong argument.
        BudgetError: the index does not fit; the message names the smallest budget that does.
        CorruptIndexError: a damaged or missing file.
    """
    return Index(path, parameters("open", locals()))


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
