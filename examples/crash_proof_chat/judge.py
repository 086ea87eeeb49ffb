"""Compares what the database has with what happened: the service's deliveries and the model's call log.

The judge knows of no design. A promise is broken when one of these is not 0:

* lost: questions with an answer that was acknowledged (a user has seen it) and is not in the database;
* doubled: questions that are there more than once;
* torn: questions with a stored turn that is not one question and its answer, that stands in another order
  than it was asked in, or whose answer was not made, in a logged call, from exactly the turns before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from service import Delivery
from stand_in import Messages, call_of, reply
from workload import Job, Load


@dataclass(frozen=True, slots=True)
class Row:
    """One question in the end."""

    job: Job
    times: int  # that it is stored
    answers: tuple[str, ...]
    lost: tuple[str, ...]
    attempts: int
    again: int  # attempts that were killed or given back
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run came to; all of it counted."""

    questions: int
    lost: int
    doubled: int
    torn: int
    missing: int
    deliveries: int
    acknowledged: int
    given_back: int
    killed: int
    killed_without_call: int
    killed_in_call: int
    killed_after_call: int
    calls_begun: int
    calls_ended: int
    saved: int

    @property
    def killed_while_answering(self) -> int:
        """The kills that were asked for: the model had been called, and the job was not acknowledged."""
        return self.killed_in_call + self.killed_after_call

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.doubled or self.torn)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The figures, and the questions they come from."""

    figures: Figures
    rows: Mapping[str, Sequence[Row]]


def judge(
    load: Load,
    stored: Mapping[str, Messages],
    deliveries: Sequence[Delivery],
    calls: Sequence[Mapping[str, Any]],
) -> Verdict:
    """Judge one run."""
    asked = {delivery.number: delivery.job for delivery in deliveries}
    ended = {(line["call"], asked[line["delivery"]]) for line in calls if line["event"] == "end"}
    rows = {
        session: _rows(jobs, stored[session], deliveries, ended) for session, jobs in load.sessions.items()
    }
    return Verdict(_figures(rows, deliveries, calls), rows)


def turns_of(messages: Messages) -> list[tuple[int, Messages]]:
    """The stored turns, each with its place; a turn begins at a question."""
    starts = [place for place, (role, _) in enumerate(messages) if place == 0 or role == "user"]
    return [(start, messages[start:end]) for start, end in pairwise([*starts, len(messages)])]


def _rows(
    jobs: Sequence[Job], messages: Messages, deliveries: Sequence[Delivery], ended: set[tuple[str, Job]]
) -> list[Row]:
    by_question = {job.question: job for job in jobs}
    found: dict[Job, list[Messages]] = {job: [] for job in jobs}
    torn: set[Job] = set()
    latest = -1
    for start, turn in turns_of(messages):
        job = by_question.get(turn[0][1])
        if job is None:  # not a question of this session: what stands before it is torn
            torn.add(jobs[max(latest, 0)])
            continue
        is_first = not found[job]
        found[job].append(turn)
        if not _is_whole(messages, start, turn, job, ended) or (is_first and jobs.index(job) < latest):
            torn.add(job)
        latest = max(latest, jobs.index(job))
    return [_row(job, found[job], deliveries, is_torn=job in torn) for job in jobs]


def _is_whole(messages: Messages, start: int, turn: Messages, job: Job, ended: set[tuple[str, Job]]) -> bool:
    """One question and one answer, which the model gave to what stands before it."""
    if [role for role, _ in turn] != ["user", "assistant"]:
        return False
    answer = turn[1][1]
    call = call_of(answer)
    return answer == reply(messages[: start + 1], call) and (call, job) in ended


def _row(job: Job, found: Sequence[Messages], deliveries: Sequence[Delivery], *, is_torn: bool) -> Row:
    mine = [delivery for delivery in deliveries if delivery.job == job]
    shown = dict.fromkeys(delivery.answer for delivery in mine if delivery.outcome == "acknowledged")
    answers = [text for turn in found for role, text in turn if role == "assistant"]
    lost = tuple(answer for answer in shown if answer not in answers)
    faults = {"lost": bool(lost), "doubled": len(found) > 1, "torn": is_torn}
    return Row(
        job=job,
        times=len(found),
        answers=tuple(answers),
        lost=lost,
        attempts=len(mine),
        again=sum(delivery.outcome != "acknowledged" for delivery in mine),
        faults=tuple(name for name, there in faults.items() if there),
    )


def _figures(
    rows: Mapping[str, Iterable[Row]], deliveries: Sequence[Delivery], calls: Sequence[Mapping[str, Any]]
) -> Figures:
    every = [row for session in rows.values() for row in session]
    faults = Counter(fault for row in every for fault in row.faults)
    outcomes = Counter(delivery.outcome.partition(" (")[0] for delivery in deliveries)
    begun, ended = (
        {line["delivery"] for line in calls if line["event"] == event} for event in ("begin", "end")
    )
    killed = {delivery.number for delivery in deliveries if delivery.outcome == "killed"}
    acknowledged = {delivery.number for delivery in deliveries if delivery.outcome == "acknowledged"}
    return Figures(
        questions=len(every),
        lost=faults["lost"],
        doubled=faults["doubled"],
        torn=faults["torn"],
        missing=sum(not row.answers for row in every),
        deliveries=len(deliveries),
        acknowledged=len(acknowledged),
        given_back=outcomes["given back"],
        killed=len(killed),
        killed_without_call=len(killed - begun),
        killed_in_call=len(killed & begun - ended),
        killed_after_call=len(killed & ended),
        calls_begun=len(begun),
        calls_ended=len(ended),
        saved=len(acknowledged - begun),
    )
