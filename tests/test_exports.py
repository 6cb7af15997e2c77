"""The public surface: each name once, importable from its public module, documented, and cheap to import."""

from __future__ import annotations

import ast
import importlib
import inspect
import operator
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import GenericAlias
from typing import get_type_hints

import msgspec
import pytest

import jsclient
from jsclient._exports import SOURCES, set_module

ROOT = Path(__file__).resolve().parent.parent
FACES = (
    "arrow",
    "buckets",
    "doctor",
    "epochs",
    "errors",
    "events",
    "kits",
    "models",
    "peers",
    "server",
    "spark",
    "testing",
    "typing",
)
REFERENCE = "\n".join(
    page.read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs/reference").glob("*.md"))
    if page.name != "protocol.md"  # the sans-IO core, whose names may change
)
DOCUMENTED = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)", REFERENCE, re.MULTILINE))
MAX_MODULES = 100


def words(text: str) -> list[str]:
    return text.split()


# The API that the design fixes, its methods apart.
FIXED = words("""
    connect JetStream Message ack_all Position StreamConfig ConsumerConfig Headers Metadata PubAck Batch Publisher
    make_notifier_kit make_subscription_kit observe_iteration observe_iterator make_notifier make_subscription
    JetStreamError ApiError StreamNotFoundError ConsumerNotFoundError MessageNotFoundError WrongLastSequenceError
    StreamExistsError ConsumerExistsError ConfigError InvalidNameError NoMatchingStreamError BindError
    DuplicateSubscriptionError QueueRequiredError QueueMismatchError NotQueueConsumerError SubjectMismatchError
    PushConsumerError PullConsumerError ConfigMismatchError QueueFlowControlError QueueHeartbeatError StatusError
    ConsumerDeletedError PullLimitError BadRequestError NoRespondersError RequestTimeoutError ClosedError
    NotJetStreamMessageError ProtocolError PublishError TooManyInFlightError PositionInvalidError
    HistoryTruncatedError ProducerFencedError EpochCompletedError EpochsLostError IterationFailed
    HeartbeatMissed GapDetected ConsumerReset ConsumerDeleted SlowConsumer FlowControlStalled PublishFailed
    HistoryTruncated Reconnected epochs errors events peers server spark
""")
METHODS = words("""
    create_stream update_stream create_or_update_stream ensure_stream stream delete_stream streams stream_names
    account_info ordered_consumer subscribe pull_subscribe publish publisher batch topic notifier_kit subscription_kit
    events epochs close create_key_value key_value update_key_value create_or_update_key_value ensure_key_value
    delete_key_value key_value_names create_object_store object_store update_object_store create_or_update_object_store
    ensure_object_store delete_object_store object_store_names
""")


def test_every_name_exists_once():
    assert len(jsclient.__all__) == len(set(jsclient.__all__))
    for name in jsclient.__all__:
        assert getattr(jsclient, name) is not None


@pytest.mark.parametrize("face", FACES)
def test_face(face):
    module = importlib.import_module(f"jsclient.{face}")
    assert getattr(jsclient, face) is module
    assert len(module.__all__) == len(set(module.__all__))
    lazy = set(module._WHERE) if face in {"arrow", "spark"} else set()  # they need pyarrow or pyspark
    for name in set(module.__all__) - lazy:
        assert hasattr(module, name), name
    assert lazy <= set(module.__all__)


def test_fixed_names():
    assert set(FIXED) <= set(jsclient.__all__)
    assert [name for name in METHODS if not callable(getattr(jsclient.JetStream, name, None))] == []
    assert jsclient.server.NatsServer
    assert jsclient.peers.Engine
    assert jsclient.spark.register


