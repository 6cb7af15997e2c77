"""The page about files of object stores does what it says. It needs the packages that read and write Parquet."""

from __future__ import annotations

from typing import Any

import pytest

from integration.docs.test_pages import execute, log_settings, namespace  # noqa: F401  fixtures


@pytest.mark.limit(120)
async def test_page_about_files(namespace: dict[str, Any]) -> None:  # noqa: F811  the fixture
    await execute("docs/howto/object-files.md", namespace)
