"""Functions of JAX for the TPU's compiler: exported, judged, searched, compared on meshes."""
