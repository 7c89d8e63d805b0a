"""OpenAI's Responses API. What it shares with the completion endpoints is in the modules beside this folder."""
