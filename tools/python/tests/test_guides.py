"""The guides' code runs, and its checks hold."""

import re

import pytest
from conftest import PACKAGE

GUIDES = sorted(p for p in (PACKAGE / "guides").glob("*.md") if p.name != "README.md")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda p: p.stem)
def test_guide(guide):
    blocks = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.DOTALL | re.MULTILINE)
    assert any("assert" in block for block in blocks), "a guide shows how to check"
    program = "\n".join(blocks)
    exec(compile(program, str(guide), "exec"), {"__name__": guide.stem})


def test_the_readme_lists_every_guide():
    text = (PACKAGE / "guides" / "README.md").read_text()
    assert all(f"({guide.name})" in text for guide in GUIDES)
