"""The mutants. One whose old text is not in its file any more is mended or replaced, never dropped in silence."""

from __future__ import annotations

from tests.mutants.kinds import Mutant

_SOME = 600
_MANY = 6000

_RUN = ("tests/processing/test_simulation.py",)

RUN = [
    Mutant(
        "run(): a failing message does not hold its key back",
        "managedconsumer/processing/work.py",
        "        if rest:\n            strand.waiting = rest + strand.waiting\n",
        "        if rest:\n            strand.waiting = strand.waiting + rest\n",
        _RUN,
    ),
    Mutant(
        "run(): a message of a key that runs starts beside it",
        "managedconsumer/processing/work.py",
        "                if strand is not None or batched:\n",
        "                if (strand is not None and strand.waiting) or batched:\n",
        _RUN,
    ),
    Mutant(
        "run(): what is held by a rebalance starts all the same",
        "managedconsumer/processing/work.py",
        "                if strand.part.gate.held:\n",
        "                if False:\n",
        _RUN,
    ),
    Mutant(
        "run(): what was held is forgotten when the rebalance is over",
        "managedconsumer/processing/work.py",
        "                if part is not None:\n                    self._unshelve(part)\n",
        "",
        _RUN,
    ),
    Mutant(
        "run(): a result counts though the partition is gone",
        "managedconsumer/processing/strands.py",
        "            if not part.alive:\n                return 0\n            pending, top",
        "            if not part.alive:\n                return count\n            pending, top",
        _RUN,
    ),
    Mutant(
        "run(): what waits of a partition that is gone is worked on",
        "managedconsumer/processing/work.py",
        "            if part.alive:\n                self.in_hand -= len(part.pending)\n"
        "                self.unfinished += len(part.pending)\n            part.alive = False\n",
        "            if part.alive:\n                self.in_hand -= len(part.pending)\n"
        "                self.unfinished += len(part.pending)\n",
        _RUN,
    ),
    Mutant(
        "run(): the map ends one message too late",
        "managedconsumer/processing/strands.py",
        "            top += 1\n            if top > part.top:\n",
        "            top += 2\n            if top > part.top:\n",
        _RUN,
    ),
    Mutant(
        "run(): a map that is too long is cut without its top",
        "managedconsumer/processing/offset_map.py",
        "encode(known._replace(unfinished=tuple(inside[:middle]), top=inside[middle]), base)",
        "encode(known._replace(unfinished=tuple(inside[:middle])), base)",
        _RUN,
    ),
    Mutant(
        "run(): the next map forgets what the last one said",
        "managedconsumer/processing/strands.py",
        "        unfinished += [offset for offset in skip.unfinished if offset >= self.next]\n",
        "",
        _RUN,
    ),
    Mutant(
        "run(): what the commit says to be finished is done again",
        "managedconsumer/processing/strands.py",
        "messages = [message for message in messages if not skip.finished(message.offset)]",
        "messages = list(messages)",
        _RUN,
    ),
    Mutant(
        "run(): a retry does not wait",
        "managedconsumer/processing/work.py",
        "now + (0.0 if retry is None else retry.pause(strand.attempts, chance))",
        "now",
        _RUN,
    ),
    Mutant(
        "run(): one attempt too many",
        "managedconsumer/processing/work.py",
        "retry.again(error, 1 if place else strand.attempts + 1)",
        "retry.again(error, 1 if place else strand.attempts)",
        _RUN,
        ci=True,
    ),
]

