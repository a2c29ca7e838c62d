"""Writes the files that the tests read, by the HDF5 library: `python make.py` with h5py."""

import h5py
import numpy as np

ROWS, DIM = 20, 3
values = np.arange(ROWS * DIM).reshape(ROWS, DIM)
types = ["<f4", ">f4", "<f8", ">f8", "<f2", ">f2", "|u1", "|i1", "<i2", ">i2", "<u2", "<i4", "<u4", "<i8", ">u8"]


def array(kind):
    signed = kind[1] in "fi"
    return (values - (20 if signed else 0)).astype(kind)


# As ann-benchmarks has them.
with h5py.File("plain.hdf5", "w") as file:
    file.attrs["distance"] = "euclidean"
    file["train"] = array("<f4")
    file["test"] = array("<f4")[:5]
    file["neighbors"] = np.zeros((5, 4), "<i4")
    file["distances"] = np.zeros((5, 4), "<f4")

with h5py.File("types.hdf5", "w", libver="earliest") as file:
    for kind in types:
        file[kind] = array(kind)

with h5py.File("chunks.hdf5", "w") as file:
    for kind in types:
        file.create_dataset(kind, data=array(kind), chunks=(7, 2), compression="gzip", shuffle=True)
    file.create_dataset("raw", data=array("<f4"), chunks=(20, 3))
    file.create_dataset("sums", data=array("<f4"), chunks=(3, 3), compression="gzip", fletcher32=True)
    file.create_dataset("large", data=array("<f4"), chunks=(64, 8), maxshape=(None, None), shuffle=True)

with h5py.File("latest.hdf5", "w", libver="latest") as file:
    file.create_dataset("train", data=array("<f4"), track_times=True)
    file["none"] = array("<f4")[0]

with h5py.File("block.h5", "w", userblock_size=1024) as file:
    file["train"] = array("<f4")

# What is not read.
with h5py.File("others.hdf5", "w", libver="latest") as file:
    file.create_dataset("chunks", data=array("<f4"), chunks=(7, 2))
    file.create_dataset("lzf", data=array("<f4"), chunks=(20, 3), compression="lzf")
    file["text"] = "x"
    file["cube"] = np.zeros((2, 2, 2), "<f4")
    file["bools"] = np.zeros((2, 2), "?")
    file["wide"] = np.array([[1, 1 << 24], [1 << 24, (1 << 24) + 1]], "<i8")
    file.create_dataset("nothing", shape=(4, 4), dtype="<f4")
    file.create_group("group")

with h5py.File("holes.hdf5", "w") as file:
    holes = file.create_dataset("holes", shape=(40, 3), dtype="<f4", chunks=(10, 3))
    holes[:10] = 1
    file.create_dataset("lzf", data=array("<f4"), chunks=(20, 3), compression="lzf")
