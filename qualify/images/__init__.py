"""Images: locked, composed, pushed, inspected; one image is known by the digest of its manifest."""