GROUP = [
    Mutant(
        "a commit is refused before the lost partitions are fenced",
        "managedconsumer/runtime/member.py",
        "            while self._unfenced and not deadline",
        "            while False and not deadline",
        ("tests/runtime/test_known_loss.py",),
    ),
    Mutant(
        "a commit without a look at ownership",
        "managedconsumer/runtime/engine/committer.py",
        "if self._member and hindrance is None and not _same(now.get(tp), commit.states[tp]):",
        "if False:",
        ("tests/runtime/test_committer.py", "tests/runtime/test_commits.py"),
        _SOME,
    ),
    Mutant(
        "a commit without a look at the generation",
        "managedconsumer/runtime/engine/committer.py",
        "        if not generation.joined:\n            member.await_fence()",
        "        if False:\n            member.await_fence()",
        ("tests/runtime/test_committer.py",),
        _SOME,
    ),
    Mutant(
        "automatic commits of the position, not of what is finished",
        "managedconsumer/subscription_state.py",
        "tp: OffsetAndMetadata(state.finished, metadata, state.epoch_before(state.finished))",
        "tp: OffsetAndMetadata(state.position or 0, metadata, state.epoch_before(state.finished))",
        (),
        _SOME,
        ci=True,
    ),
    Mutant(
        "a commit that was to be tried again counts as done",
        "managedconsumer/coordinator/committing.py",
        "            if error is not None:\n                errors[tp] = error",
        "            if error is not None and classify(error) is not Verdict.RETRY:\n"
        "                errors[tp] = error",
        ("tests/coordinator/test_committing.py",),
        _SOME,
    ),
    Mutant(
        "the coordinator of the simulation fences nobody",
        "managedconsumer/testing/memory/classic_group.py",
        "    def check_commit(self, body: Body) -> int:\n",
        "    def check_commit(self, body: Body) -> int:\n"
        "        return 0\n"
        "\n"
        "    def check_nothing(self, body: Body) -> int:\n",
        (),
        _SOME,
    ),
    Mutant(
        "a heartbeat under the generation before",
        "managedconsumer/coordinator/membership.py",
        "api, body, longest = requests.heartbeat(self.config, self.generation)",
        "api, body, longest = requests.heartbeat(self.config, self._previous)",
        ("tests/coordinator/test_membership.py",),
        _SOME,
    ),
    Mutant(
        "the answer to an old heartbeat counts",
        "managedconsumer/coordinator/membership.py",
        "if request.generation == self.generation:\n                self._on_heartbeat",
        "if True:\n                self._on_heartbeat",
        ("tests/coordinator/test_membership.py",),
        _MANY,
    ),
    Mutant(
        "what was given up is not asked for again (KIP-429)",
        "managedconsumer/coordinator/handover.py",
        'return f"gave up {len(gone)} partitions" if gone and event.target is None else None',
        "return None",
        ("tests/coordinator/test_handover.py",),
        _SOME,
        ci=True,
    ),
    Mutant(
        "eager: positions are kept over a missed generation",
        "managedconsumer/coordinator/handover.py",
        "gone = [tp for tp in held if not event.continuous or tp not in kept]",
        "gone = [tp for tp in held if tp not in kept]",
        ("tests/coordinator/test_handover.py", "tests/coordinator/test_membership_gap.py"),
        _MANY,
    ),
    Mutant(
        "after the fence messages are handed out",
        "managedconsumer/consumers/owner.py",
        "        held = self._session.assigned()\n"
        "        self._engine.fence(held)\n"
        "        self._session.committer.fenced(event.error)",
        "        held = self._session.assigned()\n        self._session.committer.fenced(event.error)",
        (),
        _SOME,
        ci=True,
    ),
    Mutant(
        "the revoked-callback is forgotten",
        "managedconsumer/coordinator/handover.py",
        "        if told or not self._negotiation.cooperative:",
        "        if told and not self._negotiation.cooperative:",
        ("tests/coordinator/test_handover.py",),
        _SOME,
    ),
    Mutant(
        "partitions that are not in the share are kept",
        "managedconsumer/coordinator/handover.py",
        "        yield from self._give_up(gone, told, event.generation, drop=True)",
        "        yield from self._give_up(gone, told, event.generation, drop=False)",
        ("tests/coordinator/test_handover.py",),
        _SOME,
    ),
    Mutant(
        "a rebalance is overheard",
        "managedconsumer/coordinator/membership.py",
        "        if self.rejoin_reason is None and self.state not in (_S.LEAVING, _S.LEFT, _S.FAILED):\n",
        "        if False:\n",
        ("tests/coordinator/test_membership.py",),
        _SOME,
    ),
    Mutant(
        "KIP-848: the epoch never goes on",
        "managedconsumer/coordinator/membership_848.py",
        'self.generation = Generation(response["member_epoch"], member)',
        'self.generation = Generation(response["member_epoch"] if joined else self.generation.id, member)',
        ("tests/coordinator/test_membership_848.py",),
        _SOME,
    ),
    Mutant(
        "KIP-848: an assignment that moved in between is not told again",
        "managedconsumer/coordinator/membership_848.py",
        "self._reported_owned, self._to_confirm = None, False",
        "self._to_confirm = False",
        ("tests/coordinator/test_membership_848_lost_answers.py",),
        0,
        ci=True,
    ),
    Mutant(
        "KIP-848: what a hand-over brings is told as given up",
        "managedconsumer/coordinator/membership_848.py",
        "both = self._with_carried() if self.state is _S.ASSIGNING else self._owned",
        "both = self._owned",
        ("tests/coordinator/test_membership_848.py", "tests/coordinator/test_membership_848_lost_answers.py"),
        _MANY,
    ),
    Mutant(
        "sticky: members in the order of a hash",
        "managedconsumer/coordinator/assignors/_java_hash.py",
        "return sorted(listed, key=lambda key: _bucket(string_hash(key), capacity))",
        "return sorted(listed, key=hash)",
        ("tests/coordinator/test_assignors_java.py",),
    ),
    Mutant(
        "a commit of one thread undoes another's",
        "managedconsumer/runtime/engine/committer.py",
        "dict(self._not_behind(self.held()) if",
        "dict(self.held() if",
        ("tests/simulation/test_found.py",),
        _SOME,
    ),
    Mutant(
        "a commit takes over what was taken away from another thread",
        "managedconsumer/runtime/engine/committer.py",
        "goes_on = same and tp not in commit.lost",
        "goes_on = same",
        ("tests/runtime/test_committer.py",),
    ),
    Mutant(
        "where LATEST starts is asked once when the group rebalances",
        "managedconsumer/consumers/positioning.py",
        "return over() or (interrupted() and self.default_reset != OffsetType.LATEST)",
        "return over() or interrupted()",
        ("tests/simulation/test_found.py",),
    ),
    Mutant(
        "an interrupt passes over those who look for the coordinator",
        "managedconsumer/runtime/cluster/coordinator_link.py",
        "self._interrupts[purpose] = self._interrupts.get(purpose, 0) + 1",
        "pass",
        ("tests/runtime/test_sharing.py",),
    ),
]

