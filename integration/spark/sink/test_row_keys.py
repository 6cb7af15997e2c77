"""The hashes that distinguish rows, as columns of Arrow."""

from __future__ import annotations

from array import array
from hashlib import blake2b

import pyarrow as pa
import pytest

from jsclient.spark.sink.row_keys import RowKeys, digest, hash_column, id_hash


@pytest.mark.parametrize("size", [4, 8, 16])
def test_digest_has_its_size_and_tells_apart(size: int) -> None:
    hashes = {digest(b"%d" % number, size) for number in range(1000)}
    assert {len(one) for one in hashes} == {size}
    assert len(hashes) == 1000
    assert digest(b"a", size) == blake2b(b"a", digest_size=size).digest()


def test_hash_of_an_id_is_its_digest_as_a_number() -> None:
    assert array("Q", [id_hash(b"id")]).tobytes() == digest(b"id", 8)


def test_columns_share_the_memory_of_the_hashes() -> None:
    keys = RowKeys(array("Q", [1, 2**64 - 1]), array("I", [3, 4]), array("I", [5, 6]))
    columns = keys.columns()
    assert [column.to_pylist() for column in columns] == [[1, 2**64 - 1], [3, 4], [5, 6]]
    assert [column.type for column in columns] == [pa.uint64(), pa.uint32(), pa.uint32()]
    assert columns[0].buffers()[1].address == keys.ids.buffer_info()[0]


def test_no_rows_are_empty_columns() -> None:
    assert [len(column) for column in RowKeys().columns()] == [0, 0, 0]
    assert hash_column(pa.uint32(), array("I")).to_pylist() == []
