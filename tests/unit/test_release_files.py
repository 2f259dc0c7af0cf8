"""The files of a release: made twice they are equal, and a check finds each that is not what it is said to be."""

import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from release.__main__ import build
from release.build import BUNDLE, SIGNATURE, SUMS, describe, package, seal
from release.facts import Commit, NoRelease, commit_of, notes, refuse_another
from release.oci import UNDATED, Damaged, ImageWriter, read_layout, sha256_of
from release.sbom import packages_of_image
from release.signing import NoSuchKey
from release.verify import Release, verify

from elastic_ctr import __version__ as VERSION
from needs import needs, program

ROOT = Path(__file__).parents[2]
COMMIT = Commit("0" * 40, 1_700_000_000)
STATUS = "Package: {}\nStatus: install ok installed\nVersion: 1.2-3\nArchitecture: amd64\n"
SITE = "usr/local/lib/python3.11/site-packages"


def key_pair(folder: Path, curve: str = "prime256v1") -> tuple[Path, Path]:
    """A private and a public key, made as docs/operations/release.md does."""
    private, public = folder / f"{curve}.key", folder / f"{curve}.pub"
    made = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", f"ec_paramgen_curve:{curve}", "-out", str(private)]
    subprocess.run(made, check=True, capture_output=True)
    subprocess.run(
        ["openssl", "ec", "-in", str(private), "-pubout", "-out", str(public)], check=True, capture_output=True
    )
    return private, public


def commands(heading: str) -> list[str]:
    """Lines of the first shell block below a heading of the page for operators."""
    page = (ROOT / "docs/operations/release.md").read_text().partition(f"## {heading}\n")[2]
    [found] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[:1]
    return str(found).splitlines()


