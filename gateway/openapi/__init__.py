"""The OpenAPI document of every route, made of what the routes say of themselves, and the page that shows it."""
