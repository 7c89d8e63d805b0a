"""Documents for people: the words and figures of the template, and the PDF."""
