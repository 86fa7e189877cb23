"""Data sets: by name or path, as uint8 arrays with a hold-out that is never trained on."""

from dyart.data.catalogue import Listed, from_arrays, listing, load
from dyart.data.errors import DataError, MissingDataError
from dyart.data.obtain import get
from dyart.data.sets import DataSet, Split
from dyart.data.store import data_root

__all__ = [
    "DataError",
    "DataSet",
    "Listed",
    "MissingDataError",
    "Split",
    "data_root",
    "from_arrays",
    "get",
    "listing",
    "load",
]
