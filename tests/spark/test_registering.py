"""The changes that registration makes to the environment that a classic session shares with other functions."""

from __future__ import annotations

import uuid

import pytest

from jsclient.spark.registering import register_once

ADDED = {"SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME"}


class Source:
    @classmethod
    def name(cls):
        return "fake"


class Registration:
    def __init__(self, context, error=None):
        self.context, self.error, self.seen = context, error, []

    def register(self, source):
        self.seen.append(None if self.context is None else dict(self.context.environment))
        if self.error:
            raise self.error


class Context:
    def __init__(self, environment):
        self.environment = environment


class JavaSession:
    def __init__(self):
        self._uuid = uuid.uuid4()  # not the address, which the session of another test may have had

    def sessionUUID(self):  # noqa: N802  Spark's name
        return str(self._uuid)


class Classic:
    def __init__(self, environment, error=None):
        self._jsparkSession = JavaSession()
        self.sparkContext = Context(environment)
        self.dataSource = Registration(self.sparkContext, error)


class Connect:
    session_id = "connect-1"

    def __init__(self):
        self.dataSource = Registration(None)

    @property
    def sparkContext(self):  # noqa: N802  Spark's name
        raise AttributeError("[JVM_ATTRIBUTE_NOT_SUPPORTED]")


def test_session_keeps_environment():
    own = {"PYTHONHASHSEED": "0", "SPARK_BUFFER_SIZE": "4096"}
    spark = Classic(own)
    register_once(spark, Source)
    (seen,) = spark.dataSource.seen
    assert set(seen) == ADDED | {"PYTHONHASHSEED"}
    assert seen["SPARK_BUFFER_SIZE"] == "4096", "what the user has set is kept"
    assert spark.sparkContext.environment is own
    assert own == {"PYTHONHASHSEED": "0", "SPARK_BUFFER_SIZE": "4096"}
    register_once(spark, Source)
    assert len(spark.dataSource.seen) == 1


def test_failed_registration_restores():
    own = {"PYTHONHASHSEED": "0"}
    spark = Classic(own, RuntimeError("refused"))
    with pytest.raises(RuntimeError):
        register_once(spark, Source)
    assert spark.sparkContext.environment is own


def test_connect_session_as_is():
    spark = Connect()
    register_once(spark, Source)
    assert spark.dataSource.seen == [None]
