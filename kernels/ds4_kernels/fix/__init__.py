"""The C128A stride fix as a plugin: recognise the installed builder, and replace it if it packs rows."""