FETCH = [
    Mutant(
        "seek leaves the buffer as it is",
        "managedconsumer/runtime/engine/assignment_part.py",
        "                self.subscription.seek(tp, offset, epochs.get(tp, -1))\n"
        "                self.buffer.restart(tp)\n",
        "                self.subscription.seek(tp, offset, epochs.get(tp, -1))\n",
        ("tests/testing/test_memory_broker.py",),
        _SOME,
    ),
    Mutant(
        "resume() wakes nobody",
        "managedconsumer/runtime/engine/engine.py",
        "                    self.subscription.resume(tp)\n"
        "            self.lock.notify_all()\n"
        "            self.wake_fetchers()\n",
        "                    self.subscription.resume(tp)\n",
        (),
        _SOME,
        ci=True,
    ),
    Mutant(
        "messages arrive and nobody wakes the reader",
        "managedconsumer/runtime/engine/taking.py",
        "                desk.news, desk.quiet_since = True, now\n",
        "                desk.quiet_since = now\n",
        (),
        _SOME,
    ),
    Mutant(
        "a new assignment wakes no fetcher",
        "managedconsumer/runtime/engine/assignment_part.py",
        "            self.subscription.release(tps)\n"
        "            self.fetchers.ensure_workers()\n"
        "            self.lock.notify_all()\n"
        "            self.not_full.notify_all()\n",
        "            self.subscription.release(tps)\n"
        "            self.fetchers.ensure_workers()\n"
        "            self.lock.notify_all()\n",
        (),
        _MANY,
    ),
    Mutant(
        "restart() keeps the version, and old answers count",
        "managedconsumer/fetch/buffer.py",
        "        self.records = self.nbytes = 0\n        self.version += 1\n",
        "        self.records = self.nbytes = 0\n",
        ("tests/fetch/test_buffer.py",),
        ci=True,
    ),
    Mutant(
        "a paused partition's messages are handed out",
        "managedconsumer/fetch/buffer.py",
        "elif queue.state.is_fetchable():",
        "elif queue.chunks:",
        ("tests/fetch/test_buffer.py", "tests/fetch/test_collect.py"),
        _SOME,
    ),
    Mutant(
        "the lane: what is in hand counts as finished",
        "managedconsumer/fetch/collect.py",
        "self.hands[who] = ((queue, offset),)\n            self.hands.settle",
        "self.hands[who] = ()\n            self.hands.settle",
        ("tests/fetch/test_lane.py",),
        _SOME,
    ),
    Mutant(
        "the lane: a message of another partition is finished past the lock",
        "managedconsumer/fetch/collect.py",
        " if hands.get(other) == ((queue, had),))",
        ")",
        ("tests/fetch/test_seats.py",),
        _SOME,
    ),
    Mutant(
        "the lane: an exception takes back what others have taken meanwhile",
        "managedconsumer/fetch/collect.py",
        "                self.push_back(who, [message])\n            raise\n",
        "                self._undo(who, ())\n            raise\n",
        ("tests/fetch/test_seats.py",),
    ),
    Mutant(
        "what a stop finds half given up is dropped without a commit",
        "managedconsumer/coordinator/handover.py",
        "        if generation.joined and not self._holder.current(generation):\n            return\n",
        "",
        ("tests/coordinator/test_handover.py",),
        _SOME,
    ),
    Mutant(
        "KIP-814: a static leader without a description of its group is content",
        "managedconsumer/coordinator/handover.py",
        '        return "it is not known what the group has shared out"',
        "        return None",
        ("tests/coordinator/test_handover.py",),
        _SOME,
    ),
    Mutant(
        "the bound on memory: the line of those who wait has no order",
        "managedconsumer/fetch/room.py",
        "        if next(iter(self._line), who) == who:\n",
        "        if True:\n",
        ("tests/fetch/test_room.py",),
    ),
    Mutant(
        "the bound on memory: what is under way does not count",
        "managedconsumer/fetch/room.py",
        "return self.bound - self._unpacking - self.reserved - self._overhead",
        "return self.bound - self._unpacking - self._overhead",
        ("tests/fetch/test_room.py",),
    ),
    Mutant(
        "what an interrupted thread was receiving is not fetched again",
        "managedconsumer/runtime/engine/loans.py",
        "                    engine.buffer.fetch_again(queue)\n",
        "                    pass\n",
        ("tests/runtime/test_loans.py",),
        _SOME,
    ),
    Mutant(
        "a lent connection is not called back for another request",
        "managedconsumer/runtime/engine/fetch_pool.py",
        "            self.lending.call_back(desk)\n",
        "",
        ("tests/runtime/test_loans.py",),
        _SOME,
    ),
    Mutant(
        "a thread that leaves its loans does not say so",
        "managedconsumer/runtime/engine/loans.py",
        "        if wanted:\n",
        "        if any(loan.busy for loan in self.loans):\n",
        ("tests/runtime/test_loans.py",),
        _SOME,
    ),
    Mutant(
        "an answer that came over a lent connection asks beyond the bound on memory",
        "managedconsumer/fetch/repeats.py",
        "if plan is None or moved is None or not buffer.room.holds(buffer):",
        "if plan is None or moved is None:",
        ("tests/fetch/test_repeats.py",),
    ),
    Mutant(
        "the last request is repeated after a seek",
        "managedconsumer/fetch/repeats.py",
        "                queue.version != line.version\n                or queue.in_flight is not in_flight\n",
        "                queue.in_flight is not in_flight\n",
        ("tests/fetch/test_repeats.py",),
        _SOME,
    ),
    Mutant(
        "what came back of a paused partition is handed out again",
        "managedconsumer/fetch/pushed.py",
        "if queue.version == version and queue.state.is_fetchable():",
        "if queue.version == version:",
        ("tests/fetch/test_collect.py", "tests/test_hands.py", "tests/runtime/test_deserializer.py"),
        _SOME,
    ),
    Mutant(
        "a hand holds its last message, not its first",
        "managedconsumer/fetch/collect.py",
        "lowest[queue] = more[0].offset",
        "lowest[queue] = more[-1].offset",
        ("tests/fetch/test_collect.py",),
        _SOME,
    ),
    Mutant(
        "memory that runs out in a batch leaves a chunk open",
        "managedconsumer/fetch/collect.py",
        "                self._chunk.rewind(self._mark)\n                self._put_away()\n            if taken:",
        "                pass\n            if taken:",
        ("tests/fetch/test_interruptions.py",),
        _SOME,
    ),
    Mutant(
        "the decoder in Python trusts the offsets within old compressed messages",
        "managedconsumer/wire/records/_records_py.py",
        "start = self._ready[0].offset + 1 if self._ready else self.position",
        "start = self.position",
        ("tests/wire/test_records.py",),
        _SOME,
    ),
    Mutant(
        "other hands are not looked at",
        "managedconsumer/fetch/hands.py",
        "state.finish(position if low is None else low)",
        "state.finish(position)",
        ("tests/fetch/test_collect.py", "tests/test_hands.py"),
        _SOME,
    ),
    Mutant(
        "a dead thread's hand is forgotten",
        "managedconsumer/fetch/hands.py",
        "        self[NOBODY] = tuple(lowest.items())\n",
        "",
        ("tests/test_hands.py",),
        _SOME,
    ),
    Mutant(
        "the end of the log is the answer to where it begins",
        "managedconsumer/runtime/engine/positions.py",
        "state.reset_to(max(0, answer.offset), strategy)",
        "state.reset_to(max(0, answer.offset + 1), strategy)",
        ("tests/test_positions.py",),
        _SOME,
    ),
    Mutant(
        "an answer goes to the partition that the next one asked for",
        "managedconsumer/fetch/plan.py",
        "        queue.in_flight = True\n",
        "",
        ("tests/fetch/test_plan.py",),
        _SOME,
    ),
]

