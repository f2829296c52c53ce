"""OCI registries: reading and writing by digest, promoting an image, attaching statements to it."""
