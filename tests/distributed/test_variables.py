"""Environment variables of ranks: their meaning, and errors for wrong values."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from processes import clean, variables

from jobflow.core.errors import ConfigError
from jobflow.runtime.world.environment import inherited
from jobflow.runtime.world.launched import Launch, launched, starts_ranks

ONE_OF_TWO = variables(1, 2, 17789)
PLACE = "MASTER_ADDR=127.0.0.1,MASTER_PORT=17789,RANK=1"
OF_MPICH = {"PMI_RANK": "0", "PMI_SIZE": "4", "PMI_FD": "99999"}


def test_each_launcher_identifies_a_rank() -> None:
    result = launched(ONE_OF_TWO)
    assert result == Launch(1, 2, "WORLD_SIZE", "127.0.0.1:17789")
    assert result.multi and not result.supervised


def test_variables_of_jobflow_launch_identify_a_rank() -> None:
    result = launched({**ONE_OF_TWO, "JOBFLOW_LAUNCHER": "127.0.0.1:17789"})
    assert result is not None and result.supervised
    result = launched({**ONE_OF_TWO, "JOBFLOW_LAUNCHER": "127.0.0.1:1"})
    assert result is not None and not result.supervised, "it is the launcher of other ranks"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}, None),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, Launch(0, 4, "MPICH")),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "3"}, Launch(1, 2, "WORLD_SIZE", "127.0.0.1:17789")),
        ({"LOCAL_RANK": ""}, Launch(1, 2, "WORLD_SIZE", "127.0.0.1:17789")),
        ({"JOBFLOW_RANK": f"{PLACE}  99999999"}, None),
        ({"JOBFLOW_RANK": f"{PLACE}  {os.getpid()}"}, Launch(1, 2, "WORLD_SIZE", "127.0.0.1:17789")),
        ({"JOBFLOW_RANK": f"{PLACE.replace('RANK=1', 'RANK=0')}  99999999"}, Launch(1, 2, "WORLD_SIZE", "127.0.0.1:17789")),
        ({"JOBFLOW_RANK": f"PMI_RANK=0,PMI_SIZE=4,{PLACE} 123 99999999", **OF_MPICH}, None),
        ({"JOBFLOW_RANK": f"PMI_RANK=0,PMI_SIZE=4,{PLACE}  99999999"}, Launch(1, 2, "WORLD_SIZE", "127.0.0.1:17789")),
    ],
)
def test_variables_of_launchers_have_a_priority(more: dict[str, str], expected: Launch | None) -> None:
    assert launched({**ONE_OF_TWO, **more}) == expected


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"RANK": "2"}, "RANK=2 but WORLD_SIZE=2; set RANK to a number from 0 to 1"),
        ({"RANK": "-1"}, "RANK='-1' must be a whole number of at least 0"),
        ({"RANK": "one"}, "RANK='one' must be"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0' must be a whole number of at least 1"),
        ({"WORLD_SIZE": "2.0"}, "WORLD_SIZE='2.0' must be"),
        ({"WORLD_SIZE": "1"}, "RANK=1 but WORLD_SIZE=1"),
        ({"MASTER_PORT": "tcp://1.2.3.4:5"}, "MASTER_PORT='tcp://1.2.3.4:5' must be a whole number from 1 to 65535"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2 but WORLD_SIZE=2"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK='x' must be"),
        ({"RANK": ""}, "MASTER_ADDR=127.0.0.1, MASTER_PORT=17789, WORLD_SIZE=2 set but not RANK: set all four .* or unset them"),
    ],
)
def test_wrong_values_raise(more: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        launched({**ONE_OF_TWO, **more})


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"])
def test_incomplete_variables_raise(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}=.* set but not"):
        launched({name: ONE_OF_TWO[name]})
    with pytest.raises(ConfigError, match=f"set but not {name}: set all four"):
        launched({other: value for other, value in ONE_OF_TWO.items() if other != name})


def test_an_import_with_incomplete_variables_fails() -> None:
    ended = subprocess.run([sys.executable, "-c", "import jobflow"], env=clean({"RANK": "0"}), capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert "VariableError: RANK=0 set but not MASTER_ADDR and MASTER_PORT and WORLD_SIZE" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "-m", "jobflow.distributed.launch", "x.py"], True),
        (["python", "-u", "/usr/bin/jobflow", "launch", "x.py"], True),
        (["python", "-m", "jobflow", "launch", "x.py"], True),
        (["python", "x.py", "launch"], False),
        (["python", "-m", "jobflow", "explain", "launch.py:job"], False),
        (["python"], False),
    ],
)
def test_the_launcher_is_not_a_rank(command: list[str], expected: bool) -> None:
    assert starts_ranks(command) is expected


def test_ranks_do_not_inherit_variables_of_another_rank() -> None:
    output = {**ONE_OF_TWO, "PMI_FD": "5", "OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "0", "JOBFLOW_RANK": "x", "MPI_LOCALRANKID": "1"}
    assert inherited({**output, "PATH": "/bin", "SLURM_JOB_ID": "7"}) == {"PATH": "/bin", "SLURM_JOB_ID": "7"}
