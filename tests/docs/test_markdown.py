from __future__ import annotations

from pathlib import Path

import pytest
from markdown_blocks import broken_links, run_blocks

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
in_every_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS]
)


@in_every_document
def test_every_python_block_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(document)


@in_every_document
def test_every_link_leads_to_a_file(document: Path):
    assert broken_links(document) == []


def test_the_readme_shows_python_and_fits_120_lines():
    text = README.read_text(encoding="utf-8")
    assert "```python" in text
    assert len(text.splitlines()) <= 120


def test_blocks_of_a_document_share_a_namespace(tmp_path: Path):
    document = tmp_path / "a.md"
    document.write_text("```python\nx = 1\n```\ntext\n```bash\nexit 1\n```\n```python\nassert x == 1\n```\n")
    assert run_blocks(document) == 2


@pytest.mark.parametrize(
    "block", ["assert 1 == 2", "no_such_name", "this is no Python", "import no_such_module"]
)
def test_a_block_that_fails_is_found(tmp_path: Path, block: str):
    document = tmp_path / "a.md"
    document.write_text(f"```python\nx = 1\n```\n\n```python\n{block}\n```\n")
    with pytest.raises((AssertionError, NameError, SyntaxError, ImportError)) as failure:
        run_blocks(document)
    assert "a.md" in str(failure.traceback[-1].path) + str(failure.value)


@pytest.mark.parametrize(
    "block",
    [
        "print(3)\n# 3",
        "print(3)\nprint(4)\n# 3\n# 4",
        "for i in range(3):\n    print(i, 'of', 3)\n# 0 ... 3\n# ...\n# 2 of 3\nx = 1",
        "print(3)  # a remark\n\n# another\nprint(4)",
    ],
)
def test_output_that_is_shown_is_compared(tmp_path: Path, block: str):
    document = tmp_path / "a.md"
    document.write_text(f"```python\n{block}\n```\n")
    assert run_blocks(document) == 1


@pytest.mark.parametrize(
    "block",
    [
        "print(3)\n# 4",
        "print(34)\n# 3",
        "print(3)\nprint(4)\n# 4\n# 3",
        "print(3)\n# 3\nprint(3 + 1)\n# 3",
        "for i in range(3):\n    print(i)\n# 0\n# 2",
    ],
)
def test_output_that_is_shown_and_not_printed_is_found(tmp_path: Path, block: str):
    document = tmp_path / "a.md"
    document.write_text(f"```python\n{block}\n```\n")
    with pytest.raises(AssertionError, match=r"a\.md:1: the block shows"):
        run_blocks(document)


def test_a_broken_link_is_found(tmp_path: Path):
    document = tmp_path / "a.md"
    document.write_text("[here](a.md) [there](b.md#part) [site](https://x.y/z) `[code](c.md)` [up](#top)")
    assert broken_links(document) == ["b.md"]
