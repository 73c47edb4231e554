"""Programs and arrays that do not fit the memory of a TPU (`RESOURCE_EXHAUSTED`)."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Explanation, code_of_xla, page_of_xla

_FIRST_BUFFER = r"\b1\. Size: [^\n]{1,40}\n(?:[^\n]{0,500}\n){0,6}[^\n]{0,40}"
"""The first of the largest allocations, up to the line with its padding (libtpu 0.0.52)."""

_TWICE = r"(?:[2-9]|\d{2,5})\.\d+x expansion"

MEMORY = (
    Explanation(
        "30",
        "The program does not fit in the TPU's memory",
        (
            r"Ran out of memory in memory space hbm",
            r"TPU TensorCore Hbm usage: ",
            r"Allocation \(size=\d+\) would exceed memory \(size=\d+\) :: (?![^\n]{0,400}[vs]mem)",
            r"Aborting compilation early because it's unlikely to have enough device memory",
            r"Ran out of memory on HBM, the total memory required for HLO temporaries",
            code_of_xla("100[02]"),
        ),
        "The compiled program needs more memory (HBM) than a core has. The message lists its "
        "largest allocations and the padding in them.",
        "Make the batch smaller, use mixed_bfloat16, or recompute activations (`keras.remat`, "
        "`jax.checkpoint`, `tf.recompute_grad`). `tpunb.largest_batch(model, dataset, "
        'tpu="v5e-8")` finds the batch that fits.',
        ("tensorflow/tpu#385", page_of_xla("1000")),
        rank=1,
        rule="memory",
    ),
    Explanation(
        "31",
        "No memory is left on the TPU",
        (
            r"Attempting to reserve [^\n]{0,80} at the bottom of memory",
            r"Error allocating device buffer: Attempting to allocate",
            r"Attempting to allocate [^\n]{1,40}\. That was not possible\. There are ",
            code_of_xla("010[01]"),
        ),
        "An array or a program does not fit beside the data that is already on the TPU. Most often "
        "that data is an older model with its optimizer, results that the notebook keeps, or a "
        "model that one core holds as a whole.",
        "Delete what you no longer need (`del model, results`), or restart the kernel. If the "
        "error recurs in a fresh kernel, use a smaller batch, `jax.jit(step, donate_argnums=0)` "
        "for a step's state, or shard the model's variables over all cores.",
        (page_of_xla("0100"), "google-deepmind/gemma#85", "pytorch/xla#1735"),
    ),
    Explanation(
        "128",
        "Most of the memory is padding",
        (_FIRST_BUFFER + r"Extra memory due to padding: [\d.]{1,12}[GT]i?B? \(" + _TWICE,),
        "A TPU stores the last two axes of an array in tiles of 8 by 128 numbers, and fills them "
        "up. An array whose last axis has 4 numbers takes 32 times its size. The message has it "
        "in `Unpadded size` and `expansion`.",
        "Put large axes last: make the last size a multiple of 128 and the one before it of 8. "
        "Transpose (`x.T`) or merge small axes (`x.reshape(n, -1)`), and split them late. A "
        "smaller batch helps little. See trap P3.",
        ("DifferentiableUniverseInitiative/flowpm#27", "google/flax#1733", page_of_xla("1000")),
    ),
    Explanation(
        "129",
        "A SparseCore's memory is full",
        (
            code_of_xla("3000"),
            r"exceeds the legitimate user allocatable offset upper bound \(\d+ words\)",
        ),
        "A program of the SparseCore, for embeddings or a kernel, needs more of one of its "
        "memories than there is. The message has the memory's number: 203 is HBM, 0, 201, 202 "
        "and 204 are inside the SparseCore.",
        "203: shard the embedding tables over more cores, and lower `max_ids_per_partition` and "
        "`max_unique_ids_per_partition`. Others: smaller `scratch_shapes` in your kernel; for "
        "collectives, `--xla_tpu_enable_sparse_core_collective_offload_all_reduce=false` (and "
        "`..._all_gather=false`) in LIBTPU_INIT_ARGS.",
        (page_of_xla("3000"),),
    ),
    Explanation(
        "130",
        "A batch of embeddings does not fit in a SparseCore",
        (code_of_xla("3001"), r"No viable logical replica count for the embedding table"),
        "The SparseCore reserves memory for the declared number of ids in a row, times the batch's "
        "share, and no way to cut the batch fits.",
        "Lower `max_nz_per_row` and `max_unique_nz_per_row` (`max_ids_per_partition`, "
        "`max_unique_ids_per_partition`) to what the data needs, or use a smaller batch.",
        (page_of_xla("3001"),),
    ),
    Explanation(
        "65",
        "A result in the host's memory that is not declared as such",
        (
            r"Tensor which is moved to host [^\n]{0,200}is returned from the entry computation",
            code_of_xla("1200"),
        ),
        "The program moved a tensor to the host's memory and returns it, but declares that this "
        "result is in the TPU's memory.",
        "Move the tensor back before you return it: `jax.device_put(x, jax.memory.Space.Device)`. "
        "Or declare where it is: `jax.jit(f, out_shardings=sharding.with_memory_kind("
        '"pinned_host"))`.',
        (page_of_xla("1200"),),
    ),
)