def bash(script: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    command = ["bash", "-euo", "pipefail", "-c", "\n".join(script)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def tracked(folder: Path) -> Path:
    """The files of this checkout that git knows, as `make release` extracts them from a commit."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
            target.chmod(0o755 if (ROOT / name).stat().st_mode & 0o100 else 0o644)
    return folder


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return key_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("this source is not a checkout of git")
    return tracked(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def made(source: Path, keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release without images."""
    folder = tmp_path_factory.mktemp("made") / "release"
    folder.mkdir()
    package(source, folder, VERSION, COMMIT.time)
    describe(source, folder, VERSION, COMMIT, {"base": f"sha256:{'1' * 64}"})
    seal(folder, keys[0])
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """The release, for tests that damage it."""
    return Path(shutil.copytree(made, tmp_path / "release"))


def test_a_release_passes_its_own_checks(made: Path, keys: tuple[Path, Path]) -> None:
    found = Release(made)

    assert found.check_sums() == "10 files"
    assert found.check_signature(keys[1]) == f"of SHA256SUMS by {keys[1]}"
    assert found.check_provenance() == f"4 files of commit {COMMIT.digest}"
    assert found.check_chart() == f"linted; version, appVersion and tag of its images are {VERSION}"
    assert "paddlepaddle" in (made / f"{found.wheel.name}.cdx.json").read_text()
    assert found.check_bills().startswith(f"elastic-ctr-{VERSION}.tgz: 0 packages; ")
    assert found.check_images() == "none in this release"


def test_the_source_archive_has_every_file_of_the_repository_and_makes_the_same_wheel(source: Path, made: Path) -> None:
    head = f"elastic_ctr-{VERSION}/"
    with tarfile.open(made / f"elastic_ctr-{VERSION}.tar.gz") as archive:
        files = {each.name.removeprefix(head): each for each in archive if each.isfile()}
    inside = {str(each.relative_to(source)) for each in source.rglob("*") if each.is_file()}
    made_by_packaging = {name for name in inside if name.startswith("build/") or "egg-info" in name}

    assert inside - made_by_packaging - files.keys() == set()
    assert {(each.uid, each.mtime) for each in files.values()} == {(0, COMMIT.time)}
    assert files["tools/get"].mode == 0o755
    Release(made).check_source()


# tests/contract/test_packaging.py installs such a wheel in `make test`.
@pytest.mark.nightly
def test_the_wheel_prints_its_version_in_a_fresh_environment(made: Path) -> None:
    try:
        assert Release(made).check_wheel() == f"elastic-ctr version prints {VERSION} in a fresh environment"
    except NoRelease as failed:
        if "No matching distribution" not in str(failed):
            raise
        pytest.skip(needs("a package registry", "make nightly on a machine that reaches PyPI or a mirror of it"))


# tests/unit/test_release_files.py has tests of dates and order in each kind of archive in `make test`: source above, layers below.
@pytest.mark.nightly
def test_two_builds_are_equal(made: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    again = tracked(tmp_path / "elsewhere")
    folder = tmp_path / "release"
    folder.mkdir()
    package(again, folder, VERSION, COMMIT.time)
    describe(again, folder, VERSION, COMMIT, {"base": f"sha256:{'1' * 64}"})
    seal(folder, keys[0])

    assert {each.name: sha256_of(each) for each in folder.iterdir()} == {
        each.name: sha256_of(each) for each in made.iterdir()
    }


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_changed_absent_or_added_file_is_named(copy: Path) -> None:
    found = Release(copy)
    damage(found.chart)
    with pytest.raises(NoRelease, match=rf"elastic-ctr-{VERSION}.tgz has the SHA-256"):
        found.check_sums()
    with pytest.raises(NoRelease, match=r"not that of its provenance"):
        found.check_provenance()
    (copy / "RELEASE_NOTES.md").rename(copy / "NOTES.md")
    with pytest.raises(NoRelease, match=r"NOTES.md is not in SHA256SUMS"):
        found.check_sums()
    (copy / "NOTES.md").unlink()
    with pytest.raises(NoRelease, match=r"RELEASE_NOTES.md is in SHA256SUMS, but absent"):
        found.check_sums()


def test_a_signature_is_of_these_sums_and_of_the_trusted_key(
    copy: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    found = Release(copy)
    _, other = key_pair(tmp_path)
    with pytest.raises(NoRelease, match=r"not a signature of SHA256SUMS by "):
        found.check_signature(other)
    damage(copy / SUMS)
    with pytest.raises(NoRelease, match=r"not a signature of SHA256SUMS by "):
        found.check_signature(keys[1])
    (copy / SIGNATURE).write_bytes(b"no signature")
    with pytest.raises(NoRelease, match=r"SHA256SUMS.sig is not a signature"):
        found.check_signature(keys[1])


def test_a_check_without_a_key_ends_with_what_was_not_checked(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The wheel is installed in the nightly test above.
    monkeypatch.setattr(Release, "check_wheel", lambda _: "")

    *_, last = lines = list(verify(made, None))

    assert "signature: NOT CHECKED" in lines
    assert last.startswith("The signature was NOT CHECKED, so anyone may have made these files: PUBLIC_KEY=")


@pytest.mark.parametrize("line", ["x", f"{'0' * 64}  ../release.key", f"{'0' * 64}  a\\b", f"{'0' * 64}  {SUMS}"])
def test_a_line_of_the_checksums_that_is_of_no_file_of_the_folder_is_named(copy: Path, line: str) -> None:
    with (copy / SUMS).open("a") as sums:
        sums.write(f"{line}\n")

    with pytest.raises(NoRelease, match=r"SHA256SUMS"):
        Release(copy).check_sums()


def test_two_checksums_of_a_file_are_refused(copy: Path) -> None:
    (copy / SUMS).write_text((copy / SUMS).read_text() * 2)

    with pytest.raises(NoRelease, match=r"SHA256SUMS has the line '.*, not a checksum and the name of another file"):
        Release(copy).check_sums()


def test_a_link_or_a_folder_is_no_file_of_a_release(copy: Path) -> None:
    (copy / "more").mkdir()
    with pytest.raises(NoRelease, match=r"more is not a file"):
        Release(copy).check_sums()
    (copy / "more").rmdir()
    (copy / "more").symlink_to("/etc/passwd")
    with pytest.raises(NoRelease, match=r"more is not a file"):
        Release(copy).check_sums()


def provenance(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / f"elastic-ctr-{VERSION}.intoto.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def test_a_provenance_is_of_all_files_and_of_no_other(copy: Path) -> None:
    found = Release(copy)
    provenance(copy, lambda it: it["subject"][0].update(name="../release.key"))
    with pytest.raises(NoRelease, match=r"the provenance is of \.\./release\.key, .* and the release has "):
        found.check_provenance()
    provenance(copy, lambda it: it["subject"].pop(0))
    with pytest.raises(NoRelease, match=r"the provenance is of .* and the release has "):
        found.check_provenance()


def test_a_document_of_another_form_ends_the_check_with_a_sentence(copy: Path) -> None:
    (copy / f"elastic-ctr-{VERSION}.intoto.json").write_text("[]")
    for each in (SUMS, SIGNATURE, BUNDLE):
        (copy / each).unlink()
    seal(copy, None)

    with pytest.raises(NoRelease, match=r"provenance: a file is not what a release has \(TypeError: "):
        list(verify(copy, None))


def test_an_sbom_meets_its_schema(copy: Path) -> None:
    bill = copy / f"elastic-ctr-{VERSION}.tgz.cdx.json"
    bill.write_text(bill.read_text().replace('"file"', '"thing"'))

    with pytest.raises(NoRelease, match=r"tgz.cdx.json does not meet the schema of CycloneDX: 'thing' is not one of"):
        Release(copy).check_bills()


def test_an_sbom_of_another_file_is_found(copy: Path) -> None:
    shutil.copy(copy / f"elastic-ctr-{VERSION}.tgz.cdx.json", copy / f"elastic_ctr-{VERSION}.tar.gz.cdx.json")

    with pytest.raises(NoRelease, match=r"cdx.json is of another file"):
        Release(copy).check_bills()


def test_a_key_of_another_curve_is_refused(copy: Path, tmp_path: Path) -> None:
    private, public = key_pair(tmp_path, "secp384r1")

    with pytest.raises(NoSuchKey, match=r"is no key of the curve P-256"):
        seal(copy, private)
    with pytest.raises(NoSuchKey, match=r"is no key of the curve P-256"):
        Release(copy).check_signature(public)
    with pytest.raises(NoSuchKey, match=r"absent.key is no private key"):
        seal(copy, tmp_path / "absent.key")


def test_the_commands_of_the_page_make_a_key_and_verify_a_release(made: Path, tmp_path: Path) -> None:
    *keygen, make = commands("Make")
    *verify, cosign = commands("Verify")
    assert bash(keygen, tmp_path).returncode == 0
    assert make == f"make release VERSION={VERSION} KEY=release.key"
    folder = Path(shutil.copytree(made, tmp_path / "build/release"))
    for each in (SUMS, SIGNATURE, BUNDLE):
        (folder / each).unlink()
    seal(folder, tmp_path / "release.key")

    accepted = bash(verify, tmp_path)
    (tmp_path / "release.pub").write_bytes(key_pair(tmp_path)[1].read_bytes())
    refused = bash(verify[-1:], folder)

    assert (accepted.returncode, accepted.stdout.splitlines()[-1]) == (0, "Verified OK"), accepted.stderr
    assert f"{Release(made).wheel.name}: OK" in accepted.stdout
    assert "Verification failure" in refused.stdout + refused.stderr
    assert cosign.startswith("cosign verify-blob --key ")


def test_skopeo_reads_images_and_chart_as_the_page_pushes_them(made: Path, tmp_path: Path) -> None:
    program("skopeo")
    folder = Path(shutil.copytree(made, tmp_path / "build/release"))
    for name in ("cube", "trainer", "serving"):
        shutil.move(written(tmp_path, name, COMMIT.time), folder)
    push = [re.sub(r"docker://registry.example.com/[\w-]+/", "dir:", line) for line in commands("Push")]

    done = bash(push, tmp_path)

    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / f"trainer:{VERSION}").iterdir())) == len(["version", "manifest", "config", *"123"])
    [package] = (
        each
        for each in (tmp_path / f"elastic-ctr:{VERSION}").iterdir()
        if sha256_of(each) == sha256_of(Release(made).chart)
    )
    assert package.is_file()


def test_the_page_copies_the_chart_s_own_nginx_and_signs_all_that_it_pushes() -> None:
    page = (ROOT / "docs/operations/release.md").read_text()
    image = yaml.safe_load((ROOT / "charts/elastic-ctr/values.yaml").read_text())["fileServer"]["image"]
    nginx = f"{image['repository']}:{image['tag']}"

    assert f"docker://docker.io/{nginx} docker://registry.example.com/{nginx}" in page
    assert set(re.findall(r"--digestfile \"?([\w$]+)\.digest", page)) == {"$name", "chart", "nginx"}
    assert set(re.findall(r'^ *sign \S+ "?([\w$]+)"?$', page, re.MULTILINE)) == {"$name", "chart", "nginx"}


def test_cosign_accepts_the_signature_and_refuses_other_sums(copy: Path, keys: tuple[Path, Path]) -> None:
    command = [
        program("cosign"),
        "verify-blob",
        "--key",
        str(keys[1]),
        "--bundle",
        BUNDLE,
        "--insecure-ignore-tlog=true",
        SUMS,
    ]

    accepted = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    damage(copy / SUMS)
    refused = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)

    assert (accepted.returncode, "Verified OK" in accepted.stderr) == (0, True), accepted.stderr
    assert refused.returncode != 0


# Images


def layer(files: dict[str, bytes], time: int) -> bytes:
    """A tar of these files, as docker writes a layer."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.uid, entry.mode = len(content), time, 10001, 0o4755
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


BASE = layer(
    {
        "var/lib/dpkg/status": (STATUS.format("libc6") + "\n" + STATUS.format("gone").replace("install ok", "deinstall ok")).encode(),
        f"{SITE}/pip-1.dist-info/METADATA": b"Name: pip\nVersion: 1\n\n",
    },
    5,
)  # fmt: skip


def saved(file: Path, *layers: bytes, when: str, compressed: bool, title: str = "") -> Path:
    """An archive by `docker save`; those of containerd's store have compressed layers."""
    given = {"title": title, "version": VERSION, "licenses": "Apache-2.0", "revision": COMMIT.digest}
    labels = {f"org.opencontainers.image.{key}": text for key, text in given.items()}
    config = {
        "architecture": "amd64", "os": "linux", "created": when, "docker_version": "20.10", "container": when,
        "config": {"Hostname": when, "Image": when, "User": "10001:10001", "Env": ["A=b"], "Cmd": None, "Labels": labels},
        "history": [{"created": when, "created_by": "RUN"}, {"created": when, "empty_layer": True}],
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in layers]},
    }  # fmt: skip
    contents = {
        f"{number}/layer.tar": gzip.compress(each) if compressed else each for number, each in enumerate(layers)
    }
    about = [{"Config": "x.json", "RepoTags": ["x:1"], "Layers": list(contents)}]
    contents |= {"x.json": json.dumps(config).encode(), "manifest.json": json.dumps(about).encode()}
    file.write_bytes(layer(contents, 1))
    return file


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def written(tmp_path: Path, name: str, time: int, title: str = "") -> Path:
    """The layout of an image whose files were made at `time`, except one that the build has dated."""
    upper = layer(
        {f"{SITE}/.wh.pip-1.dist-info": b"", f"{SITE}/app-2.dist-info/METADATA": b"Name: App_x\nVersion: 2\n\n"}, time
    )
    dated = layer({"opt/app.py": b"1"}, COMMIT.time)
    work = tmp_path / name
    work.mkdir()
    target = tmp_path / f"elastic-ctr-{name}-{VERSION}-amd64.oci.tar"
    writer = ImageWriter(work, [digest_of(BASE)], COMMIT.time)
    writer.write(
        saved(
            work / "saved",
            BASE,
            upper,
            dated,
            when=f"2023-11-15T01:02:{time % 60:02}Z",
            compressed=name == "trainer",
            title=title,
        ),
        target,
        VERSION,
    )
    return target


