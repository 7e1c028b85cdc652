"""Writes a small installable environment package that trains as it stands; what ``winnowrl env new`` does."""

from __future__ import annotations

import json
import keyword
import random
import re
import sys
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
        ValueError: a name that no Python package can have, or a folder that is there already.
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
    taken = module in sys.stdlib_module_names or module in ("winnowrl", "gymnasium", "torch", "tests")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module) or taken:
        why = "the name of another package" if taken else "no name of a Python package"
        raise ValueError(f"NAME is {name!r}, {why}; allowed: letters, digits and _, e.g. word_sorting")
    return module


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
