"""What the demo model learns: the documentation and the source text of the running Python's standard library.

Everything is read from the library itself, and nothing of the machine may remain in it: see `betrays_machine`.
"""

from __future__ import annotations

import ast
import contextlib
import getpass
import importlib
import inspect
import io
import os
import pkgutil
import random
import re
import socket
import sys
import sysconfig
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

# Modules with effects when imported, for other systems, about to go, or too far from what a newcomer asks about.
SKIPPED_MODULES = frozenset(
    [
        "antigravity",
        "this",
        "idlelib",
        "lib2to3",
        "test",
        "turtledemo",
        "tkinter",
        "turtle",
        "distutils",
        "ensurepip",
        "msilib",
        "winreg",
        "winsound",
        "msvcrt",
        "nt",
        "posixpath",
        "ntpath",
        "genericpath",
        "nturl2path",
        "posix",
        "pydoc_data",
        "sre_compile",
        "sre_constants",
        "sre_parse",
        "encodings",
        "asynchat",
        "asyncore",
        "smtpd",
        "imp",
        "sitecustomize",
        "usercustomize",
    ]
)
SKIPPED_FOLDERS = frozenset(
    ["test", "tests", "site-packages", "dist-packages", "__pycache__", "encodings", "idle_test", "lib-dynload"]
)
EXTRA_MODULES = ("os.path",)

LONGEST_ANSWER = 320  # characters of a description
LONGEST_SOURCE = 520  # characters of a function body that the model is to complete
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|resp|approx|incl|Mr|Dr|St|No)|\b[A-Z]|\.\.)\.$")


@dataclass(frozen=True)
class Item:
    """One documented name. `owner` is what stands before the last dot, empty for a built-in."""

    name: str
    owner: str
    last: str
    kind: str  # module, function, class, method or exception
    sentence: str  # the first sentence of its docstring
    answer: str  # its first paragraph, cut at a sentence's end; begins with `sentence`
    signature: str  # such as "textwrap.dedent(text)", empty if unknown
    head: str  # source up to the body, empty if unknown or too long
    body: str  # source of the body


@dataclass(frozen=True)
class Corpus:
    """`texts` are trained on, `held_out` only measured; both are whole source files."""

    items: list[Item]
    texts: list[str]
    held_out: list[str]
    held_out_names: list[str]


def read_corpus(seed: int, only_modules: frozenset[str] | None = None) -> Corpus:
    """Reads the standard library. `only_modules` limits it to some top-level modules, for a smoke run."""
    files = _source_files(only_modules)
    held_out = _choose_held_out(files, seed)
    texts = {path: text for path in files if (text := _read_text(path))}
    held_out_names = {_dotted(path) for path in held_out}
    return Corpus(
        items=_items_of(_module_names(only_modules), held_out_names),
        texts=[text for path, text in texts.items() if path not in held_out],
        held_out=[texts[path] for path in sorted(held_out) if path in texts],
        held_out_names=[_dotted(path) for path in sorted(held_out) if path in texts],
    )


def betrays_machine(text: str) -> bool:
    """Whether the text holds an object's address, or a path or name of this machine."""
    return " at 0x" in text or any(word in text for word in _machine_words())


def first_sentence(paragraph: str) -> str:
    """The first sentence of a paragraph whose white space is already single spaces."""
    for end in re.finditer(r"[.!?][\"')\]]*(?= [A-Z`\"'(<*_0-9])", paragraph):
        candidate = paragraph[: end.end()]
        if not _ABBREVIATION.search(candidate):
            return candidate
    return paragraph


def first_paragraph(doc: str, last_name: str) -> str:
    """The docstring's first paragraph of prose on one line, or an empty string where it has none that stands alone."""
    lines = doc.strip().splitlines()
    while lines and (
        not lines[0].strip() or re.match(rf"\s*(?:[\w.]*\.)?{re.escape(last_name)}\(.*\)(\s*-+>.*)?$", lines[0])
    ):
        lines.pop(0)  # older docstrings of C functions begin with their signature
    paragraph = " ".join(" ".join(lines).split()) if not lines else " ".join(_until_blank(lines).split())
    if not re.match(r"[A-Z`\"'(@]", paragraph) or re.search(r"={3}|-{3}|>>>|::|\+--|^\W*\w+\(.*\) *(->|--)", paragraph):
        return ""
    return paragraph


