"""A worker process: a JSON line in is a job, a JSON line out says that it is done.

It ends when its input does, so it does not outlive the service. It expects to be killed at any line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from designs import DESIGNS, Design
from pymongo import MongoClient
from stand_in import CallLog, model_for
from workload import Job

from mnemongo import ConflictError, OutcomeUnknownError, UnavailableError

DELIVERY_SECONDS = 0.05  # after the answer was stored: it is sent to the user, then the job is acknowledged


def say(message: dict[str, Any]) -> None:
    """Write one line, at once."""
    print(json.dumps(message), flush=True)


def work(design: Design, log: CallLog, task: dict[str, Any]) -> dict[str, Any]:
    """Do one job; returns the acknowledgement, or why the job is given back to be tried again."""
    try:
        answer = design.answer(Job(**task["job"]), model_for(task["delivery"], log))
    except (ConflictError, OutcomeUnknownError, UnavailableError) as error:
        return {"given_back": type(error).__name__}
    time.sleep(DELIVERY_SECONDS)
    return {"answer": answer}


def main() -> None:
    """Work until the input ends. The first line says where."""
    settings = json.loads(sys.stdin.readline())
    log = CallLog(Path(settings["log"]))
    client: MongoClient[dict[str, Any]] = MongoClient(settings["uri"])
    with client:
        design = DESIGNS[settings["design"]](client, settings["database"])
        client.admin.command("ping")
        say({"ready": True})
        for line in sys.stdin:
            say(work(design, log, json.loads(line)))


if __name__ == "__main__":
    main()
