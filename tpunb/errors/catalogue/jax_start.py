"""Errors of starting JAX on a TPU, and on all hosts of a TPU."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Clue, Explanation

_HOSTS = "https://docs.jax.dev/en/latest/multi_process.html"

JAX_START = (
    Explanation(
        "74",
        "JAX finds no TPU",
        (
            r"Unknown backend: ?'tpu' requested, but no platforms that are instances of tpu",
            r"Unknown backend:? '?tpu'?\. Available backends are",
            r"Backend 'tpu' (?:is not in the list of known backends|provides no devices)",
            r"nable to initialize backend 'tpu(?:_driver)?': (?!ABORTED|module |[^\n]{0,60}PJRT)",
            r"ValueError: Unsupported TPU device kind: cpu",
        ),
        "The program asks for a TPU, and JAX sees none: this machine has none, another runtime is "
        "selected, or libtpu cannot be loaded. On a machine with a GPU, the same line in a log "
        "means nothing.",
        "Choose a runtime with a TPU; `%tpu_doctor` shows what this machine has. Without a TPU, "
        '`tpunb.compile(step, *args, tpu="v5e-8")` compiles for one, and `JAX_PLATFORMS=cpu` runs '
        "the program on this machine's processor.",
        ("jax-ml/jax#13260", "openai/grok#40"),
        rank=1,
    ),
    Explanation(
        "75",
        "JAX is installed without support for TPUs",
        (
            r"A Google TPU may be present on this machine, but either a TPU-enabled jaxlib",
            r"(?:jax\._src[\w.]{0,40}:|WARNING: ?)No GPU/TPU found, falling back to CPU",
            r"\blibtpu\.so: cannot open shared object file",
            r"JAX TPU support not installed; cannot generate TPU topology",
            r"module 'jaxlib\.xla_extension' has no attribute 'get_tpu_client'",
        ),
        "The plain package `jax` has no libtpu, so JAX runs on the processor and says little.",
        '`%pip install -U "jax[tpu]"`, then restart the kernel. It installs the libtpu that fits '
        "this JAX.",
        ("jax-ml/jax#22070", "jax-ml/jax#15273"),
        rank=1,
    ),
    Explanation(
        "76",
        "JAX was not started on all hosts of the TPU",
        (
            r"TPU backend initialization is taking more than [\d.]{1,12} seconds",
            r"Failed to get global TPU topology",
            r"Failed to establish SliceBuilder grpc channel",
        ),
        "This TPU has several hosts. JAX waits until the same program runs on each of them, and "
        "until they reach each other on ports 8470 to 8479.",
        "Start it on all hosts at once: `gcloud compute tpus tpu-vm ssh NAME --zone=ZONE "
        '--worker=all --command="python train.py"`. For one host alone, set '
        "`TPU_CHIPS_PER_PROCESS_BOUNDS=2,2,1` and `TPU_PROCESS_BOUNDS=1,1,1` before the import. A "
        "TPU with a single host says it if its image lacks the driver: create it with its type's "
        "own.",
        ("jax-ml/jax#19971", "google/gemma_pytorch#25", "pytorch/xla#9753", _HOSTS),
    ),
    Explanation(
        "145",
        "libtpu finds the chips, but cannot start them",
        (
            r"TPU\s+initialization\s+failed:\s+TPU_RET_CHECK failure",
            r"GetChip\(\w{1,9}\)->location\(\)\.index_on_host\(\) == ",
            r"Couldn't mmap: ",
        ),
        "This machine has a TPU, and finding or mapping its chips failed: they are incomplete, in "
        "another order than libtpu expects, or held. JAX then says that it cannot initialize the "
        "backend, as without a TPU.",
        "`ls /dev/accel* /dev/vfio` shows the chips: there must be as many as the TPU type has, "
        "in a container too (`--privileged`). Restart the TPU, or delete and create it: that has "
        'helped others. Then try another libtpu (`%pip install -U "jax[tpu]"`), and report the '
        "message.",
        ("jax-ml/jax#37230", "jax-ml/jax#30834", "jax-ml/jax#21761"),
    ),
    Explanation(
        "146",
        "The environment describes another TPU than this one",
        (r"Invalid --\w{1,20}_slice_builder_worker_addresses specified\. Expected \d+ worker",),
        "The variables of the environment name more or fewer processes than the TPU is to be "
        "shared by. A notebook's platform sets them for another kind of program.",
        'For one process, before the import: `os.environ.pop("TPU_PROCESS_ADDRESSES", None)`. '
        "`%tpu_doctor` shows the variables that begin with `TPU_`.",
        ("huggingface/transformers#28204", "Lightning-AI/litgpt#866"),
    ),
    Explanation(
        "147",
        "libtpu is loaded twice in one process",
        (r"TPU platform already registered for platform ",),
        "libtpu registered its hardware a second time: another import loads it again, or another "
        "package (TensorFlow for TPUs, PyTorch) brings a libtpu of its own.",
        "Restart the kernel, and call `jax.devices()` directly after `import jax`, before other "
        "imports. Keep one framework for TPUs in an environment; `%tpu_doctor` shows which are "
        "there.",
        ("AI-Hypercomputer/maxtext#20", "jax-ml/jax#15210"),
    ),
    Explanation(
        "77",
        "The hosts do not reach the coordinator of jax.distributed",
        (
            r"DEADLINE_EXCEEDED: [\s\S]{0,300}?CoordinationService/RegisterTask",
            r"Barrier timed out\. (?:Barrier_id|Id): (?:\[Init\])?PjRT_Client_Connect",
            r"Coordination service agent failed to register with the leader",
        ),
        "`jax.distributed.initialize` waits until all processes have connected to the first one. "
        "Some did not start, got another `num_processes` or address, or a firewall closes the "
        "port. Since JAX 0.8.1 the port is 8482 instead of 8476.",
        "Start all processes within five minutes, with equal `num_processes`. Open the port "
        "between the hosts, or name one that is open: "
        '`jax.distributed.initialize(coordinator_address="IP_OF_HOST_0:8476")`. A longer wait is '
        "`initialization_timeout=900`.",
        ("jax-ml/jax#35905", "ayaka14732/llama-2-jax#20", _HOSTS),
    ),
    Explanation(
        "78",
        "Another host failed or was restarted",
        (
            r"heartbeat timeout\. This indicates that the remote task has failed",
            r"[Tt]he following tasks are unhealthy \(stopped sending heartbeats\)",
            r"Terminating process because the JAX distributed service detected fatal errors",
            r"Polled an error from coordination service",
            r"Shutdown barrier in coordination service has failed",
            r"Barrier timed out\. (?:Barrier_id|Id): (?!(?:\[Init\])?PjRT_Client_Connect)",
            r"unexpectedly tried to connect with a different incarnation",
            r"ALREADY_EXISTS: Config key \S{1,100} already exists",
            r"An unexpected peer shows up in the launch group with a different launch id",
        ),
        "All hosts run one program together. Another one has crashed, was preempted, ran out of "
        "memory, or took another path through the program (`if jax.process_index() == 0:`), and "
        "the others wait in vain.",
        "Read the logs of all hosts: the first error in time is the cause. Call collectives, "
        "`jax.jit` functions and checkpoints on every host, and in the same order.",
        (_HOSTS, "marin-community/marin#1902"),
        rank=1,
    ),
    Explanation(
        "79",
        "jax.distributed.initialize came too late, or twice",
        (
            r"jax\.distributed\.initialize\(\) must be called before any JAX ",
            r"RuntimeError: (?:jax\.)?distributed\.initialize should only be called once",
        ),
        "JAX has already looked for its devices. An import that makes an array, or "
        "`jax.devices()`, is enough. In a notebook, the cell may have run twice.",
        "Call `jax.distributed.initialize()` once, directly after `import jax` and before other "
        "imports; restart the kernel first. A TPU with one host does not need it.",
        (_HOSTS,),
    ),
    Explanation(
        "141",
        "The number of devices is set after JAX has started",
        (
            r"config should be updated before backends are initialized",
            r"Attempted to set \d+ devices, but \d+ CPUs already available",
        ),
        "JAX has made its devices at the first call that needed one, and keeps them. The setting "
        "`jax_num_cpu_devices`, or the devices of a library's tests, came after that.",
        "Restart the kernel, and set it directly after `import jax`. In a notebook, "
        "`%tpu_connect --framework jax --simulate v5e-8` gives eight devices also after JAX has "
        "started.",
        ("google/flax#3232", "https://docs.jax.dev/en/latest/config_options.html"),
    ),
    Explanation(
        "80",
        "jax.distributed does not know the hosts",
        (
            r"ValueError: coordinator_address should be defined",
            r"ValueError: Number of processes must be defined",
            r"ValueError: The process id of the current process must be defined",
        ),
        "JAX finds the other hosts by itself on Cloud TPU VMs, GKE and Slurm. Here it found none "
        "of these.",
        'Pass them: `jax.distributed.initialize("IP_OF_HOST_0:8476", num_processes=4, '
        "process_id=0)`, with each host's own `process_id`. A program for one host does not call "
        "it.",
        (_HOSTS,),
    ),
    Explanation(
        "81",
        "JAX, jaxlib and libtpu do not fit each other",
        (
            r"Unexpected PJRT_\w{1,60}_Args size: expected \d+, got \d+",
            r"Mismatched PJRT plugin PJRT API version",
            r"jaxlib is version [\w.]{1,20}, but this version of jax requires",
            r"jaxlib version [\w.]{1,20} is newer than and incompatible with jax version",
            r"unregistered operation '(?:tpu|xir)\.\w{1,60}' found in dialect",
            r"Pallas TPU requires a (?:recent libtpu version|libtpu version that's at most)",
            r"error: unknown vhlo (?:type|op|attribute) code: \d+",
            r"in bytecode version \d+ produced by: StableHLO_v",
            r"module 'libtpu' has no attribute 'get_library_path'",
            r"external/org_tensorflow/\S{1,80}_fns\.inc:\d+\] \w{1,100} not available",
        ),
        "They are released together. A package that pins one of them, or a libtpu of PyTorch or "
        "TensorFlow, leaves a pair of different ages.",
        '`%pip install -U "jax[tpu]"` installs three that fit, then restart the kernel. For '
        "PyTorch or TensorFlow, install the libtpu that their release asks for, in an environment "
        "of their own. `%tpu_doctor` shows the releases.",
        ("google-deepmind/weathernext#185", "pytorch/xla#6949", "Kaggle/docker-python#1499"),
    ),
    Explanation(
        "148",
        "A program in the persistent cache that does not fit",
        (
            r"Error reading persistent compilation cache entry",
            r"Expected args to execute_sharded_on_local_devices to have \d+ shards, got",
        ),
        "JAX keeps compiled programs in a folder, and this one was compiled by another release, or "
        "for other devices than it is to run on.",
        "Empty the folder that `JAX_COMPILATION_CACHE_DIR` names, or use another one for each "
        "release and each set of devices. `JAX_ENABLE_COMPILATION_CACHE=false` runs without it.",
        ("pytorch/xla#7771", "openxla/xla#18286", "jax-ml/jax#27814"),
        rank=2,
    ),
    Explanation(
        "82",
        "A flag or an option that the compiler does not take",
        (
            r"Unknown command line flag 'xla_\w{1,120}'",
            r"Illegal value '[^'\n]{0,120}' specified for flag 'xla_\w{1,120}'",
            r"Unknown flags? in XLA_FLAGS: ",
            r"No such compile option: '",
            r"Failed to parse '[^'\n]{0,120}' into flag xla_",
        ),
        "Flags come and go with releases, and each has its place. JAX itself reads XLA_FLAGS; "
        "libtpu reads LIBTPU_INIT_ARGS and `jax.jit(compiler_options=...)`. In an environment "
        "variable, an unknown flag or a value of the wrong kind ends the process.",
        'Put flags that begin with `xla_tpu_` into `os.environ["LIBTPU_INIT_ARGS"]` before '
        "`import jax`, or into `compiler_options` without the dashes. Remove those that this "
        "libtpu does not have, and correct the value that the message names.",
        ("https://docs.jax.dev/en/latest/xla_flags.html", "jax-ml/jax#17495"),
    ),
    Explanation(
        "83",
        "A flag that this TPU type does not allow",
        (r"Please disable it with (xla_\w{1,120})=false",),
        "A flag in LIBTPU_INIT_ARGS is for another TPU type. On this one, results could be wrong "
        "or the program could hang, so the compiler refuses it.",
        "Remove the flag that the message names from `LIBTPU_INIT_ARGS`, or set it to false "
        "there, and restart the process.",
        ("https://docs.jax.dev/en/latest/xla_flags.html",),
    ),
    Explanation(
        "84",
        "A process was forked after JAX had started",
        (r"os\.fork\(\) is incompatible with multithreaded code, and JAX is multithreaded",),
        "A copy of a process has none of its threads, so it may wait for a lock for ever. Data "
        "loaders and `multiprocessing` fork by default on Linux.",
        'Start workers before JAX, or with `multiprocessing.get_context("spawn")`; for PyTorch\'s '
        'DataLoader, `multiprocessing_context="spawn"`.',
        ("https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods",),
        rank=2,
    ),
    Explanation(
        "85",
        "The value of an array that is on several hosts",
        (
            r"spans non-addressable \(non process local\) devices is not (?:possible|allowed)",
            r"Gathering global non-fully-addressable arrays only supports tiled=True",
        ),
        "Each process can read only the part of an array that is on its own devices. Printing, "
        "`np.asarray`, `float` and a value that a function closes over need all of it.",
        "`jax.experimental.multihost_utils.process_allgather(x, tiled=True)` on all hosts "
        "returns the whole array, `x.addressable_shards` this host's parts. Pass such arrays as "
        "arguments instead of closing over them.",
        ("jax-ml/jax#22218", _HOSTS),
    ),
    Explanation(
        "86",
        "An array would have to move to devices of another host",
        (
            r"For a cross-host reshard in multi-controller JAX, input and target sharding",
            r"Passing non-trivial shardings for numpy inputs is not allowed",
            r"device_put's (?:second|first) argument must be a (?:Device or|fully)",
            r"Cannot reshard an input that is not fully addressable",
        ),
        "A process can put data only on its own devices, and a transfer between hosts is a "
        "collective of all processes with the same devices.",
        "Make a global array from each host's part: "
        "`jax.make_array_from_process_local_data(sharding, local_batch)`. To change the sharding "
        "of one, use `jax.jit(lambda x: x, out_shardings=sharding)(x)` on all hosts.",
        (_HOSTS,),
    ),
    Explanation(
        "87",
        "The hosts run different code",
        (
            r"sync_global_devices name mismatch",
            Clue(r"AssertionError: [^\n]{0,200}\. Expected: ", where=r"multihost_utils"),
        ),
        "A check across hosts found that they are at different places of the program, or have "
        "different values, for example of a seed or a file list.",
        "Let every host run the same code with the same settings. Broadcast what only one host "
        "knows: `jax.experimental.multihost_utils.broadcast_one_to_all(value)`.",
        ("jax: experimental/multihost_utils.py",),
    ),
    Explanation(
        "131",
        "A program for another release of JAX",
        (
            r"(?<!initialized )module 'jax(?:\.[\w.]{1,60})?' has no attribute '\w{1,60}'",
            r"cannot import name '\w{1,60}' from 'jax(?:\.[\w.]{1,60})?'",
            r"No module named 'jax\.(?:experimental|interpreters|lib|tools)\.\w{1,40}'",
            r"jax\.[\w.]{1,60} (?:was|has been) removed in (?:JAX|jax) v?\d",
            r"was deprecated in JAX v[\d.]{1,10} and removed in JAX v\d",
            r"'UnspecifiedValue' object has no attribute '\w{1,40}'",
        ),
        "JAX moves and removes functions within months: `jax.tree_map`, `jax.experimental.maps`, "
        "`jax.experimental.shard_map` are gone, and `jax.shard_map` and `jax.set_mesh` are new.",
        "Use today's name: `jax.tree.map`, `jax.shard_map`, `jax.make_mesh`. Or install the "
        'release that the program was written for: `%pip install "jax[tpu]==0.7.2"`, then restart '
        "the kernel.",
        ("https://docs.jax.dev/en/latest/changelog.html",),
    ),
    Explanation(
        "137",
        "JAX reaches for an old TPU Node",
        (
            r"(?:Requested b|B)ackend '?tpu_driver'?,? (?:but it )?failed to initialize",
            r"Failed to connect to remote server at address: grpc://",
            r"UNIMPLEMENTED: Only 1 computation per replica supported, \d+ requested",
            r"colab_tpu\.setup_tpu\(\) was required for older JAX versions",
        ),
        "The notebook was written for TPUs behind an address (`jax.tools.colab_tpu.setup_tpu()`, "
        "`tpu_driver`). They are gone since 2024, and JAX 0.4 and later cannot use them. Colab's "
        "and Kaggle's TPUs are part of the machine.",
        "Choose a runtime with a TPU, remove `setup_tpu()` and all settings of `tpu_driver` and "
        "`JAX_BACKEND_TARGET`, and use the JAX that is installed there: `jax.devices()`.",
        ("jax-ml/jax#14552", "googlecolab/colabtools#3405", "jax-ml/jax#8472"),
    ),
    Explanation(
        "138",
        "libtpu cannot read which TPU this is",
        (
            r"unexpected worker hostname 'WARNING: could not determine TPU worker hostnames",
            r"could not determine TPU accelerator type, please set env var",
            r"Failed to fetch URL on try \d+ out of \d+: Failed to fetch URL",
        ),
        "libtpu asks Google Cloud's metadata for the type of the TPU and its hosts, and this "
        "machine has none or does not answer. On Kaggle and without a TPU this is expected, and "
        "JAX goes on.",
        "If JAX stops there, say it before `import jax`: "
        '`os.environ.update(TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost", '
        'TPU_WORKER_ID="0", TPU_ACCELERATOR_TYPE="v5litepod-8")`, with your own type.',
        ("ARahim3/kaggle-tpu-lab#6", "jax-ml/jax#17495"),
        rank=2,
    ),
)
"""Errors of JAX before the first step, and of several hosts."""
