"""Dockerfiles that any docker can build, and whose images run as the chart runs them."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = sorted((ROOT / "images").glob("*/Dockerfile"))
ALL = OURS + sorted((ROOT / "tests/cluster/images").glob("*/Dockerfile"))


def steps(file: Path) -> list[str]:
    """Instructions, each on one line, without comments."""
    text = "".join(line for line in file.read_text().splitlines(keepends=True) if not line.startswith("#"))
    return [step for step in text.replace("\\\n", " ").splitlines() if step.strip()]


def ids(file: Path) -> str:
    return str(file.parent.relative_to(ROOT))


def test_there_is_one_for_each_image() -> None:
    assert [file.parent.name for file in OURS] == ["cube", "serving", "trainer"]


@pytest.mark.parametrize("file", ALL, ids=ids)
def test_nothing_needs_buildkit(file: Path) -> None:
    for step in steps(file):
        assert not re.match(r"RUN\s+--|(COPY|ADD)\s.*--(chmod|link)|.*<<", step), step


@pytest.mark.parametrize("file", ALL, ids=ids)
def test_every_base_is_a_build_argument_with_a_tag(file: Path) -> None:
    bases = dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", file.read_text(), re.MULTILINE))
    stages = re.findall(r" AS (\w+)$", file.read_text(), re.MULTILINE)

    for step in steps(file):
        if step.startswith("FROM"):
            base = step.split()[1]
            # `scratch` is empty, and has no tag.
            assert base in {f"${{{name}}}" for name in bases} or base in (*stages, "scratch"), step
    assert all(re.fullmatch(r"[\w./-]+:(?!latest)[\w.-]+", base) for base in bases.values())


@pytest.mark.parametrize("file", ALL, ids=ids)
def test_nothing_runs_as_root(file: Path) -> None:
    users = [step.split()[1] for step in steps(file) if step.startswith("USER")]

    assert users[-1:] == ["10001:10001"] or "TRAINER_IMAGE" in file.read_text()


@pytest.mark.parametrize("name", ["cube", "trainer"])
def test_packages_are_locked_with_hashes(name: str) -> None:
    lock = {"cube": "cube", "trainer": "run"}[name]
    run = next(
        step for step in steps(ROOT / "images" / name / "Dockerfile") if "steps/environment" in step and "RUN" in step
    )
    script = (ROOT / "images/steps/environment").read_text()

    assert run.split()[-1] == f"/src/requirements/{lock}.txt"
    for command in re.findall(
        r"pip (?:--python \S+ )?(?:install|wheel).*?(?=\n\S|\n\n)", script.replace("\\\n", " "), re.DOTALL
    ):
        assert "--require-hashes" in command or "--no-index" in command, command


@pytest.mark.parametrize("step", ["environment", "package"])
def test_a_step_makes_the_same_bytecode_each_time(step: str) -> None:
    [exported] = re.findall(r"^export (.*)$", (ROOT / "images/steps" / step).read_text(), re.MULTILINE)

    assert {"PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1"} <= set(exported.split())


def test_both_dockerfiles_with_an_environment_are_alike() -> None:
    cube, trainer = (set(steps(ROOT / "images" / name / "Dockerfile")) for name in ("cube", "trainer"))

    for step in cube ^ trainer:
        assert re.search(r"requirements|libgomp1|libgssapi|image\.title|CUBE_IMAGE|--from=cube", step), step


def test_a_build_of_both_makes_their_wheels_and_their_machine_code_once() -> None:
    cube, trainer = (steps(ROOT / "images" / name / "Dockerfile") for name in ("cube", "trainer"))
    bases = [step for step in trainer if step.startswith("ARG") and step not in cube]

    # docker's cache has a stage whose lines are equal down to its last one.
    assert cube[: cube.index("FROM tools AS environment")] == [
        step for step in trainer[: trainer.index("FROM tools AS environment")] if step not in bases
    ]
    assert "COPY --from=cube /opt/elastic-ctr/numba /opt/elastic-ctr/numba" in trainer


@pytest.mark.parametrize("file", OURS, ids=ids)
def test_every_file_that_a_dockerfile_copies_is_in_the_repository(file: Path) -> None:
    sources = {
        source
        for step in steps(file)
        if step.startswith("COPY") and "--from" not in step
        for source in step.split()[1:-1]
    }

    for source in sources:
        assert (ROOT / source).exists(), source
        ignored = subprocess.run(["git", "check-ignore", source], cwd=ROOT, capture_output=True, check=False)
        assert ignored.returncode != 0, f"git ignores {source}"


def test_a_build_is_sent_what_it_needs_alone() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()

    assert "*" in lines
    assert {line[1:] for line in lines if line.startswith("!")} == {
        "LICENSE", "NOTICE", "images", "pyproject.toml", "python", "README.md", "requirements/cube.txt",
        "requirements/kerberos.txt", "requirements/run.txt",
    }  # fmt: skip


def test_the_recipe_for_more_packages_in_the_documents_is_such_a_dockerfile(tmp_path: Path) -> None:
    page = (ROOT / "docs/models.md").read_text()
    [recipe] = re.findall(r"```dockerfile\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "Dockerfile"
    file.write_text(recipe)

    test_nothing_needs_buildkit(file)
    test_every_base_is_a_build_argument_with_a_tag(file)
    test_nothing_runs_as_root(file)
    # Packages come to the environment of the image, which has this Python and no pip.
    trainer = (ROOT / "images/trainer/Dockerfile").read_text()
    [python] = re.findall(r"^ARG PYTHON_IMAGE=(python:(3\.\d+)\S*)$", trainer, re.MULTILINE)
    assert f"ARG PYTHON_IMAGE={python[0]}\n" in recipe
    assert f"/opt/elastic-ctr/lib/python{python[1]}/site-packages" in recipe
    assert "pip uninstall" in trainer
    assert "--no-deps" in recipe
