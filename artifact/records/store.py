"""Runs on disk, keyed by what determines them, so that notebooks share runs and an interrupted sweep resumes."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifact.records.schema import Records


class RunStore:
    """A folder of saved runs. A run appears whole or not at all, also when two processes write the same one."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @staticmethod
    def key(determinants: Mapping[str, Any]) -> str:
        """Hash of everything that determines a run (scenario, calibration, code version)."""
        text = json.dumps(determinants, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def path(self, key: str) -> Path:
        return self.root / key[:2] / key

    def get(self, key: str) -> Records | None:
        folder = self.path(key)
        return Records.load(folder) if folder.is_dir() else None

    def put(self, key: str, records: Records) -> None:
        folder = self.path(key)
        draft = folder.with_name(f"{key}.{os.getpid()}.tmp")
        records.save(draft)
        try:
            draft.rename(folder)
        except OSError:  # another process finished the same run first
            shutil.rmtree(draft)