WIRE = [
    Mutant(
        "the next fetch is at offset + count (compaction leaves gaps)",
        "managedconsumer/wire/records/_records_py.py",
        "self.next_fetch_offset = max(self.next_fetch_offset, batch.last_offset + 1)",
        "self.next_fetch_offset = max(self.next_fetch_offset, batch.base_offset + batch.count)",
        ("tests/test_damage.py", "tests/wire/test_records.py"),
        twin="python",
    ),
    Mutant(
        "an aborted transaction that begins at a batch's last offset",
        "managedconsumer/wire/records/_aborts_py.py",
        "while self._later and self._later[-1][1] <= batch.last_offset:",
        "while self._later and self._later[-1][1] < batch.last_offset:",
        ("tests/wire/test_records.py",),
        _SOME,
        twin="python",
    ),
    Mutant(
        "no CRC is looked at",
        "managedconsumer/wire/records/_batches_py.py",
        "            if computed != crc:\n",
        "            if False:\n",
        ("tests/wire/test_records_damage.py", "tests/test_damage.py"),
        _SOME,
        twin="python",
        ci=True,
    ),
    Mutant(
        "a receive buffer is used again while somebody looks at it",
        "managedconsumer/runtime/net/buffers.py",
        "free = [piece for piece in self._pieces if _unseen(piece.memory)]",
        "free = list(self._pieces)",
        ("tests/runtime/test_buffers.py",),
        ci=True,
    ),
    Mutant(
        "an abort marker is taken for a commit",
        "managedconsumer/wire/records/format.py",
        "CONTROL_ABORT = 0\nCONTROL_COMMIT = 1",
        "CONTROL_ABORT = 1\nCONTROL_COMMIT = 0",
        ("tests/wire/test_records.py", "tests/wire/test_records_oracle.py"),
        twin="python",
    ),
    Mutant(
        "the size of a frame is not looked at",
        "managedconsumer/wire/protocol/framing.py",
        "if _SMALLEST_FRAME <= size <= max_frame_bytes:",
        "if _SMALLEST_FRAME <= size:",
        ("tests/wire/test_framing.py", "tests/wire/test_hostile_bytes.py"),
    ),
]

