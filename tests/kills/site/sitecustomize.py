"""Counts the file and HTTP operations of a conversion's processes, and kills one of them, or all, at the n-th.

Every Python process runs this when it starts, as its folder is in PYTHONPATH. Audit events come before the operation:
https://docs.python.org/3/library/audit_events.html.
"""

import os
import signal
import sys

_FILES = {"open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.rmdir", "shutil.rmtree"}
_WORKERS = {"worker_process", "SdkHarness"}  # a local worker, or the server that forks them, and a worker of Beam's


def _count_and_kill() -> None:
    victim, moment, counter = os.environ["KILL_VICTIM"], int(os.environ["KILL_AT"]), os.environ["KILL_COUNTER"]
    places = tuple(os.environ["KILL_PLACES"].split("\n"))  # input and output
    log = os.open(counter, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def hook(event: str, args: tuple[object, ...]) -> None:
        is_file = event in _FILES and args and str(args[0]).startswith(places)
        if not is_file and event != "http.client.send":
            return
        os.write(log, b".")  # a byte for each operation of all processes
        if os.fstat(log).st_size < moment:
            return
        try:
            os.close(os.open(f"{counter}.killed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return  # by another thread or process
        if victim == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        elif victim == "command":
            os.kill(os.getpgrp(), signal.SIGKILL)  # it leads its process group; its workers stay
        else:
            os.killpg(0, signal.SIGKILL)

    sys.addaudithook(hook)


if "KILL_VICTIM" in os.environ:
    is_worker = any(word in " ".join(sys.orig_argv) for word in _WORKERS)
    if is_worker or ("convert" in sys.orig_argv and os.environ["KILL_VICTIM"] != "worker"):
        _count_and_kill()
