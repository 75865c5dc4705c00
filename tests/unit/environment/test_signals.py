"""A program that is told to end cleans up first."""

import signal
import subprocess
import sys
import threading

from imagefactory.store.signals import ending_in_order
from tests.fixtures.checkouts import REPOSITORY

PROGRAM = """
import os, signal, time
from imagefactory.store.signals import ending_in_order
try:
    with ending_in_order():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
finally:
    print("cleaned up")
"""


def test_program_told_to_end_cleans_up_and_names_the_signal() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "cleaned up\n")


def test_signal_is_handled_as_before_afterwards_and_left_alone_by_other_threads() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def look() -> None:
        with ending_in_order():
            seen.append(signal.getsignal(signal.SIGTERM))

    with ending_in_order():
        assert signal.getsignal(signal.SIGTERM) != before
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before] == [signal.getsignal(signal.SIGTERM)]
