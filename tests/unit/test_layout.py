"""The traps of a source folder that is called build/, and the rules that no linter holds."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGES = ("build", "model_repo", "runner", "tools")
TOP_LEVEL = {
    *PACKAGES,
    *("tests", "docker", ".ci", ".github"),
    *(
        "pyproject.toml",
        "constraints.txt",
        "Makefile",
        ".gitattributes",
        ".gitignore",
        ".dockerignore",
        ".pre-commit-config.yaml",
    ),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
}
HEAVY = {
    *("torch", "tensorrt_llm", "modelopt", "optimum", "nncf", "gguf", "numpy", "ray", "pynvml"),
    *("openvino", "openvino_genai", "openvino_tokenizers", "transformers", "tritonclient", "grpc"),
}
SCRIPT_FOLDERS = {"templates", "workers"}  # run by other interpreters, shipped as data
MAX_MODULE_LINES = 350  # "about 300": past this it is two modules
# assembled, so that this file does not find itself
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("deb", "debian", "org"),
        ("anaconda", "org"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
    )
]
# the images' own user may have a home; nobody else's stands in a file
HOME_PATH = re.compile(r"(?<![\w.])/" + r"(?:(?:home|Users)/(?!trtb\b)\w|root/\w)")

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="these are the rules of a checkout, and this is none"
)


def project_files() -> list[str]:
    """Return what is in the repository or would be added to it, relative to the root."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files are the project's")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    names = listing.stdout.decode().split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def importable_modules() -> list[Path]:
    return [path for path in modules() if not SCRIPT_FOLDERS & set(path.relative_to(ROOT).parts)]


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("trtb", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_package_list_names_every_folder_with_an_init() -> None:
    folders = {dotted(path) for path in importable_modules() if path.name == "__init__.py"}
    assert sorted(pyproject()["tool"]["setuptools"]["packages"]) == sorted(folders)


def test_every_folder_with_modules_is_a_package() -> None:
    bare = {path.parent for path in importable_modules() if not (path.parent / "__init__.py").is_file()}
    assert not bare


def test_each_top_package_is_typed() -> None:
    assert all((ROOT / package / "py.typed").is_file() for package in PACKAGES)


def test_nothing_unexpected_stands_at_the_root() -> None:
    found = {Path(name).parts[0] for name in project_files()}
    assert found <= TOP_LEVEL, f"{found - TOP_LEVEL}: belongs in one of the packages, or in TOP_LEVEL"


def test_no_python_file_stands_at_the_root() -> None:
    assert not list(ROOT.glob("*.py"))


def test_no_test_folder_is_called_build() -> None:
    assert not [path for path in (ROOT / "tests").rglob("build") if path.is_dir()], "pytest skips it silently"


def test_building_never_writes_into_the_source_package() -> None:
    assert pyproject()["tool"]["distutils"]["build"]["build-base"].startswith(".scratch/")
    assert not (ROOT / "build" / "lib").exists()
    assert not list((ROOT / "build").glob("bdist*"))


def test_importing_the_command_line_loads_no_heavy_library() -> None:
    code = "import json, sys, trtb.tools.cli; print(json.dumps([name.split('.')[0] for name in sys.modules]))"
    child = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=sys.prefix,  # in the checkout, `build` would be found twice
    )
    assert child.returncode == 0, child.stderr
    assert not HEAVY & set(json.loads(child.stdout))


@pytest.mark.parametrize("path", importable_modules(), ids=dotted)
def test_doctests_hold(path: Path) -> None:
    if ">>>" not in path.read_text(encoding="utf-8"):
        return  # a backend without examples would load its library for nothing
    results = doctest.testmod(importlib.import_module(dotted(path)))
    assert results.attempted
    assert not results.failed


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_says_its_responsibility_and_stays_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    first_line = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    assert first_line.endswith("."), "the docstring's first line is one sentence"
    num_lines = text.count("\n")
    assert num_lines <= MAX_MODULE_LINES, f"{num_lines} lines; expected about 300: split it"


def test_no_file_names_a_machine_or_a_package_registry() -> None:
    found = []
    for name in project_files():
        text = (ROOT / name).read_bytes().decode("utf-8", errors="replace")
        hosts = [host for host in REGISTRY_HOSTS if host in text]
        paths = [match[0] for match in HOME_PATH.finditer(text)]
        checkout = [str(ROOT)] if f"{ROOT}/" in text else []
        found += [f"{name}: {what}" for what in hosts + paths + checkout]
    assert not found


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_template_and_no_test(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in project_files():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path)]
    subprocess.run([*command, str(checkout)], check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("trtb-*.whl")

    listing = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(wheel)], check=True, capture_output=True, text=True
    )
    shipped = {line.split()[0] for line in listing.stdout.splitlines() if line.startswith("trtb/")}
    expected = {
        f"trtb/{name}" for name in project_files() if name.startswith(tuple(f"{p}/" for p in PACKAGES))
    }
    assert shipped == {name for name in expected if not name.endswith(".sh")}
    assert not (checkout / "build" / "lib").exists()
    assert not list((checkout / "build").glob("bdist*"))
