"""The recorded figures of the machine code of hot kernels: `scripts/gpu_check_steps/kernel_code.py` prints and writes them."""

from __future__ import annotations

import kernel_code
import pytest
from hot_kernels import hot_kernels


def rows() -> dict[str, list[str]]:
    lines = kernel_code.TABLE.read_text(encoding="utf-8").splitlines()[2:]
    return {line.split(" | ")[0]: line.split(" | ") for line in lines}


def test_printed_texts_equal_the_record() -> None:
    recorded = {name: (row[1], row[2], row[7]) for name, row in rows().items()}
    printed = {kernel.name: (str(kernel.blocks), str(kernel.threads), kernel.fingerprint) for kernel in hot_kernels()}
    assert printed == recorded, "write the table again in the environment of gpu_check dry: scripts/gpu_check_steps/kernel_code.py --write"


def test_recorded_kernels_do_not_spill_and_state_their_exceptions() -> None:
    for name, row in rows().items():
        assert row[4] == "0", f"{name} accesses local memory"
        narrow = {access.split("x")[1] for access in (*row[5].split(), *row[6].split()) if access != "-"} - {"128"}
        exceeds = int(row[3]) > kernel_code.MOST_REGISTERS or bool(narrow)
        assert exceeds == bool(kernel_code.reason_of(name)) == (len(row) > 8), f"{name}: {row}"


@pytest.mark.full
@pytest.mark.skipif(bool(kernel_code.missing()), reason=kernel_code.missing() or "nothing is missing")
def test_machine_code_equals_the_record(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["kernel_code.py"])
    assert kernel_code.main() == 0, capsys.readouterr().out


def test_code_of_reads_registers_spills_and_the_main_loop() -> None:
    text = """registers 22
        /*0000*/                   LDG.E R2, desc[UR4][R2.64] ;
.L_x_0:
        /*0010*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/               @P0 STG.E.128 desc[UR4][R2.64], R4 ;
        /*0030*/               @P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0040*/                   LDG.E.U16 R4, desc[UR4][R2.64] ;
        /*0050*/              @!P0 BRA `(.L_x_1) ;
        /*0060*/                   STL [R1], R4 ;
"""
    assert kernel_code.code_of(text) == kernel_code.Code(22, 1, ((128, 1),), ((128, 1),))
