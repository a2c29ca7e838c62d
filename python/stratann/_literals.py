"""Names that arguments of collections may have, for type checkers."""

from __future__ import annotations

from typing import Literal

#: Metrics.
Metric = Literal["l2", "ip", "cosine"]
#: Kinds of index of larger parts of a collection.
CollectionKind = Literal["auto", "disk-graph", "hybrid-ivf", "grid-ivf", "gpu-ivf", "remote-hnsw", "flat"]
#: Types of a component.
DTypeName = Literal["float32", "float16", "uint8", "int8", "f32", "f16", "u8", "i8"]
#: Kinds of indexes of fields of payloads.
FieldIndex = Literal["keyword", "integer", "float", "bool", "datetime", "uuid", "text"]
