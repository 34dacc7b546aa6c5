"""Records of an HDF5 file, read by any number of ranks and of their workers."""

import h5py
import numpy as np
import torch
from torch.utils.data import Dataset


class HDF5Records(Dataset):
    """Records `start` to `stop` of a file, as (image, label).

    A file handle must not be shared with another process, so each opens the file when it reads its
    first record. Readers need no lock of HDF5's, which some parallel filesystems refuse.
    """

    def __init__(self, path, start, stop):
        self.path, self.start, self.stop = path, start, stop
        self.file = None

    def __len__(self):
        return self.stop - self.start

    def __getstate__(self):
        return self.__dict__ | {"file": None}

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        """A whole batch at once; the loader prefers this to one call for each record."""
        if self.file is None:
            self.file = h5py.File(self.path, "r", locking=False)
        rows = np.array(indices) + self.start
        first, last = rows.min(), rows.max() + 1
        # One contiguous read. Where records lie far apart, h5py would select them row by row.
        images = self.file["images"][first:last][rows - first]
        labels = self.file["labels"][first:last][rows - first]
        return list(zip(torch.from_numpy(images), torch.from_numpy(labels), strict=True))
