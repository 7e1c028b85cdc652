"""Writes a small installable environment package that trains as it stands; what ``winnowrl env new`` does."""

from __future__ import annotations

import json
import keyword
import random
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path

TEMPLATES = Path(__file__).parent
# template -> path in the new package. Under src/, or a folder above of the same name would hide an editable install.
FILES = {
    "pyproject.toml.j2": "pyproject.toml",
    "README.md.j2": "README.md",
    "train.yaml.j2": "train.yaml",
    "init.py.j2": "src/{module}/__init__.py",
    "environment.py.j2": "src/{module}/environment.py",
    "test_environment.py.j2": "tests/test_environment.py",
}
RESERVED = ("winnowrl", "gymnasium", "torch", "tests")
NUM_TRAIN, NUM_EVAL, SEED = 400, 100, 0
WORDS = [
    *("stone", "river", "apple", "train", "cloud", "table", "horse", "paper", "green", "light"),
    *("music", "bread", "chair", "ocean", "tiger", "glass", "lemon", "night", "smile", "wheel"),
]


def write_package(name: str, parent: Path) -> tuple[Path, str]:
    """Write the package ``name`` into a new folder of ``parent``.

    Returns:
        The folder and the Gymnasium id of its environment.

    Raises:
        ValueError: a name that no Python package can have or that an installed one has, or a folder that is there already.
        OSError: nothing can be written there.
    """
    import jinja2

    module = _module_name(name)
    title = "".join(part.capitalize() for part in module.split("_"))
    folder = parent / module
    if folder.exists():
        raise ValueError(f"{folder} exists already; choose another name, or remove it")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    values = {"module": module, "title": title, "env_id": f"{module}/{title}-v0"}
    for template, target in FILES.items():
        path = folder / target.format(module=module)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(environment.get_template(template).render(values), encoding="utf-8")
    _write_tasks(folder / "src" / module / "tasks")
    return folder, values["env_id"]


def _module_name(name: str) -> str:
    module = re.sub(r"[-\s]+", "_", name.strip()).lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        raise ValueError(
            f"NAME is {name!r}, no name of a Python package; allowed: letters, digits and _, e.g. word_sorting"
        )
    if module in sys.stdlib_module_names or module in RESERVED:
        raise ValueError(f"NAME is {name!r}, the name of another package; choose another, e.g. word_sorting")
    if _is_installed(module):
        raise ValueError(
            f"NAME is {name!r}, the name of an installed package, which `pip install` of the new one would replace; choose "
            f"another, or uninstall that one first: pip uninstall {name.strip()}"
        )
    return module


def _is_installed(module: str) -> bool:
    """Whether a module or a distribution has this name; a package that ``env new`` wrote and pip installed counts too."""
    if module in packages_distributions():
        return True
    try:
        distribution(module)
    except PackageNotFoundError:
        spec = find_spec(module)
        # Any folder on the path, even an empty one, is found as a namespace package: it is no package that could be lost.
        return spec is not None and spec.origin is not None
    return True


def _write_tasks(folder: Path) -> None:
    """Sample tasks, all different, so that nothing held out is trained on."""
    generator = random.Random(SEED)
    triples: dict[tuple[str, ...], None] = {}
    while len(triples) < NUM_TRAIN + NUM_EVAL:
        triples[tuple(generator.sample(WORDS, 3))] = None
    rows = [
        json.dumps({"id": f"words-{number}", "prompt": " ".join(triple), "answer": triple[-1]}) + "\n"
        for number, triple in enumerate(triples)
    ]
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(rows[:NUM_TRAIN]), encoding="utf-8")
    (folder / "eval.jsonl").write_text("".join(rows[NUM_TRAIN:]), encoding="utf-8")
