"""Scripts that are mounted into an image and run by its interpreter, with only what is in the image."""
