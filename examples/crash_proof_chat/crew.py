"""The service's side of a worker process: start it, talk to it, kill it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

PROGRAM = Path(__file__).with_name("worker.py")
END_SECONDS = 0.5

Inbox = SimpleQueue[tuple["Worker", dict[str, Any] | None]]
"""What workers say; ``None`` is the last word: the process is gone."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a worker has to know."""

    uri: str
    database: str
    design: str
    log: str


class Worker:
    """One worker process. Its words, and its end, go to the inbox in order."""

    def __init__(self, settings: Settings, inbox: Inbox) -> None:
        self.killed = False
        self._inbox = inbox
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the service, which ends its workers
        )
        threading.Thread(target=self._listen, daemon=True).start()
        self.tell(asdict(settings))  # not as an argument: a URI may hold a password

    def tell(self, message: dict[str, Any]) -> None:
        """Send one line. That it is gone already, the inbox will tell."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, by its process id."""
        self.killed = True
        self._process.kill()

    def end(self) -> None:
        """End it: politely by the end of its input, in the end by force. Returns when it is gone."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if self.killed else END_SECONDS)
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._inbox.put((self, json.loads(line)))
        self._process.wait()
        self._inbox.put((self, None))