SPARK = [
    Mutant(
        "a claim that exists is claimed again",
        "managedconsumer/spark/claims/chains.py",
        "return self._read(tp, entry.start) == Claim(*entry, data)",
        "return True",
        ("tests/spark/test_store.py",),
    ),
    Mutant(
        "a batch that others have overtaken is claimed in the group",
        "managedconsumer/spark/claims/group.py",
        "link.range == entry and (goes_on or commit is None)",
        "link.range == entry",
        ("tests/spark/test_claims.py",),
    ),
    Mutant(
        "a batch that runs again writes its rows again",
        "managedconsumer/spark/claims/sql.py",
        "if cursor.rowcount != 1:",
        "if cursor.rowcount != 1 and not self._has(cursor, tp, entry, data):",
        ("tests/spark/test_claims.py",),
    ),
    Mutant(
        "empty answers are the end of a range",
        "managedconsumer/runtime/fetch_range.py",
        "            self._note_failure(err.RecordsNotSentError(*self._tp, offset, end, waited))\n"
        "            return False\n",
        "            return True\n",
        ("tests/runtime/test_fetch_range_silence.py",),
    ),
    Mutant(
        "slices of a range overlap",
        "managedconsumer/spark/tasks.py",
        "bounds = [start + (stop - start) * i // pieces for i in range(pieces + 1)]",
        "bounds = [start + (stop - start) * i // (pieces + 1) for i in range(pieces + 1)]",
        ("tests/spark/test_ranges.py",),
    ),
    Mutant(
        "a member's further commit does not count",
        "managedconsumer/spark/positions.py",
        "further = CHECKPOINT if there < known.done else GROUP",
        "further = CHECKPOINT",
        ("tests/spark/test_positions.py",),
    ),
    Mutant(
        "a topic made anew is not noticed",
        "managedconsumer/spark/watch.py",
        "if self.ids.get(name, present) != present:",
        "if self.ids.get(name, present) == 0:",
        ("tests/spark/test_watch.py",),
    ),
    Mutant(
        "the batch of a lost member is written",
        "managedconsumer/spark/read.py",
        "if member not in members:",
        "if member in members and not members:",
        ("tests/spark/test_never_blocking.py",),
    ),
    Mutant(
        "a member in a long batch holds the others up",
        "managedconsumer/runtime/member_beside.py",
        "machine.rejoin_reason is None or len(self._todo) != 1:",
        "machine.rejoin_reason is None or len(self._todo) != 2:",
        ("tests/spark/test_never_blocking.py",),
    ),
    Mutant(
        "leader epochs go with other partitions when a broker answers in another order",
        "managedconsumer/runtime/cluster/log_ends.py",
        "            self.said = None\n        return numbers == self.numbers\n",
        "        return numbers == self.numbers\n",
        ("tests/runtime/test_log_ends.py",),
    ),
    Mutant(
        "small partitions are forgotten beside a large one",
        "managedconsumer/spark/ranges.py",
        "granted.update({tp: 1 + (available[tp] - 1) * spare // rest for tp in waiting})",
        "granted.update({tp: available[tp] * limit // total for tp in waiting})",
        ("tests/spark/test_ranges.py",),
    ),
]

