"""What is asked, when, and when workers are killed: everything that the seed decides.

A chat asks its next question when the one before has been answered, as people do. Every question is
submitted twice (a double click, a client that tries again): the second copy follows within a second, so it
may arrive while the first is being answered, or while the session is already at its next question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")

SESSIONS = ("ann", "ben", "cleo", "dan")
KILL_GAP = (0.05, 0.5)  # seconds from one kill to the next
WAITING_KILLED = 0.25  # how often, when all workers with a job wait for a session
COPY_DELAY = (0.0, 1.0)  # seconds from the first submission of a question to the second


@dataclass(frozen=True, slots=True)
class Job:
    """One question of one session: what a worker is given to do."""

    session: str
    turn: str
    question: str


class Load:
    """The questions of every session, in the order in which they are asked. The same for the same seed."""

    def __init__(self, seed: int, questions: int) -> None:
        self._random = Random(f"load {seed}")
        self._parcels = iter(self._random.sample(range(1000, 10_000), 9000))  # no question twice
        self._copy_delay: dict[Job, float] = {}
        self.sessions: dict[str, list[Job]] = {session: [] for session in SESSIONS}
        for _ in range(questions):
            self.add_questions()

    def add_questions(self) -> list[Job]:
        """One more question at the end of each session; returns them."""
        return [self._add(session) for session in self.sessions]

    def _add(self, session: str) -> Job:
        jobs = self.sessions[session]
        job = Job(session, f"q{len(jobs) + 1:02}", f"Where is parcel {next(self._parcels)}?")
        jobs.append(job)
        self._copy_delay[job] = self._random.uniform(*COPY_DELAY)
        return job

    def copy_delay(self, job: Job) -> float:
        """Seconds until the question is submitted again."""
        return self._copy_delay[job]

    def after(self, job: Job) -> Job | None:
        """The session's next question."""
        jobs = self.sessions[job.session]
        following = jobs.index(job) + 1
        return jobs[following] if following < len(jobs) else None

    @property
    def size(self) -> int:
        """How many questions there are."""
        return sum(map(len, self.sessions.values()))


class KillSchedule:
    """When the next worker dies, and which one. The same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"kills {seed}")

    def gap(self) -> float:
        """Seconds until the next kill."""
        return self._random.uniform(*KILL_GAP)

    def takes_waiting(self) -> bool:
        """Whether a worker that only waits is killed, when there is none to be hit in a turn."""
        return self._random.random() < WAITING_KILLED

    def choose(self, among: Sequence[T]) -> T:
        """Which one it hits."""
        return self._random.choice(among)
