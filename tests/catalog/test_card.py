"""A card's identity follows its contents."""

from support.model_shapes import SHAPES

CARD = next(iter(SHAPES.values()))


def test_a_changed_copy_has_another_digest_and_an_equal_one_the_same() -> None:
    digest = CARD.digest
    assert CARD.model_copy().digest == digest
    changed = CARD.model_copy(update={"context_length": 12345})
    assert changed.digest != digest
    assert changed.model_copy(update={"context_length": CARD.context_length}).digest == digest