ACCELERATOR = [
    Mutant(
        "memory for decompression is given back too early",
        "managedconsumer/wire/records/_chunk.pxi",
        "        PyObject_GetBuffer(unpacked, &self._buffers.payload, PyBUF_SIMPLE)\n",
        "        PyObject_GetBuffer(unpacked, &self._buffers.payload, PyBUF_SIMPLE)\n"
        "        compression.give_scratch(self._scratch)\n        self._scratch = None\n",
        ("tests/wire/test_shared_memory.py",),
        twin="cython",
    ),
    Mutant(
        "Arrow's buffers are used again for the next batch",
        "managedconsumer/wire/records/_columns.pxi",
        "        self.buffer = pa.allocate_buffer(size, resizable=True)\n",
        "        kept = pa.__dict__.setdefault('kept_rooms', [])\n"
        "        self.buffer = kept.pop(0) if len(kept) > 11 else pa.allocate_buffer(size, resizable=True)\n"
        "        kept.append(self.buffer)\n",
        ("tests/wire/test_shared_memory.py",),
        twin="cython",
    ),
    Mutant(
        "the accelerator's lane does not look who calls",
        "managedconsumer/wire/records/_lane.pxi",
        "            return this_thread() == self._thread or self._sit()\n",
        "            return True\n",
        ("tests/fetch/test_lane.py",),
        twin="cython",
    ),
    Mutant(
        "the accelerator looks at no CRC",
        "managedconsumer/wire/records/_recordwalk.pxd",
        "        if computed != stated:\n"
        "            _mark(batch, BAD_CRC, computed, stated)\n"
        "            return\n"
        "    if base",
        "        if False:\n            _mark(batch, BAD_CRC, computed, stated)\n            return\n    if base",
        ("tests/wire/test_records_damage.py",),
        twin="cython",
    ),
    Mutant(
        "the accelerator: an aborted transaction that begins at a batch's last offset",
        "managedconsumer/wire/records/_oddbatches.pxi",
        "while chunk._aborted and chunk._aborted[len(chunk._aborted) - 1][1] <= batch.last_offset:",
        "while chunk._aborted and chunk._aborted[len(chunk._aborted) - 1][1] < batch.last_offset:",
        ("tests/wire/test_records.py",),
        twin="cython",
    ),
]

