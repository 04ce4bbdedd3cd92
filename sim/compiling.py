"""Compile the simulator's hot modules: `python -m sim.compiling`, as `make setup` does."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from sim.compiled import LIBRARY, ROOT, SOURCES, folder

CONFIGURATION = """\
[mypy]
follow_imports = skip
ignore_missing_imports = true
[mypy-mypy_extensions]
follow_imports = normal
"""
"""Types of other modules are not looked up: they are interpreted in any case, and `make lint` has checked them."""


def build(target: Path) -> None:
    """Compile into a folder, which appears when it is complete.

    Raises `ImportError` without mypyc and `RuntimeError` without a working C compiler.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.errors import BaseError, CCompilerError

    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as scratch:
        configuration = Path(scratch, "mypy.ini")
        configuration.write_text(CONFIGURATION)
        options = [f"--config-file={configuration}", f"--cache-dir={scratch}/cache"]
        modules = mypycify([*options, *SOURCES], debug_level="0", target_dir=f"{scratch}/c", group_name=LIBRARY)
        command = Distribution({"name": LIBRARY, "ext_modules": modules}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = f"{scratch}/lib", f"{scratch}/temp"
        command.ensure_finalized()
        try:
            command.run()
        except (BaseError, CCompilerError) as why:
            raise RuntimeError(str(why)) from why
        os.replace(f"{scratch}/lib", target)


def main() -> None:
    """Compile unless it is done; without mypyc or a C compiler say so and leave the simulator interpreted."""
    os.chdir(ROOT)  # mypyc takes modules' names from relative paths
    target = folder()
    if target.is_dir():
        return
    print("Compiling the simulator (half a minute) ...", flush=True)
    try:
        build(target)
    except (ImportError, RuntimeError) as why:
        print(f"Not compiled: {why}. Results are the same, in about twice the time; a C compiler such as gcc helps.")


if __name__ == "__main__":
    main()
