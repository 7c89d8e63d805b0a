"""The files of a model, as gateway and replica both read them: a Hugging Face folder, or a GGUF file."""
