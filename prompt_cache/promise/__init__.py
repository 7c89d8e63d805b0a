"""What a request is promised of the prompt cache: directives, and who may read what."""