def _until_blank(lines: list[str]) -> str:
    kept: list[str] = []
    for line in lines:
        if not line.strip() or re.match(r"\s*(?:[-*] |:\w|>>>|\d[.)] )", line):
            break
        kept.append(line)
    return " ".join(kept)


def _description(doc: str | None, last_name: str) -> tuple[str, str]:
    """The first sentence, and as many whole sentences of the first paragraph as fit; empty strings if unusable."""
    paragraph = first_paragraph(doc or "", last_name)
    sentence = first_sentence(paragraph)
    if not 12 <= len(sentence) <= 230 or sentence.endswith(":") or not sentence.isascii() or betrays_machine(paragraph):
        return "", ""
    answer, rest = sentence, paragraph[len(sentence) :].strip()
    while rest:
        following = first_sentence(rest)
        if len(answer) + 1 + len(following) > LONGEST_ANSWER or following.endswith(":") or not following.isascii():
            break
        answer, rest = f"{answer} {following}", rest[len(following) :].strip()
    return sentence, answer


def _machine_words() -> list[str]:
    """Paths and names that would tell where the model was trained. Short ones (`/usr`) tell nothing."""
    words = {
        sys.prefix,
        sys.base_prefix,
        sys.executable,
        os.getcwd(),
        str(Path.home()),
        socket.gethostname(),
        getpass.getuser(),
    }
    return [word for word in words if len(word) > 5 and word not in ("localhost", "/usr/local")]


def _source_files(only_modules: frozenset[str] | None) -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    chosen = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        skipped = any(part in SKIPPED_FOLDERS or part.startswith(("config-", "_sysconfigdata")) for part in parts)
        top = parts[0].removesuffix(".py")
        if not skipped and (only_modules is None or top in only_modules):
            chosen.append(path)
    return chosen


