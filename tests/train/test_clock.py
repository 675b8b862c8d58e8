"""Time is charged where it was spent, also on a device whose work ends later than its launch."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings, strategies as st
from support.standin import HandClock, StandIn

from trainmark.record.metrics import Measured, measure
from trainmark.record.timeline import PHASES, RankTrace, Timeline
from trainmark.train.clock import MAX_STEPS_IN_FLIGHT, Clock, StepTime

MS = 1_000_000


def slow_loader(clock: HandClock, waits_ns: list[int]) -> Iterator[int]:
    for ns in waits_ns:
        clock.pass_ns(ns)
        yield 8


def train(device: StandIn, clock: Clock, waits_ns: list[int], work_ns: int, *, host_ns: int = 0) -> list[StepTime]:
    with clock.training():
        for items in clock.waiting_for(slow_loader(device.clock, waits_ns)):
            device.launch(work_ns, host_ns=host_ns)
            clock.end_step(items)
    return clock.finished_steps()


def opened() -> tuple[StandIn, Clock]:
    hand = HandClock()
    device = StandIn(hand)
    return device, Clock(device, device.synchronize, now_ns=hand)


def test_a_step_lasts_as_long_as_the_device_works_not_as_long_as_its_launch() -> None:
    device, clock = opened()
    steps = train(device, clock, [0] * 10, 10 * MS, host_ns=1 * MS)
    # the first step also shows the launch itself: nothing was queued before it
    assert [step.compute_ns for step in steps] == [11 * MS] + [10 * MS] * 9


def test_a_loader_that_the_device_hides_costs_no_data_wait() -> None:
    device, clock = opened()
    steps = train(device, clock, [0] + [4 * MS] * 9, 10 * MS)
    assert [step.wait_ns for step in steps] == [0] * 10


def test_a_loader_slower_than_the_device_shows_as_data_wait_and_not_as_compute() -> None:
    device, clock = opened()
    steps = train(device, clock, [30 * MS] * 10, 10 * MS)
    assert [step.compute_ns for step in steps] == [10 * MS] * 10
    # the device works on one step for 10 of the 30 ms that the next batch takes
    assert [step.wait_ns for step in steps] == [30 * MS] + [20 * MS] * 9


def test_no_synchronisation_happens_inside_the_loop() -> None:
    device, clock = opened()
    with clock.training():
        for items in clock.waiting_for(slow_loader(device.clock, [0] * 50)):
            device.launch(MS)
            clock.end_step(items)
            clock.finished_steps()
            assert device.synchronized == 0
    assert device.synchronized == 1


def test_the_host_runs_ahead_but_not_without_bound() -> None:
    device, clock = opened()
    train(device, clock, [0] * 50, 10 * MS)
    assert 1 < device.most_ahead <= MAX_STEPS_IN_FLIGHT + 1


def test_a_phase_holds_the_work_launched_in_it() -> None:
    device, clock = opened()
    with clock.phase("evaluate"):
        device.launch(70 * MS, host_ns=1 * MS)
    train(device, clock, [0], 10 * MS)
    assert clock.phases_ns["evaluate"] == 71 * MS


def test_work_of_the_harness_between_steps_is_other_and_not_data_wait() -> None:
    device, clock = opened()
    with clock.training():
        for items in clock.waiting_for(slow_loader(device.clock, [0, 0, 0])):
            device.launch(MS)
            clock.end_step(items)
            device.synchronize()
            device.clock.pass_ns(5 * MS)
            clock.exclude_own_work()
    assert [step.wait_ns for step in clock.finished_steps()] == [0, 0, 0]
    assert clock.phases_ns["other"] == 15 * MS


def exchange_steps(device: StandIn, clock: Clock, exchanges_ms: list[int]) -> list[StepTime]:
    """Steps that compute for 10 ms, exchange so long what they did not hide, and update for 2 ms."""
    with clock.training():
        for length in clock.waiting_for(exchanges_ms):
            device.launch(10 * MS)
            clock.begin_exchange()
            device.launch(length * MS)
            clock.end_exchange()
            device.launch(2 * MS)
            clock.end_step(8)
    return clock.finished_steps()


def test_the_exchange_is_what_the_device_did_from_the_last_gradient_to_the_end_of_backward() -> None:
    device, clock = opened()
    steps = exchange_steps(device, clock, [3, 0, 5, 4, 4, 4, 4, 4])
    assert [step.exchange_ns // MS for step in steps] == [3, 0, 5, 4, 4, 4, 4, 4]
    # it is a part of compute, so that phases still sum to the end-to-end time
    assert [step.compute_ns // MS for step in steps] == [15, 12, 17, 16, 16, 16, 16, 16]


def test_all_exchanges_of_a_step_count_and_none_of_another_step() -> None:
    device, clock = opened()
    with clock.training():
        for exchanges in clock.waiting_for([2, 0, 1]):
            clock.end_exchange()  # of a backward that exchanged nothing
            for _ in range(exchanges):
                device.launch(10 * MS)
                clock.begin_exchange()
                device.launch(3 * MS)
                clock.end_exchange()
            device.launch(MS)
            clock.end_step(8)
    assert [step.exchange_ns for step in clock.finished_steps()] == [6 * MS, 0, 3 * MS]


script = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.lists(st.integers(0, 9), max_size=8), st.integers(1, 9), st.integers(0, 3)),
        st.tuples(st.just("evaluate"), st.just([]), st.integers(1, 9), st.integers(0, 3)),
        st.tuples(st.just("checkpoint"), st.just([]), st.integers(1, 9), st.integers(0, 3)),
        st.tuples(st.just("between"), st.just([]), st.integers(1, 9), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=200, deadline=None)
@given(script=script, startup=st.integers(0, 50), warmup=st.integers(0, 5))
def test_phases_never_overlap_and_sum_to_end_to_end_and_the_throughputs_are_ordered(
    script: list[tuple[str, list[int], int, int]], startup: int, warmup: int
) -> None:
    hand = HandClock()
    device = StandIn(hand)
    began = hand.ns
    clock = Clock(device, device.synchronize, startup_ns=startup, began_ns=began, now_ns=hand)
    hand.pass_ns(7)
    clock.charge("init")
    steps: list[StepTime] = []
    for kind, waits, work, host in script:
        if kind == "train":
            steps += train(device, clock, waits, work, host_ns=host)
        elif kind == "between":
            hand.pass_ns(work)
        else:
            with clock.phase(kind):
                device.launch(work, host_ns=host)
    clock.charge("other")
    trace = RankTrace(
        rank=0,
        phases_ns=clock.phases_ns,
        wait_ns=[step.wait_ns for step in steps],
        compute_ns=[step.compute_ns for step in steps],
        items=[step.items for step in steps],
    )
    warmup = min(warmup, len(steps))
    timeline = Timeline(ranks=(trace,), warmup_steps=warmup, steady_from=warmup)
    assert set(timeline.phases_ns) == set(PHASES)
    assert min(timeline.phases_ns.values()) >= 0
    assert sum(timeline.phases_ns.values()) == hand.ns - began + startup
    found = measure(Measured(item="images", timeline=timeline))
    whole, training, core = (found[alias].value for alias in ("p_whole", "p_train", "p_core"))
    if whole is not None and training is not None and core is not None:
        assert whole <= training <= core
    else:
        assert whole is training is core is None


def test_a_stretch_is_as_long_by_the_devices_marks_as_by_the_host() -> None:
    device, clock = opened()
    train(device, clock, [5 * MS] + [0] * 9, 10 * MS)
    assert clock.stretch == (105 * MS, 105 * MS)
    assert device.synchronized == 1
