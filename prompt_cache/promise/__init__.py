"""What a request is promised by the prompt cache (directives), and who may read what (cache domains)."""
