"""Build entry point; everything is declared in setup.cfg and pyproject.toml, but for the description.

What is built depends on the tree alone: files have plain modes, archives the time of SOURCE_DATE_EPOCH, and nobody's
name. The wheel has a bill of materials (PEP 770): what it asks for, and the one file in it that was compiled.
"""

import configparser
import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import time
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
JARS = ("dlspark/spark/catalog/dlspark-sql.jar", "metadata/zookeeper/dlspark-zookeeper.jar")
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(\[[^\]]*\])?\s*([^;]*)(?:;\s*(.*))?")
EPOCH = "SOURCE_DATE_EPOCH"
LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)]+)\)")


def description(readme, source=None):
    """Return the README for a package index, which shows no other file of the project.

    Links to files lead to `source`, the project's address, where there is one; else only their words are left, which
    name files of the source distribution.
    """
    if source is None:
        return LINK.sub(lambda link: link[1], readme)
    return LINK.sub(lambda link: f"[{link[1]}]({source.rstrip('/')}/blob/main/{link[2]})", readme)


def source_url():
    """Return the line "Source" of setup.cfg's project_urls; None without one."""
    settings = configparser.ConfigParser()
    settings.read(HERE / "setup.cfg", encoding="utf-8")
    lines = settings["metadata"]["project_urls"].strip().splitlines()
    urls = {name.strip(): url.strip() for name, _, url in (line.partition("=") for line in lines)}
    return urls.get("Source")


def normal(name):
    """Return a project's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def component(line, optional):
    """Return a requirement as CycloneDX has it. Its version is what was declared, not what somebody has installed."""
    name, _, versions, marker = REQUIREMENT.fullmatch(line.strip()).groups()
    properties = {"dlspark:versions": versions.strip(), "dlspark:marker": marker}
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{normal(name)}",
        "name": name,
        "scope": "optional" if optional else "required",
        "purl": f"pkg:pypi/{normal(name)}",
        "properties": [{"name": key, "value": value} for key, value in properties.items() if value],
    }


def bill_of_materials(name, version, required, extras):
    """Return the bill of materials, CycloneDX 1.6: the same for the same tree. Extras that are for work on dlspark
    itself, and those that name others, are left out."""
    found = {one["bom-ref"]: one for one in (component(line, False) for line in required)}
    for extra, lines in sorted(extras.items()):
        if extra in ("dev", "notebooks"):
            continue
        for line in lines:
            one = component(line, True)
            found.setdefault(one["bom-ref"], one)
    found.pop(f"pkg:pypi/{name}", None)
    own = f"pkg:pypi/{name}@{version}"
    jars = [
        {
            "type": "file",
            "bom-ref": jar,
            "name": jar,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256((HERE / jar).read_bytes()).hexdigest()}],
            "description": "compiled from jvm-shim/ of the source distribution",
        }
        for jar in JARS
    ]
    metadata = {
        "component": {
            "type": "library",
            "bom-ref": own,
            "name": name,
            "version": version,
            "purl": own,
            "licenses": [{"license": {"id": "Apache-2.0"}}],
        }
    }
    if os.environ.get(EPOCH):
        moment = time.gmtime(int(os.environ[EPOCH]))
        metadata["timestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", moment)
    components = [found[key] for key in sorted(found)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": metadata,
        "components": [*components, *jars],
        "dependencies": [
            {"ref": own, "dependsOn": sorted([*JARS, *found])},
            *({"ref": one["bom-ref"]} for one in [*components, *jars]),
        ],
    }


class PlainWheel(bdist_wheel):
    """Builds the wheel, with the bill of materials in it, and with modes that do not depend on who builds."""

    def egg2dist(self, egginfo_path, distinfo_path):
        """Make the folder of the metadata, by whichever way a front end asks for it."""
        super().egg2dist(egginfo_path, distinfo_path)
        distribution = self.distribution
        bill = bill_of_materials(
            distribution.get_name(),
            distribution.get_version(),
            distribution.install_requires,
            distribution.extras_require,
        )
        folder = Path(distinfo_path) / "sboms"
        folder.mkdir(exist_ok=True)
        (folder / "dlspark.cdx.json").write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")

    def write_wheelfile(self, wheelfile_base, *more, **named):
        """Write the last file; everything that goes into the wheel is there then."""
        super().write_wheelfile(wheelfile_base, *more, **named)
        for path in Path(self.bdist_dir).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


class PlainSource(sdist):
    """Builds the source distribution: members by name, of nobody, and of the time that SOURCE_DATE_EPOCH gives."""

    def make_distribution(self):
        """Make the archives, and write each anew."""
        super().make_distribution()
        for path in self.archive_files:
            if path.endswith(".tar.gz"):
                rewrite(Path(path))


def rewrite(path):
    """Write a tar.gz anew, such that its bytes depend on its files alone."""
    epoch = os.environ.get(EPOCH)
    with tarfile.open(path) as old:
        members = sorted(old.getmembers(), key=lambda one: one.name)
        contents = [old.extractfile(one).read() if one.isfile() else b"" for one in members]
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member, content in zip(members, contents, strict=True):
            made = tarfile.TarInfo(member.name)
            made.type = member.type
            made.size = len(content)
            made.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            made.mtime = int(epoch) if epoch else int(member.mtime)
            new.addfile(made, io.BytesIO(content))
    with path.open("wb") as file, gzip.GzipFile("", "wb", mtime=int(epoch or 0), fileobj=file) as packed:
        packed.write(plain.getvalue())


if __name__ == "__main__":
    setup(
        long_description=description((HERE / "README.md").read_text("utf-8"), source_url()),
        cmdclass={"bdist_wheel": PlainWheel, "sdist": PlainSource},
    )
