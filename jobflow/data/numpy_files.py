"""The reader of NumPy files, which are memory-mapped and may be larger than memory."""

from __future__ import annotations

from jobflow.core.types import Array
from jobflow.data.files import entries_of, fault_of
from jobflow.data.samples import Columns, Split, checked_name
from jobflow.storage.npy import in_archive, in_file
from jobflow.storage.remote import AnyPath, path_of

WHAT = 'reader "numpy"'
fault = fault_of(WHAT)


class NumpyFiles(Columns):
    """The arrays of an .npz file, of a folder of .npy files, or of one .npy file; row i of each array is sample i.

    `fields` maps fields to arrays (`{images: x_train, labels: y_train}`); by default each array is a field of the same name. `scale` multiplies
    and `dtypes` converts the numbers of a field. Files are memory-mapped, so only the requested rows are read. Arrays compressed by
    `np.savez_compressed` are decompressed into memory. Every `validation_every`-th row is for validation.
    """

    suffixes = (".npz", ".npy")

    def __init__(
        self,
        path: str,
        fields: dict[str, str] | None = None,
        dtypes: dict[str, str] | None = None,
        scale: dict[str, float] | None = None,
        split: Split = "all",
        validation_every: int = 10,
    ) -> None:
        file = path_of(path)
        arrays = _arrays(file)
        sources = {name: f"{WHAT}: {file / f'{name}.npy' if file.is_dir() else file}" for name in arrays}
        if fields is not None:
            arrays = {field: arrays[checked_name(name, arrays, f'{WHAT}: {file}: field "{field}": array')] for field, name in fields.items()}
            sources = {field: sources[name] for field, name in fields.items()}
        super().__init__(arrays, dtypes, scale, (split, validation_every), f"{WHAT}: {file}", sources)


def _arrays(path: AnyPath) -> dict[str, Array]:
    if path.is_dir():
        files = [file for file in entries_of(path) if file.suffix == ".npy"]
        if not files:
            raise fault(f"there is no .npy file in {path.absolute()}")
        return {file.stem: in_file(file, fault).mapped() for file in files}
    if not path.exists():
        raise fault(f"there is no file or folder {path.absolute()}")
    arrays = in_archive(path, fault) if path.suffix == ".npz" else [in_file(path, fault)]
    return {array.name: array.mapped() for array in arrays}
