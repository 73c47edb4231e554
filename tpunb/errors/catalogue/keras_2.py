"""Errors that Keras 3 raises in notebooks written for Keras 2."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Explanation

KERAS_2_RUNS_IT = "`%tpu_connect --keras 2` in a new kernel, or `tpunb run --keras 2`"
"""How to choose Keras 2, as part of a sentence."""

_AS_IT_IS = f"Or leave the notebook unchanged and use Keras 2: {KERAS_2_RUNS_IT}."
_GUIDE = "https://keras.io/guides/migrating_to_keras_3/"
_OPTIMIZERS = (
    r"(?:SGD|RMSprop|Adam|AdamW|Adamax|Nadam|Adagrad|Adadelta|Adafactor|Ftrl|Lion"
    r"|LossScaleOptimizer)"
)

KERAS_2 = (
    Explanation(
        "51",
        "reset_states in Keras 3",
        (r"AttributeError: '\w+' object has no attribute 'reset_states'",),
        "Keras 3 has neither `model.reset_states()` nor `metric.reset_states()`.",
        "Write `metric.reset_state()` for a metric, and `layer.reset_state()` for each stateful "
        f"recurrent layer of a model. {_AS_IT_IS}",
        (_GUIDE,),
    ),
    Explanation(
        "52",
        "save_format in Keras 3",
        (
            r"The `save_format` argument is deprecated in Keras 3",
            r"save_weights\(\) got an unexpected keyword argument 'save_format'",
        ),
        "Keras 3 takes the format from the file's name, and cannot save a model as a TensorFlow "
        "SavedModel.",
        'Remove `save_format`: `model.save("model.keras")`, '
        '`model.save_weights("model.weights.h5")`. `model.export(folder)` writes a SavedModel for '
        f"serving. {_AS_IT_IS}",
        (_GUIDE,),
    ),
    Explanation(
        "53",
        "A file name that Keras 3 does not take",
        (
            r"The filename must end in `\.weights\.h5`",
            r"the filepath provided must end in `\.(?:keras|weights\.h5)`",
            r"The filepath provided must end in `\.keras`",
            r"Invalid filepath extension for saving\. Please add either a `\.keras` extension",
            r"File format not supported: filepath=[^\n]{0,300}\. Keras 3 only supports",
        ),
        "Keras 3 saves models in files whose names end in `.keras`, and weights in files whose "
        "names end in `.weights.h5`. It reads neither folders nor TensorFlow's checkpoints.",
        'Write `model.save("model.keras")`, `model.save_weights("model.weights.h5")` and '
        '`ModelCheckpoint("best.keras")`. `tf.train.Checkpoint(model=model)` reads and writes '
        f"TensorFlow's checkpoints. {_AS_IT_IS}",
        (_GUIDE,),
    ),
    Explanation(
        "54",
        "optimizer.lr in Keras 3",
        (
            rf"AttributeError: '{_OPTIMIZERS}' object has no attribute 'lr'",
            r"Argument\(s\) not recognized: \{[^\n]{0,100}'lr'",
        ),
        "Keras 3 knows the learning rate only by its full name. Setting `optimizer.lr` adds an "
        "attribute that nothing reads.",
        "Write `optimizer.learning_rate`, to read and to set it, and `Adam(learning_rate=0.001)`. "
        f"{_AS_IT_IS}",
        (_GUIDE,),
    ),
    Explanation(
        "55",
        "tf.keras.experimental in Keras 3",
        (
            r"module 'keras[\w.]{0,60}' has no attribute 'experimental'",
            r"No module named 'tensorflow\.keras[\w.]{0,60}\.experimental",
        ),
        "The names in `tf.keras.experimental`, and in the `experimental` parts of `layers`, "
        "`optimizers` and `mixed_precision`, have moved or no longer exist.",
        "Write `tf.keras.optimizers.schedules.CosineDecay`, `tf.keras.layers.Rescaling` (for "
        "`layers.experimental.preprocessing.Rescaling`), `tf.keras.optimizers.AdamW`, and "
        '`tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")`, which replaces '
        f"`experimental.set_policy` in Keras 2 too. {_AS_IT_IS}",
        (_GUIDE,),
    ),
    Explanation(
        "56",
        "A function that tf.keras.backend no longer has",
        (
            r"module 'keras[\w.]{0,40}\.backend' has no attribute",
            r"cannot import name '\w{1,40}' from '(?:tensorflow\.)?keras\.backend'",
        ),
        "Keras 3 supports several backends, so its `backend` module has no learning phase, no "
        "placeholders, no functions and no sessions.",
        "Pass `training=True` to the call instead of setting a learning phase, make a "
        "`tf.keras.Model` instead of a `K.function`, and compute with `tf.` or `keras.ops.`. "
        f"{_AS_IT_IS} Only TensorFlow 1 has sessions.",
        (_GUIDE,),
    ),
    Explanation(
        "57",
        "Positional arguments of Layer.__init__",
        (r"Layer\.__init__\(\) takes 1 positional argument but \d+ were given",),
        "A layer of the notebook passes arguments to `tf.keras.layers.Layer` by position, and "
        "Keras 3 takes them only by name.",
        "Write `super().__init__(name=name)`, or `super().__init__(**kwargs)` with two stars. "
        f"{_AS_IT_IS}",
        (_GUIDE,),
    ),
    Explanation(
        "58",
        "Keras 2 is not installed",
        (r"No module named 'tf_keras'",),
        "`TF_USE_LEGACY_KERAS=1` makes `tf.keras` Keras 2, which needs the package tf_keras.",
        "Install the release of tf_keras that belongs to this TensorFlow, such as "
        '`pip install --no-deps "tf_keras==2.20.*"` for TensorFlow 2.20, or unset the variable. '
        "Then restart the kernel.",
        ("https://github.com/keras-team/tf-keras",),
    ),
)
"""Errors of notebooks written for Keras 2."""