def test_lazy_names_agree():
    tree = ast.parse((ROOT / "jsclient/__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {
        alias.name: node.module or ""
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    lazy = {**jsclient._LAZY, **dict.fromkeys(jsclient._MODULES, "")}
    assert lazy == declared
    assert set(lazy) <= set(jsclient.__all__)
    homes = list(jsclient._LAZY.items())
    assert homes == sorted(homes, key=lambda home: home[::-1])


def test_dir_lists_the_public_names():
    assert dir(jsclient) == sorted(jsclient.__all__)
    assert {"HandlerFailed", "AuthenticationError", "ConsumerInfo", "TopicTable", "testing"} <= set(
        dir(jsclient)
    )
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        jsclient.Nothing  # noqa: B018  the access is the point


def exported() -> dict[str, object]:
    """Every public class and function by its path, without two rooms, which need pyarrow or pyspark."""
    paths = sorted(
        name for name in public_names() if not name.startswith(("jsclient.arrow.", "jsclient.spark."))
    )
    values = {path: operator.attrgetter(path.removeprefix("jsclient."))(jsclient) for path in paths}
    # `jsclient.typing` has aliases, too.
    return {path: value for path, value in values.items() if inspect.isroutine(value) or is_class(value)}


def is_class(value: object) -> bool:
    return isinstance(value, type) and not isinstance(value, GenericAlias)


def test_exports_report_their_module():
    public = public_names()
    for path, value in exported().items():
        reported = f"{value.__module__}.{value.__qualname__}"
        assert reported in public or path.startswith("jsclient.server."), path
        assert pickle.loads(pickle.dumps(value)) is value


def test_pickled_names_load_in_new_process():
    pickled = pickle.dumps(list(exported().values()))
    assert not re.search(rb"jsclient\.(protocol|_runtime|topics|consumers|publishing|streams)\b", pickled)
    script = "import pickle, sys; print(len(pickle.load(sys.stdin.buffer)))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        check=True,
        capture_output=True,
        input=pickled,
        cwd=ROOT,
    )
    assert int(done.stdout) == len(exported())


def test_structs_read_by_msgspec():
    """It looks annotations up in the module that a struct reports."""
    structs = [value for value in exported().values() if isinstance(value, type(msgspec.Struct))]
    assert len(structs) > 50
    for struct in structs:
        for field in msgspec.structs.fields(struct):
            assert not isinstance(field.type, str)


def test_all_at_top_level():
    models = jsclient.models
    names = [name for module in (jsclient.errors, jsclient.events, models) for name in module.__all__]
    assert sorted(names) == sorted(set(names)), "a name means two things"
    assert set(names) <= set(jsclient.__all__)
    for module in (jsclient.errors, jsclient.events, models):
        for name in module.__all__:
            assert getattr(jsclient, name) is getattr(module, name), name


def public_names() -> set[str]:
    """Every public name by its path."""
    top = {f"jsclient.{name}" for name in jsclient.__all__ if name not in {*FACES, "__version__"}}
    faces = {face: importlib.import_module(f"jsclient.{face}") for face in FACES}
    return top | {f"jsclient.{face}.{name}" for face, module in faces.items() for name in module.__all__}


def test_documented_names_are_public():
    assert DOCUMENTED - public_names() - {f"jsclient.{face}" for face in FACES} == set()


def test_public_names_are_documented():
    whole = {face for face in FACES if f"jsclient.{face}" in DOCUMENTED}
    written = {name.rpartition(".")[2] for name in DOCUMENTED}
    for face in whole:
        written |= set(importlib.import_module(f"jsclient.{face}").__all__)
    missing = {name for name in public_names() if name.rpartition(".")[2] not in written}
    assert {
        name for name in missing if f"`{name}`" not in REFERENCE and f"`~{name}`" not in REFERENCE
    } == set()


# Methods by which parts of the library call each other. Type checkers and `dir` show them. Add none.
HIDDEN = set(
    words("""
    abandon begin_publishing begin_reading deny has keep_record open publish reads retire sized start_reading subscribe
""")
)


def test_hidden_members():
    actual = re.findall(r"^ +:exclude-members: (.*)", REFERENCE, re.MULTILINE)
    assert {name for names in actual for name in names.split(", ")} == HIDDEN


def test_fields_for_type_checkers():
    from jsclient.protocol.models.consumer import ConsumerFields
    from jsclient.protocol.models.stream_config import StreamFields

    assert set(ConsumerFields.__annotations__) == set(jsclient.ConsumerConfig.__struct_fields__)
    assert set(StreamFields.__annotations__) == set(jsclient.StreamConfig.__struct_fields__) - {
        "name",
        "subjects",
    }


def test_further_fields_of_ordered_consumers():
    from jsclient.protocol.models.consumer import ConsumerFields

    declared = set(importlib.import_module("jsclient.consumers.api").OrderedFields.__annotations__)
    assert declared < set(ConsumerFields.__annotations__)
    assert not declared & set(inspect.signature(jsclient.JetStream.ordered_consumer).parameters)


def test_options_of_engines():
    options = importlib.import_module("jsclient.protocol.peers.options")
    assert set(options.EngineFields.__annotations__) == set(options.EngineOptions.__annotations__)


PROGRAMS = sorted((ROOT / "tests/support/programs").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs_use_public_names(program):
    """They are type-checked by the session `public-types`, and run by integration/docs/test_examples.py."""
    tree = ast.parse(program.read_text(encoding="utf-8"))
    imports = [
        (node.module, name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("jsclient")
        for name in node.names
    ]
    imports += [
        ("jsclient", node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "jsclient"
    ]
    assert imports
    assert [name for module, name in imports if name not in importlib.import_module(module).__all__] == []


def test_ten_programs():
    assert len(PROGRAMS) == 10


def test_arguments_for_type_checkers():
    declared = importlib.import_module("jsclient.consumers.api").SubscribeOptions.__annotations__
    arguments = inspect.signature(jsclient.JetStream.subscribe).parameters
    assert set(declared) == set(arguments) - {"self", "subject", "ordered"}


def test_each_handle_has_repr():
    from jsclient._runtime.handle import Handle

    handles = [
        value for value in exported().values() if isinstance(value, type) and issubclass(value, Handle)
    ]
    assert len(handles) > 10
    assert [kind for kind in handles if kind.__repr__ is object.__repr__] == []


def test_faces_are_complete():
    """Type checkers need the names written out."""
    core = importlib.import_module("jsclient.protocol.events")
    assert jsclient.events.__all__ == core.__all__
    inner = {"read_direct_message", "read_pub_ack", "read_stored_message", "user_set"}
    models = importlib.import_module("jsclient.protocol.models")
    assert set(jsclient.models.__all__) == set(models.__all__) - inner


def test_import_is_light():
    script = (
        "import sys, jsclient\n"
        "from jsclient.protocol.wire import codec\n"
        "assert not codec._kinds.cache_info().currsize, 'a model is made at import, which reads its types'\n"
        "assert 'difflib' not in sys.modules\n"
        "print(*[name for name in sys.modules if name.partition('.')[0] in {'jsclient', 'pyspark', 'pyarrow'}])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], check=True, capture_output=True, text=True, cwd=ROOT
    )
    loaded = done.stdout.split()
    assert len(loaded) <= MAX_MODULES
    assert "jsclient.protocol.consumers.stall" not in loaded
    assert {name.partition(".")[0] for name in loaded} == {"jsclient"}
    rooms = {"arrow", "peers", "server", "spark", "cli", "kits", "epochs", "testing", "doctor"}
    assert rooms.isdisjoint(name.removeprefix("jsclient.").partition(".")[0] for name in loaded)


def test_package_typed_and_version():
    assert "." in jsclient.__version__
    assert (ROOT / "jsclient/py.typed").exists()


def test_exported_class_reports_the_module_of_its_users():
    class Inner:
        number: int

    original = Inner.__module__
    set_module("jsclient.public", [Inner])
    set_module("jsclient.other", [Inner])
    assert Inner.__module__ == "jsclient.other"
    assert SOURCES.pop(Inner) == original, "documentation tools find the code there"
    assert get_type_hints(Inner) == {"number": int}
