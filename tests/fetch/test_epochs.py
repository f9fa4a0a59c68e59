"""Leader epochs (KIP-320): what is known of the records that were handed out, what is committed, what is compared."""

from __future__ import annotations

from managedconsumer.subscription_state import TopicPartitionState
from tests.fetch.kit import Kit, batch, damaged, filled, tp


def known(kit: Kit) -> list[int]:
    return [kit.states[0].epoch_before(offset) for offset in range((kit.position() or 0) + 1)]


class TestWhatIsKnown:
    def test_of_every_message_handed_out(self) -> None:
        kit = filled(batch(0, 2, leader_epoch=3) + batch(2, 1, leader_epoch=3) + batch(3, 2, leader_epoch=5))
        kit.fetched(data=batch(5, 1, leader_epoch=5))
        kit.take_all()
        assert known(kit) == [-1, 3, 3, 3, 5, 5, 5]
        assert kit.states[0].leader_epoch == 5

    def test_what_is_fetched_ahead_does_not_count(self) -> None:
        kit = filled(batch(0, 2, leader_epoch=3) + batch(2, 2, leader_epoch=4))
        assert kit.states[0].leader_epoch == -1
        for expected in (3, 3, 4, 4):
            kit.take()
            kit.collector.settle_lane()
            assert kit.states[0].leader_epoch == expected

    def test_it_starts_in_the_middle_of_a_batch(self) -> None:
        kit = Kit()
        kit.seek(0, 2)
        kit.fetched(data=batch(0, 4, leader_epoch=6))
        assert kit.states[0].leader_epoch == 6  # of offset 1, which is in that batch

    def test_a_seek_forgets_all_of_it_and_a_pause_what_is_ahead(self) -> None:
        kit = filled(batch(0, 2, leader_epoch=3) + batch(2, 2, leader_epoch=4))
        kit.take()
        kit.collector.shelve()
        kit.buffer.restart(tp(0))
        assert (kit.states[0].leader_epoch, kit.queue().last_epoch) == (3, 3)
        kit.fetched(data=batch(0, 2, leader_epoch=3) + batch(2, 2, leader_epoch=5))
        kit.take_all()
        assert known(kit) == [-1, 3, 3, 5, 5]
        kit.states[0].seek(4)
        assert kit.states[0].leader_epoch == -1

    def test_what_is_finished_is_not_remembered_for_ever(self) -> None:
        kit = Kit()
        for epoch in range(100):
            kit.fetched(data=batch(epoch, 1, leader_epoch=epoch))
            kit.take_all()
        assert len(kit.states[0]._epochs) < 4
        assert kit.states[0].leader_epoch == 99

    def test_nothing_of_a_damaged_batch(self) -> None:
        kit = filled(batch(0, 2, leader_epoch=3) + damaged(2, 2))
        assert kit.states[0]._epochs == [(0, 3)]

    def test_a_committed_epoch_holds_until_another_begins(self) -> None:
        state = TopicPartitionState()
        state.seek(10, leader_epoch=2)
        assert (state.leader_epoch, state.epoch_before(10)) == (2, 2)
        state.note_epochs([(10, 2), (12, 4)])
        assert [state.epoch_before(offset) for offset in (10, 11, 12, 13)] == [2, 2, 2, 4]
