"""The manifests in `docs/deploy`: the place of each pod, what is restarted, and the names of their fields."""

import importlib
import re
import typing

import pytest

pytest.importorskip("yaml", reason="needs PyYAML: pip install '.[docs]'")
from pods import DEPLOY, UID, decide, job_spec, make_pods, make_trainjob_pods, object_of, read_manifest

from unisono.distribute.workers import cluster
from unisono.distribute.workers.places import read_place

JOBS = {"kubernetes.yaml": "Job", "jobset.yaml": "JobSet"}
MANIFESTS = sorted(path.name for path in DEPLOY.glob("*.yaml"))


@pytest.mark.parametrize(("name", "kind"), JOBS.items())
def test_every_pod_finds_its_place(name, kind):
    pods = make_pods(object_of(name, kind))
    assert len(pods) > 1
    for index, pod in enumerate(pods):
        place = read_place(pod.env)
        assert place is not None
        assert (place.launcher, place.rank, place.size) == ("Kubernetes", index, len(pods))
        assert place.addresses == (f"{pods[0].name}:2222",)
        assert pod.env["UNISONO_RUN"] == UID, "a restart takes its own backups over at once"


def test_the_service_gives_pods_the_names_by_which_they_are_reached():
    service, pods = object_of("kubernetes.yaml", "Service"), make_pods(object_of("kubernetes.yaml", "Job"))
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    for pod in pods:
        assert service["metadata"]["name"] == pod.spec["subdomain"] == pod.name.partition(".")[2]
        assert service["spec"]["selector"].items() <= pod.labels.items()


@pytest.mark.parametrize(("name", "kind"), [*JOBS.items(), ("tfjob.yaml", "TFJob")])
def test_only_the_pods_of_a_job_reach_each_other(name, kind):
    policy = object_of(name, "NetworkPolicy")["spec"]
    selectors = [policy["podSelector"], *(each["podSelector"] for each in policy["ingress"][0]["from"])]
    for pod in make_pods(object_of(name, kind)):
        assert all(each["matchLabels"].items() <= pod.labels.items() for each in selectors)


@pytest.mark.parametrize(("name", "kind"), JOBS.items())
def test_an_error_of_the_program_ends_a_job_and_everything_else_is_tried_again(name, kind):
    spec = job_spec(object_of(name, kind))
    actions = {status: decide(spec, status) for status in (1, 2, 75, 134, 137, 143)}
    assert actions == {1: "FailJob", 2: "FailJob", 75: "Count", 134: "Count", 137: "Count", 143: "Ignore"}
    assert decide(spec, 137, disrupted=True) == decide(spec, 1, disrupted=True) == "Ignore"
    assert spec["podReplacementPolicy"] == "Failed"
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "what podFailurePolicy needs"


