"""A model folder's `config.json`, read strictly, with the defaults of Hugging Face's classes."""
