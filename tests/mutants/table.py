"""The mutants. One whose old text is not in its file any more is mended or replaced, never dropped in silence.

``@``: a file of the package, and who finds the mistakes below: test files (``file::test``), ``seeds=``, ``twin=``,
``ci`` (see ``Mutant``). ``#``: the mistake's name, with the old text (``-``) and the new text (``+``), line by line.
"""

from __future__ import annotations

from tests.mutants.kinds import read

MUTANTS = read(r"""
@ processing/key_queues.py processing/test_simulation.py
# run(): a failing message does not hold its key back
-            self.waiting = self.running[self.place :] + self.waiting
+            self.waiting = self.waiting + self.running[self.place :]
@ processing/work.py processing/test_simulation.py
# run(): a message of a key that runs starts beside it
-                if key_queue is not None or batched:
+                if (key_queue is not None and key_queue.waiting) or batched:
# run(): what is suspended by a rebalance starts all the same
-                if (gate := key_queue.part.gate).suspended or gate.paused:
+                if False:
# run(): what is paused starts all the same
-                if (gate := key_queue.part.gate).suspended or gate.paused:
+                if key_queue.part.gate.suspended:
# run(): a paused partition keeps the room of the others
-        room = self._plan.max_in_flight - self.in_flight + self._set_aside()
+        room = self._plan.max_in_flight - self.in_flight
# run(): a reset forgets what is in flight below it
-            if beyond:
-                continue
@ processing/key_queues.py processing/test_simulation.py
# run(): what a cut log does not have any more counts
-                if pending.get(offset) is message:
+                if offset in pending:
@ processing/work.py processing/test_simulation.py
# run(): a key that comes back runs beside its old handler
-        part.key_queues = self._left.pop(tp, part.key_queues)
# run(): what was suspended is forgotten when the rebalance is over
-                if part is not None:
-                    self._resume(part, now)
@ processing/key_queues.py processing/test_simulation.py
# run(): a result counts though the partition is gone
-            if not part.alive:
-                return 0
-            pending, top
+            if not part.alive:
+                return place - seen
+            pending, top
@ processing/work.py processing/test_simulation.py
# run(): what waits of a partition that is gone is worked on
-        self._ready = deque(key_queue for key_queue in self._ready if key_queue.left())
@ processing/key_queues.py processing/test_simulation.py
# run(): the map ends one message too late
-top = part.top = offset + 1
+top = part.top = offset + 2
@ processing/offset_map.py processing/test_simulation.py
# run(): a map that is too long is cut without its top
-encode(known._replace(unfinished=tuple(inside[:middle]), top=inside[middle]), base)
+encode(known._replace(unfinished=tuple(inside[:middle])), base)
@ processing/key_queues.py processing/test_simulation.py
# run(): the next map forgets what the last one said
-        unfinished += [offset for offset in skip.unfinished if offset >= self.next]
# run(): what the commit says to be finished is done again
-messages = [message for message in messages if not skip.finished(message.offset)]
+messages = list(messages)
@ processing/work.py processing/test_simulation.py
# run(): a retry does not wait
-now + (0.0 if retry is None else retry.pause(key_queue.attempts, chance()))
+now
# run(): a rate is not kept
-                throttle.spend(key_queue, min(size, most), now)
+                pass
@ processing/work.py processing/test_pace.py
# run(): what has not started counts for its rate
-            self._throttle.spend(key_queue, begun - rest, now)
+            pass
# run(): waiting for a time is an attempt
-self._retry_at(key_queue, now, chance) if until is None else until)
+self._retry_at(key_queue, now, chance))
@ processing/work.py processing/test_merge.py
# run(): with the order "time" others pass what is tried again
-            limit = 0 if self.parked else limit  # nothing passes a message that waits for its time
@ processing/merge.py processing/test_merge.py
# run(): with the order "time" a partition without a message holds nobody up
-                if free > now:
-                    times.append(free)
@ processing/work.py processing/test_simulation.py ci
# run(): one attempt too many
-retry.again(error, 1 if place else key_queue.attempts + 1)
+retry.again(error, 1 if place else key_queue.attempts)
@ processing/work.py processing/test_simulation.py
# run(): what is finished of a key queue is known when all of it is
-            if slot.current is not None:
-                slot.count += self.note(slot.current)
@ runtime/running/run.py processing/test_running_truth.py
# run(): what is finished of a block is known at its end
-            self.collect()
-            parts = self.work.parts
+            parts = self.work.parts
@ processing/offset_map.py processing/test_running_truth.py
# run(): a map counts beside any offset
-zlib.crc32(raw, zlib.crc32(b"%d" % base))
+zlib.crc32(raw)
@ runtime/running/run.py processing/test_running_truth.py
# run(): what another thread has in flight is finished by the map
-if queue is None or self.engine.collector.in_flight.lowest(queue, but=RUN_OWNER) is not None:
+if queue is None:
@ runtime/engine/delivery.py processing/test_running_truth.py
# run(): others consume beside it
-            if in_flight.run_state is not None and take != in_flight.run_state.take_in:
+            if False:
@ processing/offset_map.py processing/test_simulation.py
# run(): metadata that is refused as too long is sent again as it is
-return plain + (refused - plain) // 2 if 0 < plain < refused else 0
+return refused
@ runtime/running/run.py processing/test_running_truth.py
# run(): what was written under a later epoch counts as finished
-                    part.believe(states[tp].newer_than(part.skip.epoch))
+                    pass
# run(): a hand that is torn is committed all the same
-        if not (self._torn or self._abandoned):
+        if not self._abandoned:
@ runtime/running/threads.py processing/test_running_results.py ci
# run(): a result that nobody awaits is no error
-                    if result is not None:
+                    if False:
@ runtime/running/calls.py processing/test_simulation.py
# run(): a CancelledError of a handler ends its worker
-        return asyncio is not None and isinstance(error, asyncio.CancelledError)
+        return False
@ runtime/running/run.py processing/test_running.py
# run_async(): what fails after it was lost is a failure
-        elif not await self._not_ours(messages, error):
+        elif True:
@ runtime/running/run.py processing/test_running_results.py
# run_async(): a worker that was cancelled from outside is waited for
-            slot.current = None
-            self.engine.lock.notify_all()
+            self.engine.lock.notify_all()

@ runtime/member.py runtime/test_known_loss.py
# messages are handed out between a loss and its fence
-        if self.unfenced:
-            return float("-inf")
@ runtime/engine/delivery.py seeds=1300
# a process that stood still hands out before it looks at its session
-                if left < 0:
+                if False:
@ fetch/in_flight.py runtime/test_thread_ends.py
# what a thread has committed before it ended blocks all later commits
-        hand = tuple(pair for pair in self.pop(who, ()) if pair not in said)
+        hand = self.pop(who, ())
@ runtime/engine/commits/committer.py runtime/test_committer.py runtime/test_commits.py seeds=600
# a commit without a look at ownership
-if self._member and hindrance is None and not _same(now.get(tp), commit.states[tp]):
+if False:
@ runtime/engine/commits/committer.py runtime/test_committer.py seeds=600
# a commit without a look at the generation
-        if not generation.joined:
-            member.await_fence()
+        if False:
+            member.await_fence()
@ subscription_state.py seeds=600 ci
# automatic commits of the position, not of what is finished
-tp: OffsetAndMetadata(state.finished, metadata, state.epoch_before(state.finished))
+tp: OffsetAndMetadata(state.position or 0, metadata, state.epoch_before(state.finished))
@ coordinator/committing.py coordinator/test_committing.py seeds=600
# a commit that was to be tried again counts as done
-            if error is not None:
-                errors[tp] = error
+            if error is not None and classify(error) is not Verdict.RETRY:
+                errors[tp] = error
@ testing/memory/classic_group.py seeds=600
# the coordinator of the simulation fences nobody
-    def check_commit(self, body: Body, *, transactional: bool = False) -> int:
+    def check_commit(self, body: Body, *, transactional: bool = False) -> int:
+        return 0
+
+    def check_nothing(self, body: Body) -> int:
@ coordinator/membership.py coordinator/test_membership_gap.py
# a KIP-848 group waits for ever for the join of a classic member
-        return min(session, self._asked_at + self.config.rebalance_timeout_ms / 1000.0)
+        return session
@ coordinator/membership.py coordinator/test_generations.py seeds=600
# a heartbeat under the generation before
-api, body, longest = requests.heartbeat(self.config, self.generation)
+api, body, longest = requests.heartbeat(self.config, self._previous)
@ coordinator/machine.py simulation/test_fail_over.py
# a fail-over: NOT_COORDINATOR makes a session longer
-        if error.code == codes.COORDINATOR_LOAD_IN_PROGRESS:
+        if error.code in codes.COORDINATOR_CHANGES:
@ coordinator/heartbeat.py simulation/test_fail_over.py
# a fail-over: a session counts from when the member learnt of it
-        self.away_at = self._sent_at
+        self.away_at = self.clock()
@ runtime/cluster/coordinator_link.py simulation/test_fail_over.py
# a fail-over: a coordinator that was found long ago counts as the present one
-            if known is None or not error.refused:
+            if True:
@ coordinator/membership.py coordinator/test_membership.py
# a sync without an answer makes the group rebalance again
-        elif not self._join_timeout.lasts(error, request.timeout, now):
+        elif self.state is not _S.PREPARING_REBALANCE or not self._join_timeout.lasts(error, request.timeout, now):
@ coordinator/machine.py coordinator/test_membership_told.py
# a heartbeat after the end of the session
-        return now > self.session_end()
+        return False
@ coordinator/second_round.py coordinator/test_second_round.py seeds=6000
# a cooperative leader waits for ever for the second round
-        self._due_at = now + self._session if self._kept_back else None
+        self._due_at = None
@ coordinator/machine.py coordinator/test_membership.py seeds=6000
# the answer to an old heartbeat counts
-if request.generation == self.generation:
-                self._on_heartbeat
+if True:
+                self._on_heartbeat
@ coordinator/handover.py coordinator/test_handover.py seeds=600 ci
# what was given up is not asked for again (KIP-429)
-return f"gave up {len(gone)} partitions" if gone and event.target is None else None
+return None
@ coordinator/handover.py coordinator/test_handover.py seeds=6000
# eager: positions are kept over a missed generation
-gone = [tp for tp in owned if not event.continuous or tp not in kept]
+gone = [tp for tp in owned if tp not in kept]
@ consumers/life.py seeds=600 ci
# after the fence messages are handed out
-        owned = self._session.assigned()
-        self.engine.assignment.fence(owned)
-        self._session.committer.fenced(event.error)
+        owned = self._session.assigned()
+        self._session.committer.fenced(event.error)
@ runtime/member.py runtime/test_lease.py
# a thread of the user's steps the membership when its session is over
-        self._member.await_session()
+        member = self._member
+        member._feed(lambda: member.machine.check_session(member._handler.now()))
+        member.await_fence()
@ runtime/member.py runtime/test_lease.py
# what comes during a join is handed out for ever
-return end if end < float("inf") else
+return end if True else
@ coordinator/handover.py coordinator/test_handover.py seeds=600
# the revoked-callback is forgotten
-        if told or not self._negotiation.cooperative:
+        if told and not self._negotiation.cooperative:
# partitions that are not in the share are kept
-        yield from self._give_up(gone, told, event.generation, drop=True)
+        yield from self._give_up(gone, told, event.generation, drop=False)
@ coordinator/membership.py coordinator/test_membership.py seeds=600
# a rebalance is overheard
-        if self.rejoin_reason is None and self.state not in (_S.LEAVING, _S.LEFT, _S.FAILED):
+        if False:
@ coordinator/membership_848.py coordinator/test_generations.py seeds=600
# KIP-848: the epoch never goes on
-self.generation = Generation(response["member_epoch"], member)
+self.generation = Generation(response["member_epoch"] if joined else self.generation.id, member)
@ coordinator/membership_848.py coordinator/test_membership_848_lost_answers.py ci
# KIP-848: an assignment that moved in between is not told again
-self._reported_owned, self._to_confirm = None, False
+self._to_confirm = False
@ coordinator/membership_848.py coordinator/test_membership_848_lost_answers.py seeds=6000
# KIP-848: what a hand-over brings is told as given up
-both = self._with_carried() if self.state is _S.ASSIGNING else self._owned
+both = self._owned
@ coordinator/assignors/_java_hash.py coordinator/test_assignors_java.py
# sticky: members in the order of a hash
-return sorted(listed, key=lambda key: _bucket(string_hash(key), capacity))
+return sorted(listed, key=hash)
@ runtime/engine/commits/committer.py simulation/test_found.py seeds=600
# a commit of one thread undoes another's
-dict(self._not_behind(self.consumed()) if
+dict(self.consumed() if
@ runtime/engine/commits/committer.py runtime/test_committer.py
# a commit takes over what was taken away from another thread
-goes_on = same and tp not in commit.lost
+goes_on = same
@ consumers/positioning.py simulation/test_found.py
# where LATEST starts is asked once when the group rebalances
-return over() or (interrupted() and self.default_reset != OffsetType.LATEST)
+return over() or interrupted()
@ runtime/cluster/coordinator_link.py runtime/test_sharing.py
# an interrupt passes over those who look for the coordinator
-self._interrupts[purpose] = self._interrupts.get(purpose, 0) + 1
+pass

@ runtime/engine/assignment.py testing/test_memory_broker.py seeds=600
# seek leaves the buffer as it is
-                self.subscription.seek(tp, offset, epochs.get(tp, -1))
-                self.buffer.restart(tp)
+                self.subscription.seek(tp, offset, epochs.get(tp, -1))
@ runtime/engine/assignment.py seeds=600 ci
# resume() wakes nobody
-            self._interrupt_run()
-            self.lock.notify_all()
-            self.wake_fetchers()
+            self._interrupt_run()
@ fetch/leader.py fetch/test_leader.py
# a request that was broken off counts as a failure
-        if broken_off and isinstance(error, err.SocketDisconnectedError):
+        if False:
# an old leader's worker releases a partition, and the new leader's sleeps on
-        if plan.ask_new_leaders(self.key[0], snapshot):
+        if False:
# a follower that lags behind resets the position
-        if outcome is fp.Outcome.RESET and not follower:
+        if outcome is fp.Outcome.RESET:
# a request that may wait long is not broken off for another one
-        if self.state is FetchState.PATIENT:
-            self._move(FetchState.BROKEN_OFF)
@ fetch/leader.py seeds=600
# messages arrive and nobody wakes the reader
-                self.must_wake, self.quiet_since = True, now
+                self.quiet_since = now
@ runtime/engine/assignment.py seeds=6000
# a new assignment wakes no fetcher
-            self._interrupt_run()
-            self.wake_all()
+            self._interrupt_run()
+            self.ensure_workers()
+            self.lock.notify_all()
@ fetch/buffer.py fetch/test_buffer.py ci
# restart() keeps the version, and old answers count
-        self.records = self.nbytes = 0
-        self.version += 1
+        self.records = self.nbytes = 0
@ fetch/buffer.py fetch/test_buffer.py fetch/test_collect.py seeds=600
# a paused partition's messages are handed out
-elif queue.state.is_fetchable():
+elif queue.chunks:
@ fetch/collect.py fetch/test_lane.py seeds=600
# the lane: what is in flight counts as finished
-self.in_flight[who] = ((queue, offset),)
-            self.in_flight.settle
+self.in_flight[who] = ()
+            self.in_flight.settle
@ fetch/collect.py fetch/test_thread_slots.py seeds=600
# the lane: a message of another partition is finished past the lock
- if in_flight.get(other) == ((queue, had),))
+)
@ fetch/collect.py fetch/test_thread_slots.py
# the lane: an exception takes back what others have taken meanwhile
-                self.push_back(who, [message])
-            raise
+                self._undo(who, ())
+            raise
@ coordinator/handover.py coordinator/test_handover.py seeds=600
# what a stop finds half given up is dropped without a commit
-        if generation.joined and not self._member.current(generation):
-            return
# KIP-814: a static leader without a description of its group is content
-        return "the partitions that the group has assigned are not known"
+        return None
@ fetch/budget.py fetch/test_budget.py
# the bound on memory: the line of those who wait has no order
-        if next(iter(self._line), who) == who:
+        if True:
# the bound on memory: what is under way does not count
-return self.bound - self._unpacking - self.reserved - self._overhead
+return self.bound - self._unpacking - self._overhead
@ fetch/collect.py fetch/test_inline_parity.py runtime/test_inline.py seeds=600
# what an interrupted thread has received is not fetched again
-            for queue in list(self._buffer):
-                self._buffer.fetch_again(queue)
@ runtime/engine/fetching/fetch_pool.py runtime/test_inline.py seeds=600
# a lent connection is not called back for another request
-                self.inline_receive.call_back(fetcher)
@ fetch/collect.py fetch/test_inline_parity.py
# the lane goes on with what has come while older chunks wait
-self._source is not None and not self._buffer.holds_chunks()
+self._source is not None
@ fetch/collect.py fetch/test_inline_parity.py runtime/test_inline.py
# a chunk that the lane has used up is not finished
-                self.in_flight.come_back(who)
-            self._close_chunk()
+                self.in_flight.come_back(who)
+            self._queue = self._chunk = None
@ fetch/leader.py fetch/test_inline_parity.py
# a request that comes back is taken for the one that was lent
-        self._moved = plan.moved_to(places)
+        self._moved = []
@ runtime/engine/fetching/quiet_fetches.py runtime/test_quiet_together.py
# a quiet worker ends before its partitions are watched
-        if away.over or not away.carried or shared is None:
+        if away.over or shared is None:
@ admin/admin.py admin/test_reset_race.py
# a reset does not say that somebody has joined meanwhile
-        if isinstance(error, (err.UnknownMemberId, err.IllegalGeneration)):
+        if isinstance(error, err.IllegalGeneration):
@ runtime/net/connection.py runtime/test_overdue.py
# a connection that is silent is waited for as long as for any answer
-        frame = self._read(pending, deadline, max(overdue_at, now + _LAST_LOOK))
+        frame = self._read(pending, deadline)
@ runtime/engine/_inline.pyx runtime/test_overdue.py
# a silent connection that was lent is not called back
-            elif now >= wire.overdue_at:
+            elif now >= wire.overdue_at + 1000.0:
@ runtime/member.py simulation/test_stalls.py
# a leave whose connection was closed is not sent again
-            answer = self._link.request_within(MEMBERSHIP, bounded.api, bounded.body, bounded.timeout)
+            answer = self._link.request(MEMBERSHIP, bounded.api, bounded.body, int(bounded.timeout * 1000))
@ runtime/cluster/cluster.py runtime/test_offset_lookups.py
# a connection goes to the next borrower with an answer outstanding
-        if connection.awaits_answer:
-            connection.close()
@ consumers/lives.py consumers/test_stop_on_signals.py
# a start does not end by a signal
-                if engine.life.no_more:  # a signal: consuming threads get nothing
-                    return
@ fetch/collect.py fetch/test_inline_parity.py
# what comes for a partition that has moved is handed out
-            if queue.version == version and queue.state.active:
-                queue.fetch_offset, queue.last_epoch
+            if queue.state.active:
+                queue.fetch_offset, queue.last_epoch
@ fetch/plan.py fetch/test_repeats.py
# an answer that came over a lent connection asks beyond the bound on memory
-return self._look(cluster, now, True) is not None and self._buffer.budget.holds(self._buffer)
+return self._look(cluster, now, True) is not None
@ fetch/plan.py fetch/test_repeats.py seeds=600
# the last request is repeated after a seek
-                queue.version != line.version
-                or queue.in_flight is not in_flight
+                queue.in_flight is not in_flight
@ fetch/pushed.py fetch/test_collect.py consumers/test_in_flight.py runtime/test_deserializer.py seeds=600
# what came back of a paused partition is handed out again
-if queue.version == version and queue.state.is_fetchable():
+if queue.version == version:
@ fetch/collect.py fetch/test_collect.py seeds=600
# a hand holds its last message, not its first
-lowest.setdefault(queue, more[0].offset)
+lowest[queue] = more[-1].offset
@ fetch/collect.py fetch/test_interruptions.py seeds=600
# memory that runs out in a batch leaves a chunk open
-                self._chunk.rewind(self._mark)
-                self._put_away()
-            if taken:
+                pass
+            if taken:
@ wire/records/_records_py.py wire/test_records.py seeds=600
# the decoder in Python trusts the offsets within old compressed messages
-start = self.ready[0].offset + 1 if self.ready else self.position
+start = self.position
@ fetch/in_flight.py fetch/test_collect.py consumers/test_in_flight.py seeds=600
# other hands are not looked at
-state.finish(position if low is None else low)
+state.finish(position)
@ fetch/in_flight.py consumers/test_in_flight.py seeds=600
# a dead thread's hand is forgotten
-        self[DEAD_OWNER] = tuple(lowest.items())
@ runtime/engine/positions.py consumers/test_positions.py seeds=600
# the end of the log is the answer to where it begins
-go_on(engine.buffer.queues[tp], max(0, answer.offset))
+go_on(engine.buffer.queues[tp], max(0, answer.offset + 1))
@ fetch/plan.py fetch/test_plan.py seeds=600
# an answer goes to the partition that the next one asked for
-            self.tickets[topic_id, number] = line
-        line.queue.in_flight = True
+            self.tickets[topic_id, number] = line

@ wire/records/_records_py.py runtime/test_damage.py wire/test_records.py twin=python
# the next fetch is at offset + count (compaction leaves gaps)
-self.next_fetch_offset = max(self.next_fetch_offset, batch.last_offset + 1)
+self.next_fetch_offset = max(self.next_fetch_offset, batch.base_offset + batch.count)
@ wire/records/_batches_py.py wire/test_records.py seeds=600 twin=python
# an aborted transaction that begins at a batch's last offset
-while self._later and self._later[-1][1] <= batch.last_offset:
+while self._later and self._later[-1][1] < batch.last_offset:
@ wire/records/_batches_py.py wire/test_records_damage.py runtime/test_damage.py seeds=600 twin=python ci
# no CRC is looked at
-            if computed != crc:
+            if False:
@ runtime/net/buffers.py runtime/test_buffers.py ci
# a receive buffer is used again while somebody looks at it
-free = [piece for piece in self._pieces if _unseen(piece.memory)]
+free = list(self._pieces)
@ wire/records/format.py wire/test_records.py wire/test_records_oracle.py twin=python
# an abort marker is taken for a commit
-CONTROL_ABORT = 0
-CONTROL_COMMIT = 1
+CONTROL_ABORT = 1
+CONTROL_COMMIT = 0
@ wire/protocol/framing.py wire/test_framing.py wire/test_hostile_bytes.py
# the size of a frame is not looked at
-if _SMALLEST_FRAME <= size <= max_frame_bytes:
+if _SMALLEST_FRAME <= size:

@ spark/claims/chains.py spark/test_store.py
# a claim that exists is claimed again
-return self._read(tp, entry.start) == Claim(*entry, data)
+return True
@ spark/claiming.py spark/test_claims.py
# a batch that runs again keeps its name
-name = f"{batch.data}-{self._driver}"
+name = batch.data
# a batch that two drivers ran is claimed for the first of them
-"" if self.log.repeated(batch.data) else batch.data
+batch.data
@ spark/bounds.py spark/test_bounds.py
# a batch begins beyond its log's end in silence
-for tp, at in _beyond(view, watch, starts).items():
+for tp, at in {}.items():
@ spark/claims/group.py spark/test_claims.py
# a batch that others have overtaken is claimed in the group
-link.range == entry and (goes_on or commit is None)
+link.range == entry
@ spark/claims/sql.py spark/test_claims.py
# a batch that runs again writes its rows again
-(entry.stop, data, *key, entry.start)) != 1:
+(entry.stop, data, *key, entry.start)) != 1 and not self._dialect.fetch(
+            connection, f"{_NOTES} AND topic = ? AND part = ? AND start = ? AND data = ?",
+            (*key, entry.start, data)
+        ):
@ runtime/fetch_range.py runtime/test_fetch_range_silence.py
# empty answers are the end of a range
-            self._note_failure(err.RecordsNotSentError(*self._tp, offset, end, waited))
+            self._seek(self._stop)
@ spark/tasks.py spark/test_ranges.py
# slices of a range overlap
-bounds = [start + (stop - start) * i // pieces for i in range(pieces + 1)]
+bounds = [start + (stop - start) * i // (pieces + 1) for i in range(pieces + 1)]
@ spark/positions.py spark/test_positions.py
# a member's further commit does not count
-further = CHECKPOINT if there < known.done else GROUP
+further = CHECKPOINT
@ spark/watch.py spark/test_watch.py
# a topic made anew is not noticed
-if self.ids.get(name, present) != present:
+if self.ids.get(name, present) == 0:
@ spark/read.py spark/test_never_blocking.py
# the batch of a lost member is written
-if member not in members:
+if member in members and not members:
@ runtime/member_beside.py spark/test_never_blocking.py
# a member in a long batch holds the others up
-machine.rejoin_reason is None or len(self._todo) != 1:
+machine.rejoin_reason is None or len(self._todo) != 2:
@ runtime/cluster/log_ends.py runtime/test_log_ends.py
# leader epochs go with other partitions when a broker answers in another order
-            self.said = None
-        return numbers == self.numbers
+        return numbers == self.numbers
@ spark/ranges.py spark/test_ranges.py
# small partitions are forgotten beside a large one
-granted.update({tp: 1 + (available[tp] - 1) * spare // rest for tp in waiting})
+granted.update({tp: available[tp] * limit // total for tp in waiting})
@ decoding/avro_evolution.py decoding/test_avro_evolution.py twin=cython
# Avro: a null of the writer's goes into a field that has none
-        if was.null_at >= 0 > wanted.null_at:
+        if False:
@ decoding/avro_values.py decoding/test_avro_evolution.py twin=cython
# Avro: the values of several schemas stay in the order of their schemas
-        return joined(columns, self.type()).take(where), bad
+        return joined(columns, self.type()), bad
@ runtime/net/https.py decoding/test_registry.py
# registry: user and password go wherever it redirects
-        if (was.scheme, was.hostname, was.port) != (wanted.scheme, wanted.hostname, wanted.port):
+        if wanted.scheme not in ('http', 'https'):
# registry: each byte has the whole time of an answer
-        self._sock.settimeout(_left(self._until))
@ runtime/net/schema_registry.py decoding/test_registry.py
# registry: a 404 of anybody says that there is no such schema
-if status == 404 and answer.get("error_code") in _NOT_FOUND:
+if status == 404:
@ decoding/json_values.py spark/test_typed.py
# JSON: a value goes on in the next one
-pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))
+pc.starts_with(lines, "{")
# JSON: any bytes are text
-raw.cast(pa.string())
+raw.cast(pa.string(), safe=False)
@ decoding/protobuf_values.py decoding/test_framed.py
# Protobuf: the bytes of another message make a row
-        if found != self._name:
+        if found is None:
@ decoding/avro_bounds.py decoding/test_avro_bounds.py
# Avro: records that hold themselves have no end
-            self._harmless = False
-            return Size(0, 0, 1)
+            return Size(0, 0, 1)
@ decoding/avro_values.py decoding/test_avro_bounds.py twin=cython
# Avro: all bad rows of an older schema take the others along
-        return read_again(self._array, made, bad, raw)
+        return by_halves(self._array, self.type(), raw) if bad else (made, bad)
@ runtime/net/transport.py runtime/test_greenlet_yield.py
# a greenlet receives a large answer without giving a turn
-        self._turn.give()

@ stores/producers.py testing/test_memory_transactional.py
# a transaction is committed without the records that kafka-python has lost
-        self._patiently(self._deliver)
@ stores/claims.py stores/test_claims.py stores/test_all_stores.py ci
# what a refused transaction had of other partitions is passed over
-                        each.owe(spans[tp])
+                        pass
@ stores/attaching.py stores/test_attached.py
# after a refusal the consumer does not go back to the messages of its other partitions
-                self._seek(self._claimed.intersection(tps))
+                pass
@ stores/claims.py stores/test_past.py stores/test_all_stores.py ci
# a store's offset that went back is taken for stored
-            elif now is not None and now > (each.next or 0):
+            elif now is not None:
@ stores/claims.py stores/test_past.py stores/test_all_stores.py
# after a new claim what the store has lost may be passed over
-            if known > (self.next or 0):
+            if False:
# a store that has lost our claim is taken for one that others have claimed
-if row is None or row.claim < each.row.claim:
+if False:
@ stores/rows.py stores/test_made_anew.py stores/test_made_anew_attached.py ci
# a store takes the offset of a topic that is gone for one of the new topic of that name
-return None if topic and self.topic not in ("", topic) else self.next
+return self.next
@ stores/fence.py stores/test_made_anew.py stores/test_made_anew_attached.py
# a store's claim forgets of which topic the offset is
-return Row(None, number + 1, generation, with_topic(member, topic))
+return Row(None, number + 1, generation, member)
@ stores/claims.py stores/test_made_anew.py stores/test_made_anew_attached.py
# messages of a topic that is gone are stored as the new one's
-            if topic != known if known else topic in claimed[tp].former:
+            if False:
@ stores/dialects.py stores/test_made_anew.py stores/test_made_anew_attached.py
# SQL: a move leaves the id of the topic before beside the new offset
-            [move.next, move.member, *place, row.claim,
+            [move.next, row.member, *place, row.claim,
@ stores/attaching.py stores/test_made_anew.py stores/test_made_anew_attached.py
# a consumer whose metadata is old does not ask again before the store's offset is given up
-(now := self._ids.look_again(tps)) != known:
+(now := known) != known:
@ stores/dialects.py stores/test_sql.py
# SQL: a move does not look at the next offset
-f"where {_WHERE} and claim_number = ? and member = ? and {unmoved}",
-            [move.next, move.member, *place, row.claim, row.member, *([] if row.next is None else [row.next])],
+f"where {_WHERE} and claim_number = ? and member = ?",
+            [move.next, move.member, *place, row.claim, row.member],
@ stores/objects.py stores/test_directory.py
# directory: the log's names are not on the disk when a change counts
-who has made it may have ended before it wrote the name through.
-        sync(home)
+who has made it may have ended before it wrote the name through.
@ stores/directory.py stores/test_directory.py
# directory: EEXIST is believed
-text.encode()) and self._read(number) != text:
+text.encode()):
@ stores/directory.py stores/test_past.py stores/test_all_stores.py
# directory: an older copy is not noticed
-if seen.number and self._read(seen.number) != seen.text:
+if False:
@ stores/iceberg.py stores/test_names.py
# Iceberg: the dots of names look like those between them
-return name.replace("%", "%25").replace(".", "%2E")
+return name
@ spark/claims/chains.py spark/test_claims_past.py
# claims of a directory: an older copy is not noticed
-if tip is not None and self._read(tp, tip.start) != tip:
+if False:

@ fetch/progress.py observe/test_lag_scenes.py::test_a_stuck_partition_is_named_within_twice_its_threshold_and_no_other
# progress: the time without a message counts as standing still
-if finished > self._finished or not lag or not self._had_lag or sight.paused:
+if finished > self._finished or sight.paused:
@ fetch/progress.py fetch/test_progress.py
# progress: a pause counts as standing still
-if finished > self._finished or not lag or not self._had_lag or sight.paused:
+if finished > self._finished or not lag:
# progress: offsets without a message are lag
-return sight.behind and (known is None or known.timestamp is not None)
+return sight.behind
@ fetch/progress.py observe/test_lag_scenes.py::test_a_stuck_partition_is_named_within_twice_its_threshold_and_no_other
# progress: a look at a partition counts as a move
-self._had_lag, self._finished = lag and not sight.paused, finished
+self._had_lag, self._finished = False, finished
@ fetch/stuck.py observe/test_lag_scenes.py::test_a_stuck_partition_is_named_within_twice_its_threshold_and_no_other
# progress: the alarm comes too late
-        if stuck_for < self._due:
+        if stuck_for < 2.5 * self._due:
@ fetch/stuck.py fetch/test_stuck.py
# progress: the alarm comes once only
-stuck_for + min(stuck_for, _LONGEST_PAUSE)
+float("inf")

@ wire/records/_chunk.pxi wire/test_shared_memory.py twin=cython
# memory for decompression is given back too early
-        PyObject_GetBuffer(unpacked, &self._buffers.payload, PyBUF_SIMPLE)
+        PyObject_GetBuffer(unpacked, &self._buffers.payload, PyBUF_SIMPLE)
+        compression.give_scratch(self._scratch)
+        self._scratch = None
@ decoding/_columns.pyx decoding/test_avro_columns.py spark/test_typed.py twin=cython
# Avro: what a bad value has left in the columns stays
-            column.cut(row)
-            column.append_null()
+            column.append_null()
@ decoding/_avro_nested.pxi decoding/test_avro_bounds.py twin=cython
# Avro: items of a value that was taken back stay
-        self.items.cut((<int32_t *>self.offsets.start)[rows])
@ decoding/_avro_flat.pxi decoding/test_avro_bounds.py twin=cython
# Avro: bytes of a value that was taken back stay
-        self.used = (<int32_t *>self.offsets.start)[rows]
@ decoding/_avro_nested.pxi decoding/test_avro_bounds.py twin=cython
# Avro: items without bytes are bounded by the block, and not by the value
-                wire.empty -= count
# Avro: a null becomes as many columns as a schema has
-            take_room(wire, count, self.weight)
@ decoding/_avro_flat.pxi decoding/test_avro_columns.py twin=cython
# Avro: text is not checked
-        if self.text:
-            check_text(wire.place, size)
@ decoding/_json.pxi decoding/test_json_columns.py twin=cython
# JSON: bytes of a string are not checked
-    if seen & HIGH_BITS:
-        check_text(start, place - start)
# JSON: a field that comes twice is no error
-            elif self.known[place].read_in == self.objects:
-                raise ValueError("a field twice")
# JSON: a number with many digits is rounded twice
-number.digits <= <uint64_t>1 << 53
+number.digits <= <uint64_t>1 << 63
@ wire/records/_growing_buffer.pxi wire/test_shared_memory.py twin=cython
# Arrow's buffers are used again for the next batch
-        self.buffer = pa.allocate_buffer(size, resizable=True)
+        kept = pa.__dict__.setdefault('kept_rooms', [])
+        self.buffer = kept.pop(0) if len(kept) > 11 else pa.allocate_buffer(size, resizable=True)
+        kept.append(self.buffer)
@ wire/records/_lane.pxi fetch/test_lane.py twin=cython
# the accelerator's lane does not look who calls
-            return this_thread() == self._thread or self._sit()
+            return True
@ wire/records/_recordwalk.pxd wire/test_records_damage.py twin=cython
# the accelerator looks at no CRC
-        if computed != stated:
-            _mark(batch, BAD_CRC, computed, stated)
-            return
-    if base
+        if False:
+            _mark(batch, BAD_CRC, computed, stated)
+            return
+    if base
@ wire/records/_oddbatches.pxi wire/test_records.py twin=cython
# the accelerator: an aborted transaction that begins at a batch's last offset
-while chunk._aborted and chunk._aborted[len(chunk._aborted) - 1][1] <= batch.last_offset:
+while chunk._aborted and chunk._aborted[len(chunk._aborted) - 1][1] < batch.last_offset:

@ cli/_show.py cli/test_terminal.py
# a table of a command shows names as they are
-shown.line(str(value)) for value in row
+str(value) for value in row
@ observe/drawing.py observe/test_timeline.py
# a cause is markup in the timeline's page
-<td>{html(causes(each))}</td>
+<td>{causes(each)}</td>
@ observe/recorder.py observe/test_timeline.py
# an event of a file may be of any type
-        if type(value) not in (int, float) or not least <= value <= most
+        if type(value) in (int, float) and not least <= value <= most
@ runtime/serving.py observe/test_endpoint.py::test_a_request_has_one_deadline
# serve(): each byte begins the deadline anew
-        left = self.began + self._patience() - self._now()
+        left = self._patience()
@ runtime/serving.py observe/test_endpoint.py::test_who_is_slow_keeps_nobody_else_out
# serve(): slow clients keep their places
-_SHORT_PATIENCE if self._full else _PATIENCE
+_PATIENCE
@ runtime/serving.py observe/test_endpoint.py
# serve(): any name is answered on 127.0.0.1
-if self._alone and not all(map(_is_here, hosts)):
+if False:
@ observe/flight.py observe/test_flight.py
# the flight recorder follows a symbolic link
-("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK")
+("O_CLOEXEC", "O_NONBLOCK")
@ cli/_connection.py test_secrets.py
# a line of --config stands in the error
-f"{path}, line {number} is not name=value:
+f"{path}, line {number} is not name=value, but {text}:
""")
