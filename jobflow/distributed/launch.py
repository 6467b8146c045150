"""Start a program as several ranks: `python -m jobflow.distributed.launch --nproc_per_node 2 script.py`, or `jobflow launch ...`.

Each rank is a process with MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK and LOCAL_RANK in its environment, by which ranks find each
other; so the program may run on several nodes, with one launcher on each.  No mpiexec is needed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from jobflow.core.command_line import whole
from jobflow.core.errors import ConfigError, JobflowError
from jobflow.distributed.output import Screen
from jobflow.distributed.processes import Processes, end_service, say
from jobflow.runtime.world.environment import LAUNCHER, LOCAL_SIZE, inherited
from jobflow.runtime.world.handshake import job_secret
from jobflow.runtime.world.rendezvous import listen, start_service
from jobflow.runtime.world.service.proof import SECRET, made_up

DESCRIPTION = """\
Start a program as several ranks on this node, and end all of them when one fails.

Every line that a rank prints is shown with the rank before it.  The first rank that fails ends all others, its traceback is
shown last, and its exit code is passed on (128 + n for signal n)."""

EXAMPLES = """\
examples:
  jobflow launch --nproc_per_node 2 train.py --epochs 3
  jobflow launch --nproc_per_node 2 -m package.train --epochs 3

  two nodes with two ranks each; 192.168.1.1 is node 0:
    jobflow launch --nnodes 2 --node_rank 0 --nproc_per_node 2 --master_addr 192.168.1.1 --master_port 7788 train.py   # there
    jobflow launch --nnodes 2 --node_rank 1 --nproc_per_node 2 --master_addr 192.168.1.1 --master_port 7788 train.py   # on the other

  and in both terminals the same secret, by which the ranks know each other:
    export JOBFLOW_SECRET=$(cat secret)      # made by: python -c "import secrets; print(secrets.token_hex())" > secret

  python -m jobflow.distributed.launch takes the same options."""

ADDRESS, ADDRESS_6, PORT = "127.0.0.1", "::1", 29500
#: seconds
GRACE = 1.0


def fill(into: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Give a parser the launcher's options."""
    into.description, into.epilog = DESCRIPTION, EXAMPLES
    into.formatter_class = argparse.RawDescriptionHelpFormatter
    many = whole(1)
    _add(into, "--nproc_per_node", type=many, default=1, metavar="N", help="ranks on this node (default 1)")
    _add(into, "--nnodes", type=many, default=1, metavar="N", help="nodes; a launcher runs on each (default 1)")
    _add(into, "--node_rank", type=whole(0), default=0, metavar="R", help="which of the nodes this is, from 0 (default 0)")
    _add(into, "--master_addr", metavar="A", help=f"address of node 0 (default {ADDRESS}, or {ADDRESS_6} without IPv4; needed for several nodes)")
    _add(into, "--master_port", type=whole(1, 65535), metavar="P", help=f"a free port there (default: any on one node, {PORT} on several)")
    _add(into, "--no_python", action="store_true", help='"script" is any program, run without python')
    _add(into, "--logdir", type=Path, metavar="DIR", help="also write what rank N prints to DIR/rank_N/stdout and stderr")
    _add(into, "--redirect_stdout_and_stderr", action="store_true", help='write it only there (DIR is "log" if --logdir is not given)')
    into.add_argument("--grace", type=float, default=GRACE, metavar="S", help=f"seconds between SIGTERM and SIGKILL (default {GRACE:g})")
    add_program(into)
    return into


def add_program(into: argparse.ArgumentParser) -> None:
    """A Python program with its arguments."""
    into.add_argument("-m", "--module", action="store_true", help='"script" is the name of a module, as in python -m')
    into.add_argument("script", help="the program")
    into.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")


def _add(into: argparse.ArgumentParser, name: str, **options: object) -> None:
    """An option in both spellings, --some_thing and --some-thing."""
    into.add_argument(*dict.fromkeys((name, name.replace("_", "-"))), **options)  # type: ignore[arg-type]


def check(given: argparse.Namespace) -> None:
    """ConfigError if options contradict each other or the program is not there."""
    if given.node_rank >= given.nnodes:
        raise ConfigError(f"--node_rank {given.node_rank} but --nnodes {given.nnodes}: nodes are numbered from 0 to {given.nnodes - 1}")
    if given.nnodes > 1 and given.master_addr is None:
        raise ConfigError(f"--nnodes {given.nnodes} needs --master_addr, the address of node 0, the same on all nodes")
    if given.module and given.no_python:
        raise ConfigError("-m and --no_python exclude each other: a module is run by python")
    if given.no_python and shutil.which(given.script) is None:
        raise ConfigError(f"there is no program {given.script!r} to run")
    if not given.no_python:
        check_script(given)


