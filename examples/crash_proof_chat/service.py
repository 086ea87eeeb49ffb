"""The chat service: takes questions, hands them to workers, and kills workers at random moments.

Its queue is of the simple kind that survives crashes: a job that a worker did not acknowledge, because it
died or gave the job back, is handed out again. So a job is done at least once; that its turn is stored
exactly once is the business of the design. What the service writes down is the first ledger of the judge.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

from crew import Inbox, Worker
from workload import Job, KillSchedule, Load

TICK_SECONDS = 0.005
DEADLINE_SECONDS = 100.0


@dataclass(slots=True)
class Delivery:
    """One time that a job was handed to a worker, and how it ended."""

    number: int
    job: Job
    outcome: str = "held"  # then: acknowledged, killed, given back
    answer: str = ""


class Service:
    """Runs one load to its end: all copies of all questions acknowledged, and all kills done.

    A kill counts when its victim had called the model for a job and not yet acknowledged it; some more
    workers die while they wait for a session. Should the questions come to their end before the kills, the
    chats go on.
    """

    def __init__(
        self,
        load: Load,
        schedule: KillSchedule,
        *,
        kills: int,
        start_worker: Callable[[Inbox], Worker],
        called: Callable[[], set[int]],
    ) -> None:
        self.deliveries: list[Delivery] = []
        self.answered: set[Job] = set()
        self.kills = 0
        self._load = load
        self._schedule = schedule
        self._kills_wanted = kills
        self._start_worker = start_worker
        self._called = called
        self._inbox: Inbox = SimpleQueue()
        self._queue: deque[Job] = deque()
        self._copies: list[tuple[float, int, Job]] = []  # a heap: when, tie-break, what
        self._numbers = count(1)
        self._crew: dict[Worker, Delivery | None] = {}  # a worker not ready yet is not among them
        self._starting: set[Worker] = set()
        self._next_kill = 0.0

    def run(self, workers: int, on_progress: Callable[[Service], None]) -> None:
        """Do it. Leaves no worker behind, however it ends."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        try:
            for _ in range(workers):
                self._starting.add(self._start_worker(self._inbox))
            for jobs in self._load.sessions.values():
                self._submit_twice(jobs[0])
            while not self._is_finished():
                self._step()
                on_progress(self)
                if time.monotonic() > deadline:
                    raise RuntimeError(f"not finished after {DEADLINE_SECONDS:.0f} s")
        finally:
            for worker in (*self._starting, *self._crew):
                worker.end()

    def _is_finished(self) -> bool:
        if self._queue or self._copies or any(self._crew.values()):
            return False
        if self.kills < self._kills_wanted:
            for job in self._load.add_questions():
                self._submit_twice(job)
            return False
        return True

    def _step(self) -> None:
        now = time.monotonic()
        while self._copies and self._copies[0][0] <= now:
            self._queue.append(heapq.heappop(self._copies)[2])
        self._hand_out()
        self._kill_if_due(now)
        try:
            worker, said = self._inbox.get(timeout=TICK_SECONDS)
        except Empty:
            return
        self._hear(worker, said)

    def _submit_twice(self, job: Job) -> None:
        self._queue.append(job)
        later = time.monotonic() + self._load.copy_delay(job)
        heapq.heappush(self._copies, (later, next(self._numbers), job))

    def _hand_out(self) -> None:
        for worker, held in self._crew.items():
            if self._queue and held is None and not worker.killed:
                delivery = Delivery(len(self.deliveries) + 1, self._queue.popleft())
                self.deliveries.append(delivery)
                self._crew[worker] = delivery
                worker.tell({"job": asdict(delivery.job), "delivery": delivery.number})

    def _kill_if_due(self, now: float) -> None:
        """Kill a worker: one that has called the model; if there is none, sometimes one that waits.

        The next kill waits until it is known what this one hit.
        """
        if self.kills >= self._kills_wanted or now < self._next_kill:
            return
        busy = {worker: held.number for worker, held in self._crew.items() if held is not None}
        if not busy or any(worker.killed for worker in self._crew):
            return
        called = self._called()
        in_turn = [worker for worker, number in busy.items() if number in called]
        if in_turn or self._schedule.takes_waiting():
            self._schedule.choose(in_turn or list(busy)).kill()
        self._next_kill = now + self._schedule.gap()

    def _hear(self, worker: Worker, said: dict[str, Any] | None) -> None:
        if said is None:
            self._bury(worker)
        elif "ready" in said:
            self._starting.discard(worker)
            self._crew[worker] = None
        else:
            delivery = self._crew[worker]
            assert delivery is not None
            self._crew[worker] = None
            self._close(delivery, said)

    def _close(self, delivery: Delivery, said: dict[str, Any]) -> None:
        if "answer" in said:
            delivery.outcome, delivery.answer = "acknowledged", said["answer"]
            self._ask_next(delivery.job)
        else:
            delivery.outcome = f"given back ({said['given_back']})"
            self._queue.append(delivery.job)

    def _ask_next(self, job: Job) -> None:
        """The user has an answer; a second answer to the same question changes nothing for them."""
        if job in self.answered:
            return
        self.answered.add(job)
        following = self._load.after(job)
        if following is not None:
            self._submit_twice(following)

    def _bury(self, worker: Worker) -> None:
        """A worker is gone: what it had in hand goes back to the queue, and another one is started."""
        worker.end()
        if not worker.killed:
            raise RuntimeError("a worker ended by itself: see what it wrote")
        delivery = self._crew.pop(worker)
        if delivery is not None:
            self.kills += delivery.number in self._called()
            delivery.outcome = "killed"
            self._queue.append(delivery.job)
        self._starting.add(self._start_worker(self._inbox))