def test_images_that_were_built_at_different_times_by_different_dockers_are_equal(tmp_path: Path) -> None:
    first, second = written(tmp_path, "cube", COMMIT.time + 7), written(tmp_path, "trainer", COMMIT.time + 19)

    assert first.read_bytes() == second.read_bytes()


def test_the_layers_of_the_base_stay_and_files_keep_owner_mode_and_the_time_of_the_commit(tmp_path: Path) -> None:
    layout = read_layout(written(tmp_path, "cube", COMMIT.time + 7))

    with layout.contents() as layers:
        base, *ours = [each.read() for each in layers]
    entries = [entry for each in ours for entry in tarfile.open(fileobj=io.BytesIO(each))]  # noqa: SIM115
    assert base == BASE
    assert [each.mtime for each in entries] == [UNDATED, UNDATED, COMMIT.time]
    assert {(each.uid, each.mode) for each in entries} == {(10001, 0o4755)}
    assert layout.config["config"].keys() == {"User", "Env", "Labels"}


def test_the_sbom_of_an_image_has_what_a_container_sees(tmp_path: Path) -> None:
    with read_layout(written(tmp_path, "cube", COMMIT.time + 7)).contents() as layers:
        found = [str(each) for each in packages_of_image(layers)]

    assert found == ["pkg:deb/debian/libc6@1.2-3?arch=amd64", "pkg:pypi/app-x@2"]


