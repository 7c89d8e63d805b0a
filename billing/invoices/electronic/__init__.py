"""E-invoices: EN 16931 as XML in its two syntaxes, alone and embedded in the PDF."""
