"""Facts about TPUs, without TensorFlow: types, chips, cores, compiled programs."""