def test_a_release_with_images_is_checked_with_them(copy: Path, source: Path, tmp_path: Path) -> None:
    for each in copy.iterdir():
        if each.suffix in (".json", ".md", ".sig") or each.name == SUMS:
            each.unlink()
    for name in ("cube", "trainer", "serving"):
        shutil.move(written(tmp_path, name, COMMIT.time, f"elastic-ctr {name}"), copy)
    describe(source, copy, VERSION, COMMIT, {"base": digest_of(BASE)})
    found = Release(copy)

    assert found.check_images() == f"3 of tag {VERSION}"
    assert f"elastic-ctr-cube-{VERSION}-amd64.oci.tar: 2 packages" in found.check_bills()
    bill = copy / f"elastic-ctr-cube-{VERSION}-amd64.oci.tar.cdx.json"
    bill.write_text(bill.read_text().replace("pkg:pypi/app-x@2", "pkg:pypi/app-x@3"))
    with pytest.raises(NoRelease, match=r"the image differ: pkg:pypi/app-x@2, pkg:pypi/app-x@3"):
        found.check_bills()
    provenance(
        copy, lambda it: it["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"].update(gitCommit="1")
    )
    with pytest.raises(NoRelease, match=rf"-cube-.* {COMMIT.digest}; its commit is 1"):
        found.check_images()
    cube, serving, _ = found.images
    shutil.copy(serving, cube)
    with pytest.raises(NoRelease, match=r"-cube-.* has tag, title, .* elastic-ctr serving, "):
        found.check_images()
    cube.rename(copy / f"elastic-ctr-serving-{VERSION}-arm64.oci.tar")
    with pytest.raises(NoRelease, match=r"there are images "):
        Release(copy).check_images()


