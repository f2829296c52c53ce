"""C128A metadata: which compressed KV entries each token of a step attends to (see ``docs/contracts.md``)."""