def _choose_held_out(files: list[Path], seed: int) -> set[Path]:
    """A twentieth of the files inside packages: the top-level modules, which people ask about, are always learnt."""
    root = Path(sysconfig.get_path("stdlib"))
    inside = [
        path
        for path in files
        if path.parent != root and 4_000 < path.stat().st_size < 60_000 and path.stem != "__init__"
    ]
    return set(random.Random(f"held-out-{seed}").sample(inside, -(-len(inside) // 20)))


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(sysconfig.get_path("stdlib")).with_suffix("").parts)


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
    return "" if betrays_machine(text) else text


def _module_names(only_modules: frozenset[str] | None) -> list[str]:
    tops = [
        name
        for name in sorted(sys.stdlib_module_names)
        if not name.startswith("_") and name not in SKIPPED_MODULES and (only_modules is None or name in only_modules)
    ]
    names = list(tops)
    for top in tops:
        module = _import(top)
        if module is not None and hasattr(module, "__path__"):
            names += [
                name
                for name in _submodules(module)
                if not any(p.startswith("_") or p in SKIPPED_FOLDERS for p in name.split("."))
            ]
    return names + [name for name in EXTRA_MODULES if only_modules is None or name.split(".")[0] in only_modules]


def _submodules(package: ModuleType) -> Iterator[str]:
    """Names of the package's modules, found on disk without importing them."""
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        yield info.name
        if info.ispkg and (inner := _import(info.name)) is not None:
            yield from _submodules(inner)


def _import(name: str) -> ModuleType | None:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except (Exception, SystemExit):
            return None  # a module of another system, or one whose C half was not built


def _items_of(module_names: list[str], held_out: set[str]) -> list[Item]:
    """Every documented public name, under the shortest of the names that lead to it."""
    found: dict[int, tuple[str, object]] = {}
    kept_modules: list[Item] = []
    for name in module_names:
        module = _import(name)
        if module is None or name in held_out:
            continue
        kept_modules += _module_item(name, module)
        for member, value in _public_members(name, module):
            full = member if name == "builtins" else f"{name}.{member}"
            if getattr(value, "__module__", None) in held_out:
                continue
            known = found.get(id(value))
            if known is None or _rank(full, value) < _rank(known[0], value):
                found[id(value)] = (full, value)
    items = list(kept_modules)
    for full, value in found.values():
        items += _object_items(full, value)
    return _without_ambiguous(items)


def _rank(full: str, value: object) -> tuple[bool, int, int, str]:
    """Orders the names of one object: its own name before an alias of it, then the shorter."""
    return full.rpartition(".")[2] != getattr(value, "__name__", ""), full.count("."), len(full), full


def _public_members(name: str, module: ModuleType) -> Iterator[tuple[str, object]]:
    listed = getattr(module, "__all__", None)
    top = name.split(".", maxsplit=1)[0]
    for member in sorted(set(listed) if listed is not None else vars(module)):
        value = getattr(module, member, None)
        if member.startswith("_") or not (inspect.isroutine(value) or inspect.isclass(value)):
            continue
        origin = (getattr(value, "__module__", None) or "").split(".")[0].lstrip("_")
        if listed is not None or origin in (top, "posix") or name == "builtins":
            yield member, value


def _module_item(name: str, module: ModuleType) -> list[Item]:
    sentence, answer = _description(module.__doc__, name.rpartition(".")[2])
    if not sentence:
        return []
    owner, _, last = name.rpartition(".")
    return [Item(name, owner, last, "module", sentence, answer, "", "", "")]


def _object_items(full: str, value: object) -> Iterator[Item]:
    if not inspect.isclass(value):
        yield from _item(full, "function", value)
        return
    yield from _item(full, "exception" if issubclass(value, BaseException) else "class", value)
    for member, attribute in sorted(vars(value).items()):
        target = getattr(attribute, "__func__", attribute)  # of a classmethod or staticmethod
        if not member.startswith("_") and inspect.isroutine(target) and not isinstance(attribute, type):
            yield from _item(f"{full}.{member}", "method", target)


def _item(full: str, kind: str, value: object) -> list[Item]:
    owner, _, last = full.rpartition(".")
    try:
        doc = inspect.getdoc(value) if not inspect.isclass(value) or vars(value).get("__doc__") else None  # type: ignore[arg-type]
    except Exception:
        return []
    sentence, answer = _description(doc if isinstance(doc, str) else None, last)
    if not sentence:
        return []
    head, body = _source_halves(value) if kind in ("function", "method") else ("", "")
    return [Item(full, owner, last, kind, sentence, answer, _signature(full, value), head, body)]


def _signature(full: str, value: object) -> str:
    try:
        text = f"{full}{inspect.signature(value)}"  # type: ignore[arg-type]
        text = re.sub(r"<(?:function|class|built-in function) '?([\w.]+)'?(?: at 0x[0-9a-f]+)?>", r"\1", text)
    except Exception:  # some C functions carry a signature text that Python itself cannot read
        return ""
    unusable = (
        "<" in text
        or len(text) > 260
        or not text.isascii()
        or betrays_machine(text)
        or text.endswith("(*args, **kwargs)")
    )
    return "" if unusable else text


def _source_halves(value: object) -> tuple[str, str]:
    """A function's source, cut between its signature and its body."""
    try:
        source = textwrap.dedent(inspect.getsource(value))  # type: ignore[arg-type]
        function = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return "", ""
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return "", ""
    lines = source.rstrip().splitlines()
    cut = function.body[0].lineno - 1
    head, body = "\n".join(lines[:cut]), "\n".join(lines[cut:])
    usable = (
        30 <= len(body) <= LONGEST_SOURCE and 0 < len(head) <= 240 and not betrays_machine(source) and source.isascii()
    )
    return (head, body) if usable else ("", "")


def _without_ambiguous(items: list[Item]) -> list[Item]:
    """Drops names that mean two things (also when case is ignored), and sentences that say nothing of their name."""
    names = Counter(item.name.lower() for item in items)
    sentences = Counter(item.sentence for item in items)
    return sorted(
        (item for item in items if names[item.name.lower()] == 1 and sentences[item.sentence] <= 12),
        key=lambda item: item.name,
    )
