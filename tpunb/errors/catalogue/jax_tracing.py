"""Errors of tracing with JAX, and of operations of JAX that a TPU does not have."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Explanation

_ERRORS = "https://docs.jax.dev/en/latest/errors.html"
_OUTPUTS = (
    r"(?:scan|while_loop|fori_loop)(?: body function)?(?: carry)?[^\n]{0,40} carry input and "
    r"carry output must have "
)

JAX_TRACING = (
    Explanation(
        "103",
        "Python asks for the value of a traced array",
        (
            r"TracerBoolConversionError",
            r"Attempted boolean conversion of traced array",
            r"Abstract tracer value encountered where concrete value is expected",
        ),
        "`if`, `while`, `float(x)`, `x.item()` and `assert` need a number, but `jax.jit`, `grad` "
        "and `vmap` run the function once with arrays that have no values yet.",
        "Stay in JAX: `jnp.where(x > 0, a, b)`, `jax.lax.cond`, `jax.lax.while_loop`. If the value "
        'is a setting, make it static: `jax.jit(f, static_argnames="training")`. If it is a size '
        "(`jnp.nonzero`, `jnp.unique`, `jnp.arange`), give it: `jnp.nonzero(x, size=16)`.",
        (_ERRORS,),
    ),
    Explanation(
        "104",
        "NumPy or Python gets a traced array",
        (
            r"TracerArrayConversionError",
            r"The numpy\.ndarray conversion method __array__\(\) was called on traced",
            r"TracerIntegerConversionError",
            r"The __index__\(\) method was called on traced",
        ),
        "A function of NumPy, SciPy or another library, a Python list's index or `range` was "
        "called inside a function that JAX traces. They need values, which do not exist yet.",
        "Use `jax.numpy` and `jax.scipy`. For a list's index, make an array of it "
        "(`jnp.array(values)[i]`), or the index static (`static_argnames`). For code that must "
        "run on the host, `jax.pure_callback`.",
        (_ERRORS,),
    ),
    Explanation(
        "105",
        "A shape that depends on a traced value",
        (
            r"NonConcreteBooleanIndexError",
            r"Array boolean indices must be concrete",
            r"Array slice indices must have static start/stop/step to be used with NumPy",
            r"Shapes must be 1D sequences of concrete values of integer type",
        ),
        "A TPU's program has fixed shapes, and here a size is the number of true elements of a "
        "mask, or an argument of the function.",
        "Keep the shape: `jnp.where(mask, x, 0)` instead of `x[mask]`, and "
        "`jax.lax.dynamic_slice_in_dim(x, i, 8)` instead of `x[i:i + 8]`. Make a size that is a "
        'setting static: `jax.jit(f, static_argnames="n")`; it is compiled for each value.',
        (_ERRORS,),
    ),
    Explanation(
        "106",
        "A traced array left its function",
        (
            r"UnexpectedTracerError",
            r"Encountered an unexpected tracer\. A function transformed by JAX had a side effect",
            r"Leaked trace \w",
            r"TraceContextError: Cannot mutate",
        ),
        "A function that JAX traces stored an array in a global name, an attribute or a list. "
        "After the trace it has no value.",
        "Return the value, and store it outside: `x, state = f(x, state)`. "
        "`jax.checking_leaks()` shows where it happens. With Flax NNX, use `nnx.jit`, `nnx.grad` "
        "and `nnx.scan` instead of JAX's.",
        (_ERRORS,),
    ),
    Explanation(
        "107",
        "An argument of jax.jit that is not an array",
        (
            r"Error interpreting argument to [^\n]{1,300} as an abstract array",
            r"Cannot interpret (?:value|argument) of type [^\n]{1,200} as an abstract array",
            r"Non-hashable static arguments are not supported",
            r"(?:Argument|Value) '?[^\n]{1,300} of type [^\n]{1,120} is not a valid JAX type",
        ),
        "Arguments of `jax.jit` are arrays, numbers, and lists, tuples, dicts and registered "
        "classes of these. Others, such as text, functions, models and configurations, must be "
        "static, and a static argument must be hashable.",
        'Name it: `jax.jit(f, static_argnames="config")`, with a frozen dataclass or a tuple '
        "instead of a list or dict. Or bind it before: `jax.jit(functools.partial(f, model))`. "
        "Register a class that holds arrays: `jax.tree_util.register_dataclass`.",
        ("https://docs.jax.dev/en/latest/jit-compilation.html",),
    ),
    Explanation(
        "108",
        "A loop or branch that changes a type",
        (
            _OUTPUTS,
            r"body_fun output and input must have identical types",
            r"cond branches must have equal output types but they differ",
            r"true_fun and false_fun output must have identical types",
            r"Scanned function carry input and carry output must have ",
        ),
        "A loop's carry must keep its shape, type and structure from one turn to the next, and "
        "all branches must return the same. The message names the part that differs. Most often a "
        "bfloat16 value became float32, or a Python number is an int at first.",
        "Cast it back at the end of the body: `carry.astype(x.dtype)`. Begin with arrays of the "
        "final type: `jnp.zeros((), jnp.float32)` instead of `0`.",
        ("https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html",),
        rank=1,
    ),
    Explanation(
        "109",
        "The gradient of a loop of unknown length",
        (r"Reverse-mode differentiation does not work for lax\.while_loop or lax\.fori_loop",),
        "A gradient needs the values of all turns, and a TPU reserves memory for a fixed number.",
        "Use `jax.lax.scan`, or `jax.lax.fori_loop` with Python numbers as bounds. For a loop "
        "that may end early, scan over the most turns and keep the carry with `jnp.where`.",
        ("https://docs.jax.dev/en/latest/_autosummary/jax.lax.fori_loop.html",),
    ),
    Explanation(
        "110",
        "A 64-bit number becomes 32-bit",
        (
            r"Explicitly requested dtype \S{1,60}(?: requested in \w{1,40})? is not available, and",
            r"An overflow was encountered while parsing an argument to a jitted computation",
            r"OverflowError: Python int(?:eger)? -?\d+ (?:too large to convert to|out of bounds)",
        ),
        "JAX computes in 32 bits, as TPUs do. float64 becomes float32, and an integer beyond 2**31 "
        "does not fit.",
        "Write `jnp.float32` and `jnp.int32` to silence the warning. Keep large numbers, such as "
        "ids and hashes, in NumPy on the host, or split them. `jax_enable_x64` is slow on a TPU, "
        "and some operations do not have it.",
        ("https://docs.jax.dev/en/latest/default_dtypes.html",),
        rank=2,
    ),
    Explanation(
        "111",
        "A 64-bit type that a TPU does not compute with",
        (
            r"(?:Xla|Jax)RuntimeError: [^\n]{0,300}rewriting computation to not contain X64 ",
            r"Element type (?:C128|F64|S64|U64) is not supported on TPU",
            r"Unexpected operand type for FFT: (?:c128|f64)\[",
        ),
        "`jax_enable_x64` is on, or an array came from NumPy with 64 bits under it. A TPU emulates "
        "float64 and int64 for simple arithmetic only. Fourier transforms, bit casts, products "
        "and solvers do not have them, and complex128 does not exist.",
        'Leave it off (`jax.config.update("jax_enable_x64", False)`), or cast in front of the '
        'operation that the message names: `x.astype("float32")`, complex64 for transforms. With '
        "TensorFlow: `tf.cast(x, tf.complex64)`.",
        ("jax-ml/jax#19769", "patrick-kidger/diffrax#366", "openxla/xla#26995"),
    ),
    Explanation(
        "112",
        "A function of JAX that TPUs do not have",
        (
            r"MLIR translation rule for primitive '[\w-]{1,60}' not found for platform tpu",
            r"(?:eigendecomposition|[Pp]ivoting) is only implemented on the CPU",
        ),
        "JAX has this operation for processors and GPUs only. Eigenvalues of matrices that are "
        "not symmetric and Schur decompositions are such.",
        "For symmetric matrices, use `jnp.linalg.eigh`. Otherwise compute it on the host: "
        "`jax.pure_callback(np.linalg.eigvals, jax.ShapeDtypeStruct(...), x)`, or outside of the "
        'step with `jax.default_device(jax.devices("cpu")[0])`.',
        ("https://docs.jax.dev/en/latest/_autosummary/jax.numpy.linalg.eig.html",),
    ),
    Explanation(
        "113",
        "A call of the host from a TPU's program",
        (
            r"host_callback functionality isn't supported with the new Cloud TPU runtime",
            r"Host command \d+ triggered but no handler was registered",
            r"channel \d+ is used for multiple host send/recv instructions",
            r"The following ordered effects are not supported for more than 1 device",
        ),
        "`jax.debug.print`, `io_callback` and `pure_callback` send data to the host in the middle "
        "of a program. The old `host_callback` is gone, ordered calls work on one device only, "
        "and calls inside loops and `jax.checkpoint` may be duplicated.",
        "Return the value and use it after the step. Otherwise "
        "`jax.experimental.io_callback(f, shape, x, ordered=False)` outside of `jax.checkpoint`. "
        "The callback itself must not call JAX.",
        ("openxla/xla#7904", "jax-ml/jax#12260", "jax-ml/jax#24720"),
    ),
    Explanation(
        "133",
        "An array of JAX that is assigned to",
        (r"JAX arrays are immutable",),
        "Arrays of JAX never change. A function returns new ones, and the compiler reuses the "
        "memory.",
        "`x = x.at[i].set(value)`, or `.add`, `.max`. For a large array, donate it "
        "(`donate_argnums`), so that nothing is copied.",
        (_ERRORS,),
    ),
    Explanation(
        "134",
        "Shapes that do not go together",
        (
            r"vmap got inconsistent sizes for array axes to be mapped",
            r"[Ii]ncompatible shapes for broadcasting: (?:shapes=\[)?\(",
            r"dot_general requires contracting dimensions to have the same shape",
            r"dot_general requires lhs batch dimensions and rhs batch dimensions to have",
        ),
        "Two arrays of an operation, or two arguments of `jax.vmap`, have different sizes where "
        "they must be equal. Inside `jax.shard_map` and `jax.pmap`, an array has only its "
        "device's part.",
        "Print `x.shape` in the function: shapes are known while JAX traces. For an argument that "
        "is not mapped, `jax.vmap(f, in_axes=(0, None))`.",
        ("https://docs.jax.dev/en/latest/automatic-vectorization.html",),
    ),
    Explanation(
        "135",
        "A gradient of something that has none",
        (
            r"Gradient only defined for scalar-output functions",
            r"(?:grad|jacrev|value_and_grad) requires real- or complex-valued inputs",
            r"grad requires (?:real|complex)-valued (?:inputs|outputs)",
        ),
        "`jax.grad` differentiates a function that returns one real number, by its first argument, "
        "which holds real numbers. Integers, such as token ids or a step counter, and keys have no "
        "gradient.",
        "Return `loss.mean()`, and further results by `has_aux=True`. Choose the argument with "
        "`argnums=`, and keep integers out of it.",
        ("https://docs.jax.dev/en/latest/automatic-differentiation.html",),
    ),
    Explanation(
        "136",
        "Too many arguments for one program",
        (r"Computation requires more parameters \(\d+\) than supported \(limit \d+\)",),
        "A TPU's program takes a limited number of arrays, and the function has an argument for "
        "each weight and each slot of the optimizer.",
        "Stack the weights of equal layers and go over them with `jax.lax.scan`, or concatenate "
        "small ones.",
        ("pytorch/xla#2376",),
    ),
    Explanation(
        "139",
        "A kernel or an operation without a gradient",
        (
            r"Linearization failed to produce known values for all output primals",
            r"(?:Transpose|Differentiation) rule (?:\([^)\n]{1,60}\) )?for '\w{1,60}' not impl",
            r"JVP with aliasing not supported",
            r"pallas_call with a mesh does not support JVP",
        ),
        "JAX cannot differentiate Pallas kernels, callbacks and some operations by itself.",
        "Give the function its gradient: `@jax.custom_vjp` with a second kernel, or with the "
        "plain computation: `jax.vjp(reference, *args)`. If no gradient is needed there, "
        "`jax.lax.stop_gradient(x)` on its input.",
        ("https://docs.jax.dev/en/latest/notebooks/Custom_derivative_rules_for_Python_code.html",),
    ),
)
"""Errors of functions that JAX traces for a TPU."""
