"""Under which subjects a stream stores what it gets."""

from __future__ import annotations

import pytest

from jsclient.models import StreamConfig, StreamSource, SubjectTransform
from jsclient.protocol.models.stored_subjects import stored_subjects


def transform(src: str, dest: str | None) -> SubjectTransform:
    return SubjectTransform(src=src, dest=dest)


def source(*transforms: tuple[str, str | None], filter_subject: str | None = None) -> StreamSource:
    created = [transform(*one) for one in transforms]
    return StreamSource(name="O", subject_transforms=created or None, filter_subject=filter_subject)


OWN = StreamConfig(name="S", subjects=["a.*", "b.>"])


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        (StreamConfig(name="S"), ("S",)),
        (OWN, ("a.*", "b.>")),
        (StreamConfig(name="S", sources=[source()]), None),
        (StreamConfig(name="S", subjects=["a"], sources=[source(("x", "y")), source()]), None),
        (StreamConfig(name="S", mirror=source()), None),
        (StreamConfig(name="S", mirror=source(filter_subject="o.>")), ("o.>",)),
        (StreamConfig(name="S", sources=[source(filter_subject="o.1")], subjects=["a"]), ("a", "o.1")),
        (
            StreamConfig(name="S", sources=[source(("o.*", "n.{{wildcard(1)}}"), ("p", "n.q"))]),
            ("n.*", "n.q"),
        ),
        (StreamConfig(name="S", sources=[source(("o.>", None))]), ("o.>",)),
        (StreamConfig(name="S", sources=[source(("o.*", "n.$1.x"))]), ("n.*.x",)),
        (
            StreamConfig(name="S", sources=[source(("o.*", "n.{{partition(3,1)}}.{{wildcard(1)}}.x"))]),
            ("n.*.*.x",),
        ),
        (StreamConfig(name="S", sources=[source(("o.*", "n.{{wildcard(1)}}.{{split(1,.)}}.x"))]), ("n.*.>",)),
        (StreamConfig(name="S", sources=[source(("o.*", "{{ SliceFromLeft(1, 3) }}"))]), (">",)),
        (StreamConfig(name="S", sources=[source(("o.*", "n.y"), ("o.z", "n.y"))]), ("n.y",)),
    ],
)
def test_subjects_of_stream(config: StreamConfig, stored: tuple[str, ...] | None) -> None:
    assert stored_subjects(config) == stored


@pytest.mark.parametrize(
    ("src", "stored"),
    [
        (">", ("n.>",)),
        ("a.*", ("n.>", "b.>")),
        ("a.1", ("n.>", "a.*", "b.>")),
        ("c", ("a.*", "b.>")),
    ],
)
def test_own_transform(src: str, stored: tuple[str, ...]) -> None:
    config = StreamConfig(name="S", subjects=OWN.subjects, subject_transform=transform(src, "n.>"))
    assert stored_subjects(config) == stored


def test_own_transform_after_those_of_sources() -> None:
    config = StreamConfig(
        name="S", sources=[source(("o.*", "n.{{wildcard(1)}}"))], subject_transform=transform("n.*", "m.$1")
    )
    assert stored_subjects(config) == ("m.*",)
