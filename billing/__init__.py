"""Money: prices, holds, usage events. Knows nothing of HTTP, models or KV."""
