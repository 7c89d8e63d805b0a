"""One file per architecture, written so that a reader of its paper recognises it."""