def test_a_layout_with_a_changed_or_absent_blob_is_damaged(tmp_path: Path) -> None:
    file = written(tmp_path, "cube", COMMIT.time)
    with tarfile.open(file) as archive:
        blobs: dict[str, bytes] = {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
    largest = max(blobs, key=lambda name: len(blobs[name]))

    file.write_bytes(layer({**blobs, largest: blobs[largest][:-1] + b"x"}, 1))
    with pytest.raises(Damaged, match=r"is sha256:"):
        read_layout(file)
    del blobs[largest]
    file.write_bytes(layer(blobs, 1))
    with pytest.raises(Damaged, match=r"has no sha256:"):
        read_layout(file)


# Before a release is made


def test_another_version_than_that_of_the_source_is_refused_with_every_place_that_has_it() -> None:
    with pytest.raises(
        NoRelease, match=r"VERSION=9.9.9 is not that of this source: .*__init__.py has .*CITATION.cff has"
    ):
        refuse_another(ROOT, "9.9.9")
    refuse_another(ROOT, VERSION)


def test_the_notes_are_the_section_of_the_version_or_of_what_is_unreleased() -> None:
    text = "# Changelog\n\n## Unreleased\n\nnew\n\n## 0.2.0 (2026-01-02)\n\n- two\n\n### Part\n\n## 0.1.0\n\n- one\n"

    assert notes(text, "0.2.0") == "# elastic-ctr 0.2.0\n\n- two\n\n### Part\n"
    assert notes(text, "0.1.0") == "# elastic-ctr 0.1.0\n\n- one\n"
    assert notes(text, "0.3.0") == "# elastic-ctr 0.3.0\n\nnew\n"
    with pytest.raises(NoRelease, match=r"no section 0.1.0"):
        notes("# Changelog\n", "0.1.0")


def test_a_key_that_cannot_sign_is_refused_before_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("release.__main__.commit_of", lambda _: pytest.fail("it has begun"))

    with pytest.raises(NoSuchKey, match=r"absent.key is no private key"):
        build(VERSION, tmp_path / "absent.key", None)


def test_a_work_tree_with_changes_is_refused(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        author: Any = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", "-C", str(tmp_path), *author, *words], check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "one")
    assert len(commit_of(tmp_path).digest) == 40
    (tmp_path / "new").touch()
    with pytest.raises(NoRelease, match=r"differs from HEAD \(\?\? new\)"):
        commit_of(tmp_path)
