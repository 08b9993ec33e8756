"""Google Cloud Storage and Azure, as their emulators answer on loopback: a killed run is resumed with the same bits."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time

import pytest
from clusters.test_s3 import run, same

from unisono.distribute.workers.addresses import free_ports, listens

pytestmark = [pytest.mark.long, pytest.mark.clusters, pytest.mark.process]
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's own
CONTAINER = "import sys, adlfs; adlfs.AzureBlobFileSystem(connection_string=sys.argv[1]).mkdir('bucket')"


def needs(*modules, program=None):
    for name in modules:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}: pip install {name.replace('_', '-')}")
    if program and shutil.which(program) is None:
        pytest.skip(f"needs {program} (npm install azurite)")


def google(port):
    needs("gcsfs", "gcp_storage_emulator")
    words = ["start", f"--port={port}", "--host=127.0.0.1", "--in-memory", "--default-bucket=bucket"]
    command = [sys.executable, "-c", "from gcp_storage_emulator.__main__ import main; main()", *words]
    return command, {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}", "GOOGLE_CLOUD_PROJECT": "test"}


def azure(port):
    needs("adlfs", program="azurite-blob")
    words = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    place = f"http://127.0.0.1:{port}/devstoreaccount1"
    options = f"AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint={place};"
    command = ["azurite-blob", "--blobHost", "127.0.0.1", "--blobPort", str(port), *words]
    return command, {"AZURE_STORAGE_CONNECTION_STRING": f"DefaultEndpointsProtocol=http;{options}"}


@pytest.mark.parametrize("scheme, emulator", [("gs", google), ("az", azure)])
def test_killed_run_ends_with_the_same_bits(scheme, emulator, tmp_path):
    [port] = free_ports(1)
    command, variables = emulator(port)
    environment = {**os.environ, **variables}
    with contextlib.ExitStack() as stack:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = stack.enter_context(subprocess.Popen(command, cwd=tmp_path, **quiet))
        stack.callback(server.kill)
        while not listens(f"127.0.0.1:{port}", 1.0):
            assert server.poll() is None
            time.sleep(0.1)
        if scheme == "az":
            connection = variables["AZURE_STORAGE_CONNECTION_STRING"]
            subprocess.run([sys.executable, "-c", CONTAINER, connection], check=True)
        ended, reference = run(tmp_path, environment, f"{scheme}://bucket/whole")
        assert reference is not None, ended.stderr
        url = f"{scheme}://bucket/killed"
        ended, none = run(tmp_path, environment, url, kill_at=13)
        assert ended.returncode != 0 and none is None
        ended, resumed = run(tmp_path, environment, url)
        assert resumed is not None, ended.stderr
        assert f"Resuming from {url}/backup/backup-" in ended.stdout and same(resumed, reference)
        ended, none = run(tmp_path, environment, f"{scheme}://no-such-bucket/run")
        assert none is None and f"The store failed at {scheme}://no-such-bucket/run" in ended.stderr
        assert KEY not in ended.stdout + ended.stderr
