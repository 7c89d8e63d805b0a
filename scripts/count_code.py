"""Count the product's lines of code: without docstrings, comments and blank lines.

`python scripts/count_code.py` prints the count of each room and fails when the product is larger than its bound, which
stands in `scripts/code_bound.txt`. `--set` makes today's count the bound, `--modules` lists the modules under 40 lines.

The bound keeps a redraw honest: folders, names and fewer modules shall not cost more code than there was. It is the
count of the tree on which the redraw began, so that who needs more lines in one place finds them in another.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOUND = Path("scripts", "code_bound.txt")
NOT_PRODUCT = {"tests", "benchmarks", "scripts", "migrations", "fake_stripe", "simulation"}
SMALL = 40
"""A module with fewer lines of code than this is small. `__init__.py` without code is none."""

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def rooms(root: Path) -> list[Path]:
    """The product's rooms: the packages at the root that are none of NOT_PRODUCT."""
    packages = sorted(path.parent for path in root.glob("*/__init__.py"))
    return [package for package in packages if package.name not in NOT_PRODUCT]


def product_modules(root: Path) -> Iterator[Path]:
    """Every module of the product, by room and path."""
    for room in rooms(root):
        yield from sorted(room.rglob("*.py"))


def kernel_sources(root: Path) -> Iterator[Path]:
    """Every file of CUDA C++ of the product, by room and path."""
    for room in rooms(root):
        yield from sorted([*room.rglob("*.cu"), *room.rglob("*.cuh")])


def count_kernel(source: str) -> int:
    """The lines of CUDA C++ that are neither blank nor a comment."""
    lines = map(str.strip, source.splitlines())
    return sum(bool(line) and not line.startswith("//") for line in lines)


def count(source: str) -> int:
    """The lines that hold code: some token that is neither a comment nor part of a docstring.

    A docstring is any string that stands alone as a statement, so those below attributes are docstrings too.
    """
    docstrings = _docstrings(ast.parse(source))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        first, last = token.start[0], token.end[0]
        if token.type in _NO_CODE:
            continue
        if token.type != tokenize.STRING or not any(start <= first and last <= end for start, end in docstrings):
            lines.update(range(first, last + 1))
    return len(lines)


def _docstrings(tree: ast.Module) -> list[tuple[int, int]]:
    """The first and last line of each docstring."""
    return [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print the counts; 1 if the product is larger than its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="store_true", help="make today's count the bound")
    parser.add_argument("--modules", action="store_true", help=f"list the modules under {SMALL} lines of code")
    options = parser.parse_args(arguments)
    counts = {path: count(path.read_text()) for path in product_modules(root)}
    kernels = {path: count_kernel(path.read_text()) for path in kernel_sources(root)}
    small = {path: lines for path, lines in counts.items() if lines < SMALL and (lines or path.name != "__init__.py")}
    if options.modules:
        for path, lines in sorted(small.items(), key=lambda item: (item[1], item[0])):
            print(f"{lines:7,} {path.relative_to(root).as_posix()}")
        return 0
    counts |= kernels
    for room in rooms(root):
        print(f"{sum(lines for path, lines in counts.items() if room in path.parents):7,} {room.name}")
    total = sum(counts.values())
    print(f"{total:7,} in all; {len(small)} modules have under {SMALL} lines of code")
    if options.set:
        (root / BOUND).write_text(f"{total}\n")
        return 0
    bound = int((root / BOUND).read_text())
    if total > bound:
        print(f"the product has {total - bound} lines of code more than its bound of {bound:,}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