def check_script(given: argparse.Namespace) -> None:
    """ConfigError if there is no such script."""
    script, is_command = Path(given.script), given.script == "jobflow"  # in its repository, jobflow is a folder too
    if given.module or (not is_command and (script.is_file() or (script / "__main__.py").is_file())):
        return
    program, hint = shutil.which(given.script), ""
    if is_command:
        hint = f"; to run a jobflow command on each rank: {' '.join(['-m jobflow', *given.arguments[:1]])}"
    elif program is not None:
        hint = f"; {program} is a program: write --no_python before it"
    elif "/" not in given.script and not given.script.endswith(".py"):
        hint = "; write -m before the name of a module"
    raise ConfigError(f"there is no script {given.script!r} in {Path.cwd()}{hint}")


def command_line(given: argparse.Namespace) -> list[str]:
    """What each rank runs."""
    python = [] if given.no_python else [sys.executable, "-u", *(["-m"] if given.module else [])]
    return [*python, given.script, *given.arguments]


def environments(given: argparse.Namespace, host: str, port: int, common: dict[str, str]) -> dict[int, dict[str, str]]:
    """The environment of each rank of this node, by rank."""
    here = given.nproc_per_node
    fixed = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": str(given.nnodes * here), LOCAL_SIZE: str(here), LAUNCHER: f"{host}:{port}"}
    first = given.node_rank * here
    return {first + local: {**common, **fixed, "RANK": str(first + local), "LOCAL_RANK": str(local)} for local in range(here)}


def common_environment(ranks: int) -> dict[str, str]:
    """What ranks inherit: everything but what tells some other launcher's ranks who they are."""
    found = inherited(os.environ)
    if ranks > 1 and "OMP_NUM_THREADS" not in found:
        say(f"OMP_NUM_THREADS was not set and is 1 for each of the {ranks} processes; set it if each shall use more threads")
        found["OMP_NUM_THREADS"] = "1"
    return found


def run(given: argparse.Namespace) -> int:
    """Run the program; the exit code."""
    check(given)
    host = given.master_addr or loopback()
    size = given.nnodes * given.nproc_per_node
    logdir = given.logdir or (Path("log") if given.redirect_stdout_and_stderr else None)
    common = common_environment(given.nproc_per_node)
    if size == 1 and logdir is None:
        return _alone(command_line(given), environments(given, host, given.master_port or PORT, common)[0])
    secret = made_up().encode() if given.nnodes == 1 else job_secret()
    common[SECRET] = secret.decode(errors="surrogateescape")
    port, listener = _place(given, host, size, secret)
    # the service's connection may begin only when nothing can go wrong any more: its end ends the ranks
    screen = Screen([given.node_rank * given.nproc_per_node + i for i in range(given.nproc_per_node)], logdir, given.redirect_stdout_and_stderr)
    service, connection = start_service(listener, size, secret) if listener is not None else (None, None)
    processes = Processes(screen, given.grace, connection)
    try:
        return processes.run(command_line(given), environments(given, host, port, common))
    finally:
        screen.close()
        if connection is not None:
            connection.close()
        if service is not None:
            end_service(service)


def loopback() -> str:
    """Return the loopback address of this machine: of IPv4 unless only IPv6 has one."""
    for family, address in ((socket.AF_INET, ADDRESS), (socket.AF_INET6, ADDRESS_6)):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            return address
    return ADDRESS


def _place(given: argparse.Namespace, host: str, size: int, secret: bytes) -> tuple[int, socket.socket | None]:
    """The port, and the socket that listens there, if ranks meet on this node."""
    port = given.master_port or (PORT if given.nnodes > 1 else 0)
    if size == 1 or given.node_rank > 0:
        return port or PORT, None
    listener = listen(f"{host}:{port}", secret)
    return int(listener.getsockname()[1]), listener


def _alone(words: list[str], environment: dict[str, str]) -> int:
    """A single rank takes the place of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(words[0], words, environment)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program `python -m jobflow.distributed.launch`."""
    given = fill(argparse.ArgumentParser(prog="python -m jobflow.distributed.launch")).parse_args(arguments)
    try:
        return run(given)
    except JobflowError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
