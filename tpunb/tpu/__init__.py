"""Facts about TPUs, without TensorFlow: types, chips, cores, and what is placed on them."""
