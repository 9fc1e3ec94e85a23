"""The loop that the learner is compared with does the same work: its micro-batches, its loss."""

from engine.bench.batches import Lengths, describe_batch, make_batch
from engine.bench.padded_loop import cut_padded, padded
from engine.learner.base import Sample


def of_length(length: int) -> Sample:
    return Sample(ids=list(range(1, length + 1)), trained=[place > 0 for place in range(length)])


def test_a_micro_batch_holds_as_many_samples_as_fit_with_their_padding() -> None:
    samples = [of_length(each) for each in (3, 4, 2, 6, 1, 20)]
    cuts = [[len(sample.ids) for sample in cut] for cut in cut_padded(samples, 12)]
    assert cuts == [[3, 4, 2], [6, 1], [20]]


def test_padding_stands_on_the_right_and_is_masked() -> None:
    ids, mask, trained = padded([of_length(3), of_length(1)])
    assert ids.tolist() == [[1, 2, 3], [1, 0, 0]]
    assert mask.tolist() == [[True, True, True], [True, False, False]]
    assert trained.tolist() == [[False, True, True], [False, False, False]]


def test_a_batch_has_a_long_tail_within_its_bounds_and_is_the_same_each_time() -> None:
    lengths = Lengths(samples=64, shortest=60, tail=90, longest=500)
    batch = make_batch(lengths, 1024)
    found = describe_batch(batch)
    assert 60 <= found["shortest"] < found["median"] < found["tokens"] / 64 < found["longest"] <= 500
    assert all(not sample.trained[0] and any(sample.trained) for sample in batch)
    assert batch == make_batch(lengths, 1024)
