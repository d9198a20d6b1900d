"""Stores: where the vectors of an index are and who finds the nearest of them.

`protocol` is what all stores do, `embedded` does it with faiss in this process, and `milvus` in
Milvus Lite or a cluster.
"""
