"""Under which generation a member speaks, and what it may keep from one to the next."""

from __future__ import annotations

from tests.coordinator.kit import Classic, Modern, kinds


def _join(member: Classic, generation: int, me: str = "me") -> bool:
    """The next generation, up to its end: True if it goes on from the one before."""
    member.rejoin()
    member.join(generation, member_id=me)
    sync = member.request()
    assert sync.body["generation_id"] == generation
    (*_, assigned) = member.answer(sync, assignment=b"")
    member.machine.reconciled()
    assert assigned.startswith(f"Assigned [{generation} {me!r} range] b'' False ")
    return assigned.split()[-2] == "True"


def test_heartbeats_go_on_under_the_new_generation() -> None:
    member = Classic()
    for generation in (1, 2, 5):
        _join(member, generation)
        member.wait(3.0)
        beat = member.beat()
        assert (beat.body["generation_id"], beat.body["member_id"]) == (generation, "me")
        member.answer(beat)


def test_nothing_is_kept_over_a_generation_that_was_missed() -> None:
    """Another member may have read on in it: positions begin at the committed offsets again."""
    member = Classic()
    assert not _join(member, 1)  # there was nothing before
    assert _join(member, 2)
    assert not _join(member, 4)
    assert _join(member, 5)
    assert not _join(member, 6, "another id")


def test_a_follow_up_rebalance_is_gone_through() -> None:
    """A cooperative member that has given partitions up joins again, or nobody would get them."""
    member = Classic()
    _join(member, 1)
    member.rejoin(holding=True)
    member.join(2)
    member.sync()
    member.machine.reconciled("gave up 1 partitions")
    assert member.machine.need_rejoin()
    assert kinds(member.poll()) == ["PrepareJoin"]


def test_a_kip_848_member_goes_on_to_the_epoch_that_it_was_told() -> None:
    member = Modern.joining()

    def beat(epoch: int, share: list[int] | None = None) -> int:
        member.wait(5.0)
        request = member.beat()
        member.answer(request, epoch, share)
        member.machine.reconciled()
        return int(request.body["member_epoch"])

    assert beat(1, [0]) == 0  # 0 joins
    first = member.machine.generation
    assert beat(4) == 1
    assert member.machine.generation.id == 4  # commits go by it
    assert beat(4, [0, 1]) == 4
    assert beat(5) == 4
    assert beat(5) == 5
    assert member.machine.is_current(first)  # the same membership all the time: nothing is lost