_ALARMS = ("tests/observe/test_lag_scenes.py::test_a_stuck_partition_is_named_within_twice_its_threshold_and_no_other",)

PROGRESS = [
    Mutant(
        "progress: the time without a message counts as standing still",
        "managedconsumer/fetch/progress.py",
        "if finished > self._finished or not lag or not self._had_lag or sight.paused:",
        "if finished > self._finished or sight.paused:",
        _ALARMS,
    ),
    Mutant(
        "progress: a pause counts as standing still",
        "managedconsumer/fetch/progress.py",
        "if finished > self._finished or not lag or not self._had_lag or sight.paused:",
        "if finished > self._finished or not lag:",
        ("tests/fetch/test_progress.py",),
    ),
    Mutant(
        "progress: offsets without a message are lag",
        "managedconsumer/fetch/progress.py",
        "return sight.behind and (known is None or known.timestamp is not None)",
        "return sight.behind",
        ("tests/fetch/test_progress.py",),
    ),
    Mutant(
        "progress: a look at a partition counts as a move",
        "managedconsumer/fetch/progress.py",
        "self._had_lag, self._finished = lag and not sight.paused, finished",
        "self._had_lag, self._finished = False, finished",
        _ALARMS,
    ),
    Mutant(
        "progress: the alarm comes too late",
        "managedconsumer/fetch/stuck.py",
        "        if stuck_for < self._due:\n",
        "        if stuck_for < 2.5 * self._due:\n",
        _ALARMS,
    ),
    Mutant(
        "progress: the alarm comes once only",
        "managedconsumer/fetch/stuck.py",
        "stuck_for + min(stuck_for, _LONGEST_PAUSE)",
        'float("inf")',
        ("tests/fetch/test_stuck.py",),
    ),
]

MUTANTS = [*RUN, *GROUP, *FETCH, *WIRE, *SPARK, *PROGRESS, *ACCELERATOR]
