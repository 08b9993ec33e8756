"""What Kubernetes' controllers make of the manifests in `docs/deploy`: the pods, their variables, and what follows an exit.

Sources: kubernetes.io/docs/concepts/workloads/controllers/job (Indexed, podFailurePolicy), JobSet's `jobset_controller.go`,
Kubeflow's Training Operator 1, `pkg/controller.v1/tensorflow/tensorflow.go`, and Trainer 2,
`pkg/runtime/framework/plugins/torch/torch.go`.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from typing import Any

import yaml

DEPLOY = pathlib.Path(__file__).parents[2] / "docs" / "deploy"
UID = "7f2c1f0e-0000-4000-8000-000000000001"


@dataclasses.dataclass
class Pod:
    """A pod as a controller makes it."""

    name: str  # by which others reach it
    spec: dict[str, Any]
    labels: dict[str, str]
    env: dict[str, str]

    @property
    def container(self) -> dict[str, Any]:
        [container] = self.spec["containers"]
        return container


def read_manifest(name: str) -> list[dict[str, Any]]:
    """The objects of a file in `docs/deploy`."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def object_of(name: str, kind: str) -> dict[str, Any]:
    """The only object of a kind in a file."""
    [found] = [each for each in read_manifest(name) if each["kind"] == kind]
    return found


def job_spec(manifest: dict[str, Any]) -> dict[str, Any]:
    """The spec of a Job, or of the only Job of a JobSet."""
    if manifest["kind"] == "Job":
        return manifest["spec"]
    [replicated] = manifest["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def make_pods(manifest: dict[str, Any]) -> list[Pod]:
    """All pods of a Job, a JobSet or a TFJob, with the variables of their container."""
    name = manifest["metadata"]["name"]
    if manifest["kind"] == "TFJob":
        return _tfjob_pods(name, manifest["spec"]["tfReplicaSpecs"])
    labels, job, subdomain = {}, name, job_spec(manifest)["template"]["spec"].get("subdomain")
    if manifest["kind"] == "JobSet":
        [replicated] = manifest["spec"]["replicatedJobs"]
        job, subdomain = f"{name}-{replicated['name']}-0", name
        labels = {
            "jobset.sigs.k8s.io/jobset-name": name,
            "jobset.sigs.k8s.io/jobset-uid": UID,
            "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
            "jobset.sigs.k8s.io/job-index": "0",
        }
    labels |= {
        "job-name": job,
        "batch.kubernetes.io/job-name": job,
        "batch.kubernetes.io/controller-uid": UID,
    }
    spec = job_spec(manifest)
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    pods = []
    for index in range(spec["completions"]):
        own = labels | {"batch.kubernetes.io/job-completion-index": str(index)}
        env = _evaluate(spec["template"]["spec"], own, {"JOB_COMPLETION_INDEX": str(index)})
        pods.append(Pod(f"{job}-{index}.{subdomain}", spec["template"]["spec"], own, env))
    return pods


def _tfjob_pods(name: str, replicas: dict[str, Any]) -> list[Pod]:
    """The evaluator is left out of `cluster`."""
    addresses = {
        kind.lower(): [f"{name}-{kind.lower()}-{i}.default.svc:2222" for i in range(each["replicas"])]
        for kind, each in replicas.items()
    }
    cluster = {kind: each for kind, each in addresses.items() if kind != "evaluator"}
    pods = []
    for kind, each in replicas.items():
        for index in range(each["replicas"]):
            labels = {
                "training.kubeflow.org/job-name": name,
                "training.kubeflow.org/replica-index": str(index),
            }
            task = {"type": kind.lower(), "index": index}
            config = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})}
            spec = each["template"]["spec"]
            pods.append(Pod(addresses[kind.lower()][index], spec, labels, _evaluate(spec, labels, config)))
    return pods


def make_trainjob_pods(runtime: dict[str, Any], job: dict[str, Any]) -> list[Pod]:
    """All pods of a TrainJob: its trainer changes the only job of the runtime, and the policy `torch` numbers the pods."""
    [replicated] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert (
        replicated["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"]
        == "trainer"
    )
    assert (
        job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
        and "torch" in runtime["spec"]["mlPolicy"]
    )
    name, spec = job["metadata"]["name"], replicated["template"]["spec"]["template"]["spec"]
    size = job["spec"]["trainer"]["numNodes"]
    names = [f"{name}-{replicated['name']}-0-{index}.{name}" for index in range(size)]
    pods = []
    for index, each in enumerate(names):
        given = {"JOB_COMPLETION_INDEX": str(index), "PET_NODE_RANK": str(index), "PET_NNODES": str(size)}
        given |= {"PET_MASTER_ADDR": names[0], "PET_MASTER_PORT": "29500"}
        labels = {"jobset.sigs.k8s.io/jobset-name": name}
        pods.append(Pod(each, spec, labels, _evaluate(spec, labels, given)))
    return pods


def _evaluate(spec: dict[str, Any], labels: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """The variables of the container; a label that is missing is an empty text, as for the downward API."""
    [container] = spec["containers"]
    env = dict(given)
    for entry in container.get("env", []):
        if "value" in entry:
            assert isinstance(entry["value"], str), entry
            env[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], entry["value"])
        else:
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            found = re.fullmatch(r"metadata\.labels\['([^']+)'\]", path)
            assert found, path
            env[entry["name"]] = labels.get(found[1], "")
    return env


def decide(spec: dict[str, Any], status: int, disrupted: bool = False) -> str:
    """What a Job does about a failed pod: the action of the first rule that matches, else "Count" towards `backoffLimit`."""
    for rule in spec["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes and codes["operator"] == "In" and status in codes["values"]:
            return rule["action"]
        if disrupted and any(each["type"] == "DisruptionTarget" for each in rule.get("onPodConditions", [])):
            return rule["action"]
    return "Count"
