"""The record of the kernels that compute each operation on a GPU is up to date."""

from __future__ import annotations

import record_kernels


def test_kernels_of_operations_equal_the_record() -> None:
    assert record_kernels.recorded() == record_kernels.TARGET.read_text().splitlines(), "python tests/gpu/record_kernels.py --write"


def test_operations_of_array_functions_have_a_reason() -> None:
    rest = {name.partition(".")[2] for name, (names, _) in record_kernels.table().items() if not names}
    assert rest == set(record_kernels.REASONS)
