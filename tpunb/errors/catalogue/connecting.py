"""Errors of finding, reaching and starting a TPU."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Clue, Explanation

# Cloud TPUs name their workers so. On other machines, a missing operation usually belongs to
# a package that has not been imported.
_WORKER = r"(?:t1v-)?n-[0-9a-f]{1,20}-w-\d+"
_CONNECTING_FRAMES = r"experimental_connect_to_cluster|connect_to_cluster|initialize_tpu_system"

FOR_TPU = '`%pip install "tensorflow-tpu==2.20.*" "libtpu>=0.0.14,<0.0.32"`'
"""How to install TensorFlow for a TPU. The newest libtpu, which pip prefers, ends the process."""

CONNECTING = (
    Explanation(
        "1",
        "No TPU was named",
        (r"Please provide a TPU Name to connect to",),
        "TPUClusterResolver() was called without a name, and a TPU is named neither in an "
        "environment variable nor in the machine's metadata.",
        "On Colab, Kaggle or a TPU VM: `%tpu_connect local`. Without a TPU: "
        "`%tpu_connect --simulate v5e-8`.",
        ("googlecolab/colabtools#5194", "googlecolab/colabtools#4699"),
    ),
    Explanation(
        "2",
        "COLAB_TPU_ADDR is not set",
        (r"KeyError: ['\"]COLAB_TPU_ADDR['\"]",),
        "The notebook follows a recipe for Colab's old TPU Nodes, which ended in 2024. Colab's "
        "TPUs are now part of the machine and have no address.",
        "Connect with `%tpu_connect local`, or use TPUClusterResolver(tpu='local').",
        ("googlecolab/colabtools#4481",),
    ),
    Explanation(
        "3",
        "This TensorFlow has no TPU support",
        (
            r"TPUs not found in the cluster[^\n]{0,200}(?:ConfigureDistributedTPU|TPU_SYSTEM)",
            r"is a TensorFlow server without a TPU",
            r"device:TPU_SYSTEM:0 unknown device",
            r"No OpKernel was registered to support Op '?ConfigureDistributedTPU",
            r"No registered 'ConfigureDistributedTPU' OpKernel",
            r"No TPU platform (?:found\. Platform manager status|registered)",
            r"RET_CHECK failure \([^\n]{0,200}tpu_node_interfaces\.cc",
        ),
        "TensorFlow was installed without TPU support, or the machine has no TPU. The device "
        "TPU_SYSTEM:0 proves nothing: `tensorflow-tpu` lists it on every machine.",
        f"With a TPU, `%pip uninstall -y tensorflow tensorflow-cpu`, then {FOR_TPU}; restart the "
        "kernel and run `%tpu_connect local`. Without a TPU: `%tpu_connect --simulate v5e-8`.",
        (
            "googlecolab/colabtools#5228",
            "googlecolab/colabtools#5203",
            "tensorflow/tensorflow#96203",
        ),
    ),
    Explanation(
        "4",
        "TensorFlow is not installed, or not for TPUs",
        (
            r"No module named 'tensorflow'(?!\.)",
            r"Cannot install [^\n]{0,100}tensorflow-tpu[^\n]{0,300}conflicting dependencies",
            r"No matching distribution found for (?:tensorflow-tpu|libtpu)",
        ),
        "TPU runtimes do not come with TensorFlow, and each release of `tensorflow-tpu` works only "
        "with certain versions of libtpu.",
        f"With a TPU, {FOR_TPU}, on Python 3.10 to 3.13; then restart the kernel. Without a TPU: "
        '`%pip install "tpunb[cpu]"`.',
        ("googlecolab/colabtools#5185", "googlecolab/colabtools#5164"),
    ),
    Explanation(
        "5",
        "TPUStrategy found no TPU",
        (
            Clue(
                r"\bIndexError: index 0 is out of bounds for axis 0 with size 0",
                where=r"tpu_strategy\.py",
            ),
        ),
        "TPUStrategy was made while TensorFlow saw no TPU core: the machine has none, or the TPU "
        "system has not been initialised.",
        "`%tpu_connect` initialises the TPU and makes the strategy. Without a TPU: "
        "`%tpu_connect --simulate v5e-8`.",
        ("tensorflow: tpu_strategy.py",),
    ),
    Explanation(
        "6",
        "Connecting hung",
        (
            Clue(r"\bKeyboardInterrupt\b", where=_CONNECTING_FRAMES),
            r"The TPU worker at [^\n]{1,200} does not answer",
            r"The TPU [^\n]{1,200} answered, but [^\n]{1,80} was not done in",
        ),
        "experimental_connect_to_cluster waits for ever for a worker that does not answer.",
        "Use `%tpu_connect ADDRESS`: it tries the port first and gives up after `--timeout` "
        "seconds. Check the address, and that the TPU is READY.",
        ("tensorflow/tensorflow#34564",),
    ),
    Explanation(
        "7",
        "The TPU's name cannot be looked up",
        (
            r"Could not lookup TPU metadata from name",
            r"gcloud (?:does|did) not describe the TPU",
            r"The TPU \S{1,130} cannot be looked up, because gcloud",
            r"Missing runtime dependency on the Google API client",
            Clue(
                r"\bURLError: <urlopen error [^\n]{0,60}(?:Name or service not known"
                r"|Temporary failure in name resolution|nodename nor servname)",
                where=r"tpu_cluster_resolver\.py|_request_compute_metadata",
            ),
        ),
        "Only Google Cloud knows a TPU's name: its metadata, which only its own machines can read, "
        "and gcloud. Either this is another machine, or this zone and project have no TPU of that "
        "name.",
        "Pass `local`, an address (`%tpu_connect grpc://HOST:8470`), or the full name "
        "(`%tpu_connect projects/PROJECT/locations/ZONE/nodes/NAME`).",
        ("tensorflow: tpu/client/client.py",),
    ),
    Explanation(
        "8",
        "The TPU worker is not ready",
        (
            r"TPU (?:worker may not|might not) be ready",
            r"TPU \"[^\n]{1,200}\" is not yet ready; state: ",
            r"The TPU \S{1,130} is (?:[A-Z_]{5,30}|READY and not healthy)\b[:. ]",
            Clue(
                r"\bRetrying \(\d+/\d+\)", where=r"[Tt]ensor[Ff]low master|TPU system|tpu_\w+\.py"
            ),
        ),
        "The worker is still starting, or its address is wrong.",
        "Wait until the TPU is READY (`gcloud compute tpus tpu-vm list`), or stop and start it. "
        "Then connect again.",
        ("https://cloud.google.com/tpu/docs/troubleshooting/trouble-tf",),
    ),
    Explanation(
        "9",
        "The TPU is in use",
        (
            r"TPU is already in use by",
            r"libtpu multi-process lockfile",
            r"libtpu\.so already in used? ",
            r"libtpu\.so is already in use",
            r"\bopen\(/dev/(?:vfio/|accel)\d+\): Device or resource busy",
            r"Couldn't open iommu group /dev/vfio/\d+",
        ),
        "Only one process can hold a TPU. Another kernel has it, or a dead process left its lock.",
        "Shut down the other kernel: `sudo lsof -w /dev/accel* /dev/vfio/*` and `%tpu_doctor` name "
        "it. If no process holds the TPU, run `sudo rm -f /tmp/libtpu_lockfile`; in a container, "
        "restart the container.",
        ("jax-ml/jax#10192", "tensorflow/tensorflow#61293", "google/gvisor#11545"),
    ),
    Explanation(
        "10",
        "The TPU runs another version of TensorFlow",
        (
            r"nor a name of a function registered in binary running on " + _WORKER,
            r"Op type not registered '\w+' in binary running on " + _WORKER,
            r"and the TPU runs [^\n]{1,200}: the versions have to be equal",
            r"NodeDef expected inputs 'string' do not match 0 inputs specified",
        ),
        "The notebook's TensorFlow sends operations that the TPU's runtime does not know, because "
        "their versions differ.",
        "Use equal versions: install the TensorFlow version of the TPU's runtime, or create the "
        "TPU with a runtime of your TensorFlow version.",
        (
            "tensorflow/tensorflow#40622",
            "tensorflow/tensorflow#34391",
            "tensorflow/tensorflow#41075",
        ),
    ),
    Explanation(
        "11",
        "The TPU system was initialised again",
        (r"TPU system [^\n]{0,200} has already been initialized",),
        "The cell that initialises the TPU ran twice. Everything on the TPU, its variables above "
        "all, may be lost.",
        "Make the strategy, the model and the optimizer again. `%tpu_connect` keeps the connection "
        "when it runs twice.",
        ("tensorflow/tensorflow#36996", "tensorflow/tpu#766"),
        rank=2,
    ),
    Explanation(
        "47",
        "libtpu is too new for this TensorFlow",
        (
            r"tpu_\w{1,40}_fns\.inc:\d+\] \w{1,100} not available in this library",
            r"cannot use libtpu \S{1,40}: it ends the process",
        ),
        "`tensorflow-tpu` allows releases of libtpu that are too new for it, and pip installs the "
        "newest. Importing TensorFlow then ends the process.",
        f"For `tensorflow-tpu` 2.20, {FOR_TPU}, then restart the kernel. `%tpu_doctor` shows which "
        "pair is installed.",
        ("tensorflow: tpu_executor_init_fns.inc",),
    ),
    Explanation(
        "66",
        "The TPU's device cannot be opened",
        (
            r"\bopen\(/dev/(?:vfio/|accel)\d+\): (?:Operation not permitted|Permission denied)",
            r"Couldn't open device: /dev/accel\d+ \((?:Operation not permitted|Permission denied)",
        ),
        "The TPU's driver lets only one process open the device, and a process that was "
        "interrupted may still run and hold it. Or this user or this container may not open it.",
        "End the process that holds the device: `sudo lsof -w /dev/accel* /dev/vfio/*` names it. "
        "If there is none, `sudo reboot`. A container needs the devices: `docker run --privileged "
        "--net=host`. `ls -l /dev/accel* /dev/vfio` shows who may open them.",
        ("pytorch/xla#3947", "pytorch/xla#9604", "pytorch/xla#3165"),
    ),
    Explanation(
        "67",
        "libtpu finds no TPU",
        (r"No TPU [Pp]latform available", r"\bNo ba16c7433 device found"),
        "libtpu is installed but finds no TPU on this machine: the runtime has none, the container "
        "hides it, or this libtpu is older than the TPU's generation and does not know it.",
        "`%tpu_doctor` shows what this machine has. If it has a TPU, install a newer libtpu: "
        '`%pip install -U "jax[tpu]"` (v7x needs 0.0.42.1), or start the container with '
        "`--privileged`. Otherwise choose a runtime with a TPU, or use `%tpu_connect --simulate "
        "v5e-8`, or `JAX_PLATFORMS=cpu` for JAX.",
        ("jax-ml/jax#13260", "AI-Hypercomputer/maxdiffusion#471"),
    ),
)