def test_jobset_fails_only_where_the_failure_policy_of_its_job_says_so():
    manifest = object_of("jobset.yaml", "JobSet")
    [rule] = manifest["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
    assert job_spec(manifest)["backoffLimit"] == 0, "one lost pod restarts all"


def test_tfjob_gives_workers_their_place_and_leaves_the_evaluator_alone(monkeypatch):
    *workers, evaluator = make_pods(object_of("tfjob.yaml", "TFJob"))
    for index, pod in enumerate(workers):
        monkeypatch.setenv("TF_CONFIG", pod.env["TF_CONFIG"])
        found = cluster.read_cluster()
        assert (found.task_type, found.worker_index, found.num_workers) == ("worker", index, 2)
        assert found.workers[index] == pod.name and pod.container["name"] == "tensorflow"
    monkeypatch.setenv("TF_CONFIG", evaluator.env["TF_CONFIG"])
    found = cluster.read_cluster()
    assert found is None or found.num_workers <= 1, "it takes no part in training"
    assert evaluator.container == workers[0].container
    assert "UNISONO_RUN" not in evaluator.env, "a job that is made again under its name is another run"


def test_trainjob_gives_pods_their_place_and_fails_like_the_jobset():
    runtime, job = (object_of("trainjob.yaml", kind) for kind in ("TrainingRuntime", "TrainJob"))
    pods = make_trainjob_pods(runtime, job)
    for index, pod in enumerate(pods):
        place = read_place(pod.env)
        assert place is not None
        assert (place.launcher, place.rank, place.size) == ("Kubeflow", index, 4)
        assert place.addresses == (f"{pods[0].name}:29500",)
        assert pod.container["name"] == "node", "the container that gets the variables"
    of_jobset, template = object_of("jobset.yaml", "JobSet")["spec"], runtime["spec"]["template"]["spec"]
    assert template["failurePolicy"] == of_jobset["failurePolicy"]
    (ours,), (theirs,) = (
        [each["template"]["spec"] for each in spec["replicatedJobs"]] for spec in (template, of_jobset)
    )
    for name in ("backoffLimit", "podReplacementPolicy", "podFailurePolicy"):
        assert ours[name] == theirs[name]
    policies = [object_of(name, "NetworkPolicy")["spec"] for name in ("trainjob.yaml", "jobset.yaml")]
    assert policies[0] == policies[1] and job["metadata"]["name"] == "train"


@pytest.mark.parametrize(("name", "kind"), [*JOBS.items(), ("tfjob.yaml", "TFJob")])
def test_pods_have_shared_memory_a_graceful_end_and_no_volume_that_is_not_declared(name, kind):
    for pod in make_pods(object_of(name, kind)):
        mounts = {each["name"]: each["mountPath"] for each in pod.container["volumeMounts"]}
        volumes = {each["name"]: each for each in pod.spec["volumes"]}
        assert mounts.keys() == volumes.keys()
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory" and mounts["shm"] == "/dev/shm"
        assert pod.spec["terminationGracePeriodSeconds"] == 120
        if "JOBSET_NAME" in pod.env:
            assert pod.env["BACKUP"] == "s3://your-bucket/train/backup"
        else:
            assert pod.container["workingDir"] == mounts["shared"]


# The classes that the projects' generated clients have for an object: its fields, and their types.
CLASSES = {
    "JobSet": ("kubeflow_trainer_api.models.jobset_v1alpha2_job_set", "JobsetV1alpha2JobSet"),
    "TFJob": ("kubeflow.training.models", "KubeflowOrgV1TFJob"),
    "TrainJob": ("kubeflow_trainer_api.models.trainer_v1alpha1_train_job", "TrainerV1alpha1TrainJob"),
    "TrainingRuntime": (
        "kubeflow_trainer_api.models.trainer_v1alpha1_training_runtime",
        "TrainerV1alpha1TrainingRuntime",
    ),
}


def class_of(kind):
    """The class of a kind of object; skips the test with the name of the package that is missing."""
    module, name = CLASSES.get(kind, ("kubernetes.client.models", f"V1{kind}"))
    package = {"kubeflow": "kubeflow-training", "kubernetes": "kubernetes"}.get(
        module.partition(".")[0], "kubeflow-trainer-api"
    )
    return getattr(pytest.importorskip(module, reason=f"needs {package}: pip install '.[clusters]'"), name)


def fields_of(kind):
    """The names of a class's fields in a manifest, with their types."""
    if hasattr(kind, "openapi_types"):
        return {kind.attribute_map[name]: text for name, text in kind.openapi_types.items()}
    return {field.alias or name: field.annotation for name, field in kind.model_fields.items()}


def inner_of(kind, declared):
    """The class within a declared type, or None: `list[V1Pod]` of one generator, `Optional[List[Pod]]` of the other."""
    if isinstance(declared, str):
        found = re.search(r"(\w+)[\])]*$", declared)[1]
        for module in (kind.__module__.rpartition(".")[0], "kubernetes.client.models"):
            if hasattr(importlib.import_module(module), found):
                return getattr(importlib.import_module(module), found)
        return None
    if isinstance(declared, type):
        return declared if hasattr(declared, "model_fields") else None
    return next(filter(None, (inner_of(kind, each) for each in typing.get_args(declared))), None)


def is_map(declared):
    """Whether a declared type has free names: `dict(str, str)` or `Optional[Dict[str, Quantity]]`."""
    if isinstance(declared, str):
        return declared.startswith("dict(")
    return typing.get_origin(declared) is dict or any(map(is_map, typing.get_args(declared)))


def wrong_fields(kind, value, where):
    """The fields of a manifest that its class does not know, or that have another type."""
    if isinstance(value, list):
        return [each for n, one in enumerate(value) for each in wrong_fields(kind, one, f"{where}[{n}]")]
    if not isinstance(value, dict) or kind is None:
        return []
    wrong, fields = [], fields_of(kind)
    for name, each in value.items():
        declared = fields.get(name)
        if declared is None:
            wrong.append(f"{where}.{name}")
        elif declared in ("str", "int", "bool") and type(each).__name__ != declared:
            wrong.append(f"{where}.{name}: {each!r} is no {declared}")
        else:
            parts = each.items() if is_map(declared) else [("", each)]
            inner = inner_of(kind, declared)
            wrong += [bad for key, one in parts for bad in wrong_fields(inner, one, f"{where}.{name}{key}")]
    return wrong


def faults_of(manifest):
    kind = class_of(manifest["kind"])
    faults = wrong_fields(kind, manifest, manifest["kind"])
    if hasattr(kind, "model_validate"):
        try:
            kind.model_validate(manifest)
        except ValueError as error:  # it takes a quantity only as an object of its own class
            places = [each["loc"] for each in error.errors()]
            faults += [str(each) for each in places if not {"limits", "sizeLimit"} & {*each}]
    return faults


@pytest.mark.parametrize("name", MANIFESTS)
def test_fields_of_manifests_exist_and_have_their_types(name):
    for manifest in read_manifest(name):
        assert faults_of(manifest) == []


def test_wrong_fields_are_found():
    for name, kind in (*JOBS.items(), ("tfjob.yaml", "TFJob"), ("kubernetes.yaml", "NetworkPolicy")):
        manifest = object_of(name, kind)
        manifest["spec"]["replicas_"] = 1
        assert faults_of(manifest) == [f"{kind}.spec.replicas_"]
    manifest = object_of("jobset.yaml", "JobSet")
    job_spec(manifest)["podFailurePolicy"]["rules"][1]["onExitCodes"]["code"] = 1
    job_spec(manifest)["template"]["spec"]["containers"][0]["env"][0]["value"] = 4
    faults = faults_of(manifest)
    assert any(each.endswith("rules[1].onExitCodes.code") for each in faults)
    assert any("'env', 0, 'value'" in each for each in faults)
