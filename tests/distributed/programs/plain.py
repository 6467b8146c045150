"""A program without jobflow: `plain.py CASE`."""

import os
import pathlib
import sys
import time


def wait_for_rank_0() -> None:
    while not pathlib.Path(os.environ["TURN"]).exists():
        time.sleep(0.02)


case, rank = sys.argv[1], int(os.environ["RANK"])
if case == "variables":
    names = ("MASTER_ADDR", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "PMI_RANK")
    print(*(f"{name}={os.environ.get(name)}" for name in names), sys.argv[2:])
elif case == "lines":
    for number in range(200):
        sys.stdout.write(f"{rank}:{number}")
        sys.stdout.write(" and more\n")
        print(f"{rank}:{number}", file=sys.stderr)
elif case == "code" and rank == 1:
    sys.exit(5)
elif case == "error":
    if rank == 1:
        wait_for_rank_0()
        raise ValueError("no luck with 41")
    print("still here", file=sys.stderr)
    pathlib.Path(os.environ["TURN"]).touch()
    time.sleep(20)
elif case == "late":
    if rank == 0:
        import signal

        def report(number: int, frame: object) -> None:
            print("told to end", file=sys.stderr)
            os._exit(0)

        signal.signal(signal.SIGTERM, report)
        pathlib.Path(os.environ["TURN"]).touch()
        time.sleep(20)
    wait_for_rank_0()
    raise ValueError("no luck with 41")
else:
    time.sleep(20)
